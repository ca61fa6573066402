"""A journal, live or past, as what screens ask of it. Reads files alone; knows no engine and no terminal."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Literal, NamedTuple

from ...telemetry.engine_process import is_running
from ...telemetry.events import EngineStarted, EngineStopped, Keyframe
from ...telemetry.predicate import Predicate
from ..view import EVENTS_SHOWN, STEPS_SHOWN, EventRow, Moment, StepRow, Story, Tick
from .frame_store import FrameStore
from .past import Past
from .search import Search, Wanted
from .states import States
from .ticks import Ticks

Ending = Literal["open", "ended", "dead"]


class State(NamedTuple):
    """The engine at a moment: the fields of a View that the `state` projection gives."""

    keyframe: Keyframe
    is_order_sure: bool
    stopped: EngineStopped | None


class History:
    """One run of a journal. Threads may share it: calls are answered one after the other.

    All but the constructor, `refresh`, `run`, `notes` and `close` raise InspectError where there is no state yet or
    it is not known, and JournalError where the journal is damaged or a segment has been deleted.

    Args:
        path: a journal's directory, or one segment file, which is then read alone.
        run: the run to read; None takes the one that was written to last.

    Attributes:
        run: the id of the run.

    Raises:
        JournalError: no journal, a newer version, no such run, damaged; in words.
    """

    def __init__(self, path: str | Path, run: str | None = None) -> None:
        self._lock = threading.RLock()
        self._store = FrameStore(path, run)
        self.run = self._store.run
        self._ticks = Ticks(self._store)
        self._states = States(self._store)
        self._search = Search(self._store, self._ticks)
        self._past = Past(self._store, self._ticks)
        self._started: EngineStarted | None = None

    def refresh(self) -> bool:
        """Take in what was written since; whether that is anything.

        Raises:
            JournalError: the newest segment can't be read.
        """
        with self._lock:
            return self._store.refresh()

    def close(self) -> None:
        """Let go of files and memory."""
        with self._lock:
            self._states.forget()
            self._store.close()

    @property
    def started(self) -> EngineStarted:
        """The run's first event, which keyframes hold too."""
        with self._lock:
            if self._started is None:
                last = self._store.last
                self._started = self._states.at(last, len(self._store.events(last))).started
            if self._started is None:
                self._started = self.keyframe(self.first()).keyframe.started
            return self._started

    @property
    def ending(self) -> Ending:
        """open: the engine's process is there; ended: it stopped in order; dead: it is gone without engine.stopped.

        The process is looked for on this machine.
        """
        with self._lock:
            events = self._store.events(self._store.last)
            if events and isinstance(events[-1], EngineStopped):
                return "ended"
            return "open" if is_running(self.started) else "dead"

    @property
    def notes(self) -> list[str]:
        """What is missing of the journal, in words: deleted segments, an unfinished frame at its end."""
        with self._lock:
            return self._store.missing()

    def first(self) -> Moment:
        """The first moment whose state is known."""
        with self._lock:
            return self._store.moment_of(*self._store.first_join())

    def last(self) -> Moment:
        """The newest one, as of the last `refresh`."""
        with self._lock:
            return self._store.moment_of(self._store.last)

    def tick(self, moment: Moment) -> Tick:
        """Its step and time."""
        with self._lock:
            return self._ticks.of(self._store.place_of(moment), moment.count)

    def at_step(self, step: int) -> Moment:
        """The end of the frame in which a step was planned; the nearest where there is no such step."""
        with self._lock:
            place = self._ticks.first_at_step(step)
            return self.last() if place is None else max(self._store.moment_of(place), self.first())

    def at_time(self, t: int) -> Moment:
        """The last moment at or before clock nanoseconds `t`; the first one where that is before the journal."""
        with self._lock:
            place = self._ticks.first_after(t)
            if place is None:
                return self.last()
            events = self._store.events(place)
            count = next((i for i, event in enumerate(events) if getattr(event, "t", 0) > t), len(events))
            earlier = self._store.before(place)
            found = self._store.moment_of(place, count) if count or earlier is None else self._store.moment_of(earlier)
            return max(found, self.first())

    def move(self, moment: Moment, steps: int) -> Moment:
        """So many steps on, or back where negative, to the end of that step's frame; the journal's ends beyond them."""
        with self._lock:
            found = self.at_step(self.tick(moment).step + steps)
            if steps > 0 and found <= moment:
                return self.last()
            if steps < 0 and found >= moment:  # its frame plans several steps, or steps are missing
                earlier = self._store.before(self._store.place_of(moment))
                step = self._ticks.at_end(earlier).step if earlier is not None else 0
                found = min(found, self.at_step(step)) if earlier is not None else self.first()
            return found

    def find(self, moment: Moment, predicate: Predicate | None, forward: bool) -> EventRow | None:
        """The next event after a moment, or the last one before it, that meets a predicate (None: any event).

        The event that a moment is just behind is not before it.
        """
        with self._lock:
            place, wanted = self._store.place_of(moment), Wanted(predicate)
            if forward:
                return self._search.forward(place, moment.count, wanted)
            rows = self._search.back(place, moment.count - 1, wanted, 1)
            return rows[0] if rows else None

    def keyframe(self, moment: Moment) -> State:
        """The state at a moment, whole: nothing of it changes later."""
        with self._lock:
            state = self._states.at(self._store.place_of(moment), moment.count)
            return State(state.to_keyframe(), state.is_order_sure, state.stopped)

    def steps(self, moment: Moment, limit: int = STEPS_SHOWN) -> list[StepRow]:
        """The last steps up to a moment, oldest first."""
        with self._lock:
            return self._past.steps(self._store.place_of(moment), moment.count, limit)

    def events(self, moment: Moment, limit: int = EVENTS_SHOWN, predicate: Predicate | None = None) -> list[EventRow]:
        """The last events up to a moment, oldest first; with a predicate, the last ones that meet it."""
        with self._lock:
            return self._search.back(self._store.place_of(moment), moment.count, Wanted(predicate), limit)

    def story(self, moment: Moment, seq: int, now_t: int = 0) -> Story | None:
        """A sequence up to a moment, or up to `now_t` without an event after it; None where it does not live then."""
        with self._lock:
            place = self._store.place_of(moment)
            state = self._states.at(place, moment.count)
            own = state.sequences.get(seq)
            if own is None:
                return None
            request, arrived_t = own.request, own.arrived_t
            return self._past.story(place, moment.count, seq, request, arrived_t, self.started, now_t)
