"""Where in time the screen stands, and the ways there. Reads from a source, on whatever thread; knows no widgets."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Protocol

from ...errors import InspectError
from ...telemetry.predicate import Predicate
from ..clock_words import Jump
from ..sources.source import Source
from ..view import Kept, Moment, Story, View


class Way(Protocol):
    """From one moment to another."""

    def go(self, source: Source, moment: Moment) -> Moment:
        """The other moment.

        Raises:
            InspectError: it leads nowhere.
        """


@dataclass(frozen=True, slots=True)
class Steps:
    """So many steps on, or back where negative."""

    count: int

    def go(self, source: Source, moment: Moment) -> Moment:
        """The end of that step's frame."""
        return source.move(moment, self.count)


@dataclass(frozen=True, slots=True)
class ToEvent:
    """To the next or the previous event of a kind."""

    predicate: Predicate | None
    forward: bool

    def go(self, source: Source, moment: Moment) -> Moment:
        """Just after that event."""
        row = source.find(moment, self.predicate, self.forward)
        if row is None:
            what = f"no event that meets {self.predicate.text}" if self.predicate else "no event"
            raise InspectError(f"{what} {'after' if self.forward else 'before'} this moment")
        return row.moment


@dataclass(frozen=True, slots=True)
class To:
    """To a moment, or to where a jump leads."""

    place: Moment | Jump

    def go(self, source: Source, moment: Moment) -> Moment:
        """The moment."""
        place = self.place
        if not isinstance(place, Jump):
            return place
        if place.step is not None:
            return source.at_step(place.step, moment)
        if place.steps is not None:
            return source.move(moment, place.steps) if place.steps else moment
        return source.at_time(place.t or 0, moment)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look gave.

    Attributes:
        view: of the moment; where that is gone, what was shown of it, between the ticks that the run has now.
        story: of the sequence that was asked for.
        is_gone: whether the moment has been deleted to make room for newer ones.
    """

    view: View
    story: Story | None
    is_gone: bool = False


class TimeTravel:
    """Where the screen stands. Ways are put in on the UI's thread and gone by `look`, on another one.

    Attributes:
        moment: what is shown; None: the newest moment, live.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._ways: deque[Way] = deque()
        self.moment: Moment | None = None
        self._turns = 0  # of freeze and go_live: they overrule ways that a look is on meanwhile

    def add(self, way: Way) -> None:
        """Go this way at the next look. Steps in a row become one way."""
        if isinstance(way, Steps) and self._ways and isinstance(self._ways[-1], Steps):
            way = Steps(self._ways.pop().count + way.count)  # type: ignore[attr-defined]
        self._ways.append(way)

    @property
    def has_ways(self) -> bool:
        """Whether the next look goes somewhere."""
        return bool(self._ways)

    def freeze(self, moment: Moment) -> None:
        """Stay at a moment."""
        self._ways.clear()
        self._turns += 1
        self.moment = moment

    def go_live(self) -> None:
        """Follow the engine again."""
        self._ways.clear()
        self._turns += 1
        self.moment = None

    def look(self, shown: View | None, seq: int | None) -> Seen:
        """Go the ways there are, and look around. Blocks.

        Args:
            shown: what is on the screen, from where ways lead while it is live.
            seq: also ask for this sequence's story.

        Raises:
            InspectError: a way leads nowhere (the ways behind it are given up), or there is nothing to show.
        """
        before, moment, turns = self.moment, self.moment, self._turns
        while self._ways:
            start = moment or (shown or self._source.view()).moment
            way = self._ways.popleft()
            try:
                moment = self._gone_from(start, way)
            except InspectError:
                self._ways.clear()
                raise
            if turns == self._turns:
                self.moment = moment
        try:
            view = self._source.view(moment)
            return Seen(view, None if seq is None else self._source.story(seq, view.moment, view.now_t))
        except InspectError:
            if shown is None or shown.moment != moment or (kept := self._left_of(moment)) is None:
                if turns == self._turns:
                    self.moment = before  # where the ways lead, there is nothing to show
                raise
            status = self._source.status
            shown = replace(shown, is_live=False, later_ns=0, first=kept.first, last=kept.last, status=status)
            return Seen(shown, None, is_gone=True)

    def _gone_from(self, start: Moment, way: Way) -> Moment:
        """Where a way leads; from a moment that is gone, steps and events lead to the oldest that is kept."""
        try:
            return way.go(self._source, start)
        except InspectError:
            names_a_moment = isinstance(way, To) and isinstance(way.place, Moment)
            if names_a_moment or (kept := self._left_of(start)) is None:
                raise
            return kept.oldest

    def _left_of(self, moment: Moment) -> Kept | None:
        """What is left of a moment's run, where the moment itself is gone."""
        try:
            kept = self._source.kept(moment)
        except InspectError:
            return None
        return kept if moment < kept.oldest else None
