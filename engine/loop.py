"""One thread that owns an engine and steps it; any other thread sends it commands and gets answers.

Knows nothing of what a command does, nor of processes and pipes.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, TypeVar

from ..errors import EngineDead
from ..telemetry.clock import Clock, monotonic_ns
from .engine import Engine
from .request import describe

T = TypeVar("T")
_Command = tuple[Callable[[Engine], Any], "Future[Any]"]

BEAT_S = 1.0  # an idle loop turns at least this often, so that an old beat always means a turn that doesn't end
_SHORTEST_S = 0.001  # an idle loop sleeps at least this long: a deadline that a step leaves in place can't make it spin
_NS = 1_000_000_000

logger = logging.getLogger("nanolens.engine")


class EngineLoop:
    """Steps an engine in a thread of its own, the only one that touches it from here on.

    A turn of the loop takes every command that is queued, in the order of arrival, and then does a step, if there is
    work, a command was taken or a paused sequence is due to expire. Otherwise it sleeps until one of these is so, and
    looks every BEAT_S whether the engine could compute a step at all.

    `call` and `close` may be used from any thread, also from within a callback of the engine or a signal handler.
    A Ctrl-C doesn't reach the loop: Python delivers it to the main thread.

    Args:
        engine: nobody else may use it any more.
        on_turn: called in the loop's thread after each turn, and once more after the engine was closed.
        clock: nanoseconds, for the beat.

    Attributes:
        last_beat_t: clock ns at which the last turn began its work.
        ended: resolved when the thread ends, with why, in words. All commands have been answered by then.
    """

    def __init__(
        self, engine: Engine, *, on_turn: Callable[[], None] | None = None, clock: Clock = monotonic_ns
    ) -> None:
        self._engine = engine
        self._on_turn = on_turn
        self._clock = clock
        self._queue: SimpleQueue[_Command | None] = SimpleQueue()  # None: stop here
        self._refusal = ""  # why commands are no longer taken
        self.last_beat_t = clock()
        self.ended: Future[str] = Future()
        self._thread = threading.Thread(target=self._run, name="nanolens-loop", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # before the interpreter stops daemon threads: the journal ends in order

    @property
    def is_alive(self) -> bool:
        """Whether commands are still taken."""
        return not self._refusal and self._thread.is_alive()

    def age_s(self) -> float:
        """Seconds since the last turn began. Healthy: at most the longest step, or BEAT_S when there is no work."""
        return (self._clock() - self.last_beat_t) / _NS

    def call(self, function: Callable[[Engine], T]) -> Future[T]:
        """Run `function(engine)` between two steps.

        Returns:
            A future of its result or its exception; EngineDead, with the cause, where the loop ended before it was
            run. A future that is cancelled before its turn is skipped. The future's callbacks run in the loop's thread;
            nothing there may wait for a future of this loop.
        """
        future: Future[T] = Future()
        self._queue.put((function, future))
        if self._refusal:  # set before the loop's last look at the queue: one of the two finds this command
            self._refuse_queued()
        return future

    def close(self, timeout: float | None = None) -> bool:
        """Run what is queued, refuse what comes later, close the engine and wait for the thread. May be called again.

        Args:
            timeout: seconds to wait for a step that doesn't end; commands behind it are then answered by EngineDead.

        Returns:
            Whether the thread has ended. From within the loop's thread, False: it ends after this turn.
        """
        atexit.unregister(self.close)
        self._queue.put(None)
        if threading.current_thread() is self._thread:
            return False
        self._thread.join(timeout)
        if not self._thread.is_alive():
            return True
        self._refusal = f"the engine was asked to close and its loop has not turned for {self.age_s():.1f} s"
        self._refuse_queued()
        self._queue.put(None)
        return False

    def __enter__(self) -> EngineLoop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        why = "the engine is closed"
        try:
            while self._turn():
                pass
            self._refusal = why
            self._engine.close()
        except EngineDead as error:  # it has told why
            self._refusal = why = str(error)
            self._die(why)
        except BaseException as error:  # whatever it is, there is nobody above to tell
            why = f"the engine's loop failed: {describe(error)}"
            logger.critical("%s", why, exc_info=error)
            self._refusal = why
            self._die(why)
        finally:
            self._refuse_queued()
            self._tell_of_turn()
            self.ended.set_result(why)

    def _turn(self) -> bool:
        """Take commands, step; False once the loop shall end."""
        engine = self._engine
        first = self._next_command(self._sleep_s())
        self.last_beat_t = self._clock()
        if first is not None:
            for item in self._queued(first):
                if item is None:
                    return False
                self._run_command(*item)
        if first is not None or engine.has_work or self._is_due():
            engine.step()  # after a command also without work: what it recorded reaches the journal
        if not engine.has_work:
            engine.core.look()  # steps notice by themselves that none can be computed
        if self._on_turn is not None:
            self._on_turn()
        return True

    def _next_command(self, sleep_s: float) -> tuple[_Command | None] | None:
        """The next item of the queue, in a tuple, for None is an item; None when nothing came in time."""
        try:
            return (self._queue.get(timeout=sleep_s) if sleep_s else self._queue.get_nowait(),)
        except Empty:
            return None

    def _queued(self, first: tuple[_Command | None]) -> list[_Command | None]:
        """An item and those that are queued behind it now, up to a None; later ones wait for the next turn."""
        items = [*first]
        for _ in range(self._queue.qsize()):
            found = None if items[-1] is None else self._next_command(0.0)
            if found is None:
                break
            items += found
        return items

    def _run_command(self, function: Callable[[Engine], Any], future: Future[Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = function(self._engine)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    def _sleep_s(self) -> float:
        """Seconds to wait for a command: none while there is work."""
        if self._engine.has_work:
            return 0.0
        deadline = self._engine.next_deadline
        left = BEAT_S if deadline is None else (deadline - self._engine.core.clock()) / _NS
        return min(max(left, _SHORTEST_S), BEAT_S)

    def _is_due(self) -> bool:
        """Whether a paused sequence's time is up."""
        deadline = self._engine.next_deadline
        return deadline is not None and self._engine.core.clock() >= deadline

    def _refuse_queued(self) -> None:
        """Answer every queued command by EngineDead. Any thread may do this at the same time as another."""
        while (found := self._next_command(0.0)) is not None:
            if found[0] is not None and found[0][1].set_running_or_notify_cancel():
                found[0][1].set_exception(EngineDead(self._refusal))

    def _die(self, message: str) -> None:
        try:
            self._engine.die(message)
        except BaseException:
            logger.exception("the engine could not be ended in order")

    def _tell_of_turn(self) -> None:
        try:
            if self._on_turn is not None:
                self._on_turn()
        except BaseException:
            logger.exception("the last call of on_turn failed")
