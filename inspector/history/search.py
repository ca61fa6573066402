"""Events of a journal, forward and back, each with its moment. Frames that can't hold what is meant aren't decoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

from ...telemetry.event_fields import RequestNames, tag_of
from ...telemetry.events import (
    AnyEvent,
    Keyframe,
    RequestArrived,
    StatusChanged,
)
from ...telemetry.predicate import Predicate
from ..view import EventRow, Tick
from .frame_store import FrameStore, Place
from .ticks import Ticks

_TELL_NAMES = frozenset({RequestArrived, StatusChanged, Keyframe})


class Wanted:
    """Which events are meant, by a predicate; it learns which request each sequence belongs to where that matters.

    Args:
        predicate: None means any event.
    """

    def __init__(self, predicate: Predicate | None) -> None:
        self.predicate = predicate
        self.needs_names = predicate is not None and "request" in predicate.text
        self._names = RequestNames()
        kinds = frozenset() if predicate is None else predicate.events
        if self.needs_names:
            kinds |= _TELL_NAMES
        self.tags = () if predicate is None else tuple(_encoded(tag_of(kind)) for kind in kinds)

    def meets(self, event: AnyEvent) -> bool:
        """Whether an event is meant; of each window, they have to be given in their order."""
        if self.needs_names:
            self._names.learn(event)
        return self.predicate is None or self.predicate.matches(event, self._names.names)


class Search:
    """Looks for events of a run.

    Args:
        store: the frames.
        ticks: their steps and times.
    """

    def __init__(self, store: FrameStore, ticks: Ticks) -> None:
        self._store = store
        self._ticks = ticks

    def forward(self, place: Place, count: int, wanted: Wanted) -> EventRow | None:
        """The first event after `count` events of a frame."""
        start = self._start(place) if wanted.needs_names else place
        for each in self._store.walk(start, self._store.last):
            for row in self.rows(each, wanted):
                if each > place or (each == place and row.moment.count > count):
                    return row
        return None

    def back(self, place: Place, count: int, wanted: Wanted, limit: int) -> list[EventRow]:
        """The last `limit` events among those up to `count` events of a frame, oldest first."""
        found: list[list[EventRow]] = []
        missing, upto = limit, count
        for window in self._windows(place, wanted.needs_names):
            rows: list[EventRow] = []
            for each in window:
                own = self.rows(each, wanted)
                rows += own if each < place else [row for row in own if row.moment.count <= upto]
            if rows:
                found.append(rows[-missing:])
                missing -= len(found[-1])
            if missing <= 0:
                break
        return list(chain.from_iterable(reversed(found)))

    def rows(self, place: Place, wanted: Wanted) -> list[EventRow]:
        """The events of one frame that are meant."""
        if wanted.tags and not self._store.holds(place, wanted.tags):
            return []
        events = self._store.events(place)
        first = self._store.moment_of(place, 1)
        found: list[EventRow] = []
        step = t = -1
        for index, event in enumerate(events):
            step, t = getattr(event, "step", step), getattr(event, "t", t)
            if wanted.meets(event):
                found.append(EventRow(first._replace(count=index + 1), step, t, event))
        if any(row.step < 0 or row.t < 0 for row in found):
            earlier = self._store.before(place)
            base = self._ticks.at_end(earlier) if earlier is not None else Tick(0, 0)
            found = [dated(row, base) for row in found]
        return found

    def _start(self, place: Place) -> Place:
        """A frame at or before one, from which the names of live sequences can be learnt."""
        join = self._store.last_join(place, len(self._store.events(place)))
        return join.place if join is not None else place

    def _windows(self, place: Place, whole: bool) -> Iterator[Iterable[Place]]:
        """Stretches of frames back to the journal's begin, the last one first; frames within each in their order.

        Args:
            place: where the last one ends.
            whole: whether each has to begin with a whole state.
        """
        end: Place | None = place
        while end is not None:
            start = self._start(end) if whole else end
            yield self._store.walk(start, end) if whole else (end,)
            end = self._store.before(start)


def _encoded(tag: str) -> bytes:
    """A tag as it stands in a frame: tags are shorter than 32 bytes."""
    return bytes([0xA0 + len(tag)]) + tag.encode()


def dated(row: EventRow, tick: Tick) -> EventRow:
    """A row whose event does not tell its step or its time (below 0) with those of a tick."""
    return replace(row, step=row.step if row.step >= 0 else tick.step, t=row.t if row.t >= 0 else tick.t)
