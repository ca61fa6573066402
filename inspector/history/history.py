"""A journal, live or past, as what screens ask of it. Reads files alone; knows no engine and no terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from ...errors import InspectError
from ...telemetry.events import EngineStarted, EngineStopped, Keyframe
from ...telemetry.predicate import Predicate
from ...telemetry.reader import Frame, JournalReader
from ...telemetry.state import EngineState
from ..view import EVENTS_SHOWN, STEPS_SHOWN, EventRow, Moment, StepRow, Story, Tick
from .step_log import StepLog

Ending = Literal["open", "ended", "dead"]


class State(NamedTuple):
    """The engine at a moment: the fields of a View that the `state` projection gives."""

    keyframe: Keyframe
    is_order_sure: bool
    stopped: EngineStopped | None


class History:
    """One run of a journal. Threads may share it: calls are answered one after the other.

    Args:
        path: a journal's directory, or one segment file, which is then read alone.
        run: the run to read; None takes the one that was written to last.

    Attributes:
        run: the id of the run.

    Raises:
        JournalError: no journal, a newer version, no such run, damaged; in words.
        InspectError: it holds no state yet.
    """

    def __init__(self, path: str | Path, run: str | None = None) -> None:
        self._reader = JournalReader(path, run)
        self.run = self._reader.run
        self._frames: list[Frame] = []
        self.refresh()

    def refresh(self) -> bool:
        """Take in what was written since; whether that is anything."""
        before = len(self._frames)
        self._frames = list(self._reader.frames())
        return len(self._frames) > before

    def close(self) -> None:
        """Let go of files and memory."""

    @property
    def started(self) -> EngineStarted:
        """The run's first event."""
        return self.keyframe(self.first()).keyframe.started

    @property
    def ending(self) -> Ending:
        """open: the engine's process is there; ended: it stopped in order; dead: it is gone without engine.stopped."""
        return "ended" if isinstance(self._frames[-1].events[-1], EngineStopped) else "open"

    @property
    def notes(self) -> list[str]:
        """What is missing of the journal, in words: deleted segments, lost events, an unfinished end."""
        return []

    def first(self) -> Moment:
        """The first moment whose state is known."""
        frame = self._frames[0]
        return Moment(frame.segment, frame.offset, 1)

    def last(self) -> Moment:
        """The newest one, as of the last `refresh`."""
        frame = self._frames[-1]
        return Moment(frame.segment, frame.offset, len(frame.events))

    def tick(self, moment: Moment) -> Tick:
        """Its step and time."""
        keyframe = self.keyframe(moment).keyframe
        return Tick(keyframe.step, keyframe.t)

    def at_step(self, step: int) -> Moment:
        """As of `Source`."""
        for frame in self._frames:
            moment = Moment(frame.segment, frame.offset, len(frame.events))
            if self.tick(moment).step >= step:
                return moment
        return self.last()

    def at_time(self, t: int) -> Moment:
        """As of `Source`."""
        found = self.first()
        for frame in self._frames:
            moment = Moment(frame.segment, frame.offset, len(frame.events))
            if self.tick(moment).t <= t:
                found = moment
        return found

    def move(self, moment: Moment, steps: int) -> Moment:
        """As of `Source`."""
        return self.at_step(self.tick(moment).step + steps)

    def find(self, moment: Moment, predicate: Predicate | None, forward: bool) -> EventRow | None:
        """As of `Source`."""
        rows = self._rows(self.last(), predicate)
        if forward:
            return next((row for row in rows if row.moment > moment), None)
        return next((row for row in reversed(rows) if row.moment < moment), None)

    def keyframe(self, moment: Moment) -> State:
        """The state at a moment.

        Raises:
            JournalError: the journal is damaged there.
            InspectError: events were lost there, and the state is not known.
        """
        state = EngineState()
        for row in self._rows(moment, None):
            state.apply(row.event)
        if not state.joined:
            raise InspectError("the state is not known there")
        return State(state.to_keyframe(), state.is_order_sure, state.stopped)

    def steps(self, moment: Moment, limit: int = STEPS_SHOWN) -> list[StepRow]:
        """The last steps up to a moment, oldest first."""
        log = StepLog(limit)
        log.apply_all(row.event for row in self._rows(moment, None))
        return log.rows()

    def events(self, moment: Moment, limit: int = EVENTS_SHOWN, predicate: Predicate | None = None) -> list[EventRow]:
        """The last events up to a moment, oldest first."""
        return self._rows(moment, predicate)[-limit:]

    def story(self, moment: Moment, seq: int) -> Story | None:
        """As of `Source`."""
        return None

    def _rows(self, moment: Moment, predicate: Predicate | None) -> list[EventRow]:
        found = []
        step = t = 0
        for frame in self._frames:
            for index, event in enumerate(frame.events):
                after = Moment(frame.segment, frame.offset, index + 1)
                step, t = getattr(event, "step", step), getattr(event, "t", t)
                if after <= moment and (predicate is None or predicate.matches(event)):
                    found.append(EventRow(after, step, t, event))
        return found
