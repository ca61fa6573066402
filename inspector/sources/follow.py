"""Follows a journal that grows, in a thread: the engine's state, its last steps and events, ready to be shown.

What it shows costs the same however long the journal is. Knows files; neither HTTP nor terminals.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from ...errors import AuditError, InspectError, JournalError
from ...telemetry.engine_process import is_of_another_clock, is_running, is_stopped, written_elsewhere
from ...telemetry.events import Keyframe
from ...telemetry.reader import Frame, JournalReader, Position
from ...telemetry.state import EngineState
from ..history.step_log import StepLog
from ..view import EVENTS_SHOWN, EventRow, Moment, SourceStatus, Tick, View

LOOK_S = 0.5  # between looks at whether the engine's process is there
FORGET_S = 5.0  # after its end without engine.stopped, until nothing more is waited for
FIRST_VIEW_S = 20.0  # for the journal's end to be reached


class Follower:
    """The newest state of one run.

    Args:
        path: a journal's directory, or one segment.
        run: the run; None: the one written to last.
        watch_process: whether the engine is a process of this machine, whose end can be seen.

    Attributes:
        run: the id of the run.
        place: path and run, for another reader.

    Raises:
        InspectError: there is no journal.
    """

    def __init__(self, path: str | Path, run: str | None = None, watch_process: bool = True) -> None:
        try:
            self._reader = JournalReader(path, run)
        except JournalError as error:
            raise InspectError(str(error)) from error
        self.run = self._reader.run
        self.place = str(path), self.run
        self._watch_process = watch_process
        self._lock = threading.Lock()
        self._state, self._steps = EngineState(), StepLog()
        self._events: deque[EventRow] = deque(maxlen=EVENTS_SHOWN)
        self._moment: Moment | None = None
        self._shown: tuple[Moment, Keyframe] | None = None  # the last keyframe that was made
        self._gone = 0.0  # since when the engine's process is known to be gone; monotonic seconds
        self._is_stopped = False  # the engine's process is there, but stopped
        self._elsewhere = ""  # where it writes, if this is a copy
        self._looked = 0.0
        self._error = ""
        self._changed = time.time()  # when the source's state became what it is
        self._caught_up, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"follow {self.run}", daemon=True)

    def start(self, begin: Callable[[JournalReader], Position] | None = None) -> None:
        """Begin to read.

        Args:
            begin: finds where; None: at the newest frame with the whole state.
        """
        self._begin = begin or JournalReader.last_keyframe
        self._thread.start()

    def close(self) -> None:
        """Stop reading. May be called again."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def status(self) -> SourceStatus:
        """Live until the engine stopped in order (ended), its process is gone (dead) or stopped (stale), or reading
        failed (dead). A copy of what a running engine writes elsewhere is stale.
        """
        if self._state.stopped is not None:
            return SourceStatus("ended", self._changed, f"the engine stopped: {self._state.stopped.reason}")
        if self._gone:
            return SourceStatus("dead", self._changed, "the engine's process is gone, and did not stop in order")
        if self._error:
            return SourceStatus("dead", self._changed, self._error)
        if self._elsewhere:
            return SourceStatus("stale", self._changed, f"a copy; its engine still writes to {self._elsewhere}")
        if self._is_stopped:
            return SourceStatus("stale", self._changed, "the engine's process has been stopped (SIGSTOP)")
        return SourceStatus("live" if self._caught_up.is_set() else "connecting", self._changed)

    @property
    def died_at(self) -> Moment | None:
        """The journal's last moment, where the engine's process is gone without an end."""
        with self._lock:
            return self._moment if self._gone and self._state.stopped is None else None

    @property
    def last_tick(self) -> Tick | None:
        """The newest event's; None before there is any."""
        with self._lock:
            return self._now() if self._moment is not None else None

    def view(self, first: Tick | None = None, status: SourceStatus | None = None) -> View:
        """The newest state. Waits until the journal's end has been reached once.

        Args:
            first: where the journal begins; None: where this began to read.
            status: of the source; None: what is seen from here.

        Raises:
            InspectError: there is nothing to show.
        """
        self._caught_up.wait(FIRST_VIEW_S)
        with self._lock:
            moment = self._moment
            if self._state.joined and moment is not None and (self._shown is None or self._shown[0] != moment):
                self._shown = moment, self._state.to_keyframe()
            shown = self._shown
            if shown is None:
                raise InspectError(self._error or f"run {self.run}: nothing to show yet")
            steps, events = self._steps.rows(), list(self._events)
            is_order_sure, stopped, now = self._state.is_order_sure, self._state.stopped, self._now()
        status = status or self.status
        return View(
            moment=shown[0], is_live=True, keyframe=shown[1], steps=steps, events=events, is_order_sure=is_order_sure,
            stopped=stopped, first=first or now, last=now, status=status, later_ns=silence(shown[1], status),
        )  # fmt: skip

    def _now(self) -> Tick:
        return Tick(self._state.step, self._state.t)

    def _follow(self) -> None:
        """Read to the end and wait for more, until the engine is gone or nobody wants to know."""
        try:
            start = self._begin(self._reader)
            for frame in self._reader.frames(start, follow=True, stop=self._at_end):
                self._take(frame)
                if self._stop.is_set():
                    return
        except JournalError as error:
            self._error, self._changed = str(error), time.time()
        finally:
            if self._state.stopped is not None:
                self._changed = time.time()
            self._caught_up.set()

    def _take(self, frame: Frame) -> None:
        with self._lock:
            if frame.gap:
                self._state.lose()
                self._steps.lose()
            for count, event in enumerate(frame.events, 1):
                try:
                    self._state.apply(event)
                except AuditError:
                    self._state.lose()  # until the next keyframe
                self._steps.apply(event)
                if event.__class__ is not Keyframe:
                    t = getattr(event, "t", self._state.t)
                    moment = Moment(frame.segment, frame.offset, count)
                    self._events.append(EventRow(moment, self._state.step, t, event))
            self._moment = Moment(frame.segment, frame.offset, len(frame.events))
            if self._gone:
                self._gone, self._changed = 0.0, time.time()  # written by a process that can't be seen from here

    def _at_end(self) -> bool:
        """At the journal's end: whether to stop waiting."""
        now = time.monotonic()
        if self._watch_process and now - self._looked >= LOOK_S:
            self._looked = now
            started = self._state.started
            if not self._gone and started is not None and not is_running(started):
                if not is_of_another_clock(started, self._state.t):
                    self._gone, self._changed = now, time.time()
            elsewhere = written_elsewhere(started, Path(self.place[0])) if started and not self._gone else ""
            if elsewhere != self._elsewhere:
                self._elsewhere, self._changed = elsewhere, time.time()
            is_stopped_now = started is not None and not self._gone and is_stopped(started)
            if is_stopped_now != self._is_stopped:
                self._is_stopped, self._changed = is_stopped_now, time.time()
        if not self._caught_up.is_set():
            self._changed = time.time()
            self._caught_up.set()
        return self._stop.is_set() or (self._gone > 0 and now - self._gone > FORGET_S)


def silence(keyframe: Keyframe, status: SourceStatus) -> int:
    """Nanoseconds that have passed since a keyframe, by the wall clock, as far as the engine is known to have lived.

    Args:
        keyframe: the newest state.
        status: of its source. Of one that is stale, nothing is known since its last sign.
    """
    if status.state == "live":
        wall_ns = time.time_ns()
    elif status.state == "stale":
        wall_ns = round(status.since * 1e9)
    else:
        return 0
    return max(0, wall_ns - keyframe.started.wall_offset_ns - keyframe.t)
