"""A journal in files of this machine as a source: of an engine that runs, or of one that is gone."""

from __future__ import annotations

import contextlib
from pathlib import Path

from ...errors import InspectError, JournalError
from ...telemetry.predicate import Predicate
from ...telemetry.reader import JournalReader, Position
from ..view import STEPS_SHOWN, EventRow, Judgement, Kept, Moment, SourceStatus, Story, Tick, View
from .follow import Follower
from .past import Past
from .source import Control


class JournalSource:
    """A journal's directory, or one segment of it.

    Args:
        path: which.
        run: the run; None: the one written to last.

    Attributes:
        title: path and run.
        run: the id of the run.
        control: None: files can't be steered.

    Raises:
        InspectError: there is no journal there, or none that this version reads.
    """

    control: Control | None = None

    def __init__(self, path: str | Path, run: str | None = None) -> None:
        self._follower = Follower(path, run)
        self.run = self._follower.run
        self.title = f"{path} · run {self.run}"
        self._past = Past(path, self.run)
        self._beginning = Beginning(*self._follower.place)

    @property
    def status(self) -> SourceStatus:
        """Of the engine that writes the journal."""
        return self._follower.status

    def start(self) -> None:
        """Begin to follow it.

        Raises:
            InspectError: it is of a newer version, or nothing is in it.
        """
        try:
            self._beginning.look()
        except JournalError as error:
            raise InspectError(str(error)) from error
        self._follower.start(a_little_before)

    def close(self) -> None:
        """Stop following. May be called again."""
        self._follower.close()
        self._past.close()

    def view(self, moment: Moment | None = None) -> View:
        """As of `Source`."""
        if moment is None:
            return self._follower.view(self._first())
        return self._past.view(moment, self.status, self._first(), self._follower.last_tick)

    def kept(self, moment: Moment) -> Kept:
        """As of `Source`."""
        kept = self._past.kept()
        return kept._replace(first=self._first() or kept.first)

    def story(self, seq: int, moment: Moment, now_t: int = 0) -> Story | None:
        """As of `Source`."""
        return self._past.story(seq, moment, now_t)

    def verdict(self, seq: int, moment: Moment, now_t: int = 0) -> Judgement | None:
        """As of `Source`."""
        engine = "dead" if moment == self._follower.died_at else "live"
        return self._past.verdict(seq, moment, now_t, engine)

    def at_step(self, step: int, near: Moment | None = None) -> Moment:
        """As of `Source`."""
        return self._past.at_step(step)

    def at_time(self, t: int, near: Moment | None = None) -> Moment:
        """As of `Source`."""
        return self._past.at_time(t)

    def move(self, moment: Moment, steps: int) -> Moment:
        """As of `Source`."""
        return self._past.move(moment, steps)

    def find(self, moment: Moment, predicate: Predicate | None, forward: bool) -> EventRow | None:
        """As of `Source`."""
        return self._past.find(moment, predicate, forward)

    def _first(self) -> Tick | None:
        """Where the journal begins now."""
        with contextlib.suppress(JournalError):  # its oldest segment was deleted just now: the next look sees that
            self._beginning.look()
        return self._beginning.tick


class Beginning:
    """Where a journal begins: later and later, as its oldest segments are deleted to make room.

    Args:
        path: of the journal.
        run: its run.

    Attributes:
        tick: as of the last look; None while the journal holds no event.
    """

    def __init__(self, path: str, run: str) -> None:
        self._reader = JournalReader(path, run)
        self._oldest: list[int] = []
        self.tick: Tick | None = None

    def look(self) -> None:
        """Look whether it begins elsewhere now.

        Raises:
            JournalError: its beginning can't be read.
        """
        oldest = self._reader.segments()[:1]
        if oldest != self._oldest or self.tick is None:
            self.tick = first_tick(self._reader)
            self._oldest = oldest


def a_little_before(reader: JournalReader) -> Position:
    """Where to begin so that the last steps are known at once, not only those since the newest keyframe."""
    newest = reader.last_keyframe()
    first = next(reader.frames(newest), None)
    steps = [event.step for event in (first.events if first is not None else ()) if hasattr(event, "step")]
    return reader.at_step(max(steps) - STEPS_SHOWN) if steps else newest


def first_tick(reader: JournalReader) -> Tick | None:
    """Where a journal begins; None where it holds no event yet.

    Raises:
        JournalError: its beginning can't be read.
    """
    for frame in reader.frames():
        for event in frame.events:
            t = getattr(event, "t", 0)
            if t:
                return Tick(getattr(event, "step", 0), t)
    return None
