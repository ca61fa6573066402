"""A journal in files of this machine as a source: of an engine that runs, or of one that is gone."""

from __future__ import annotations

from pathlib import Path

from ...errors import InspectError, JournalError
from ...telemetry.predicate import Predicate
from ...telemetry.reader import JournalReader, Position
from ..view import STEPS_SHOWN, EventRow, Judgement, Moment, SourceStatus, Story, Tick, View
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
        self._first: Tick | None = None

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
            self._first = first_tick(JournalReader(*self._follower.place))
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
            return self._follower.view(self._first)
        return self._past.view(moment, self.status, self._first, self._follower.last_tick)

    def story(self, seq: int, moment: Moment, now_t: int = 0) -> Story | None:
        """As of `Source`."""
        return self._past.story(seq, moment, now_t)

    def verdict(self, seq: int, moment: Moment, now_t: int = 0) -> Judgement | None:
        """As of `Source`."""
        return self._past.verdict(seq, moment, now_t)

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
