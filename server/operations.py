"""What the routes that look at and steer a server share. Knows no HTTP but how a request finds it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Request

from ..errors import NanolensError
from .admission import QueueAdmission
from .errors import ApiError
from .server_metrics import ServerMetrics
from .state import ServerState

if TYPE_CHECKING:
    from .health import EngineWatch

MARK_EVERY_S = 1.0  # at most one note of back-pressure in the journal in this time

T = TypeVar("T")

logger = logging.getLogger("nanolens.server")


@dataclass
class Operations:
    """One server, as those who run it see it.

    Attributes:
        state: what all routes share.
        admission: who is let in.
        watch: whether the engine lives.
        metrics: the server's own.
        stopping: set when streams that never end by themselves have to.
        journal_streams: open streams of the journal.
        stepping: held while steps are done that somebody asked for; the next ones wait for it, in order.
    """

    state: ServerState
    admission: QueueAdmission
    watch: EngineWatch
    metrics: ServerMetrics
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    journal_streams: int = 0
    stepping: asyncio.Lock = field(default_factory=asyncio.Lock)
    clock: Callable[[], float] = time.monotonic
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    _last_mark: float = -1e9

    def in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something that nobody waits for; what the engine has against it is dropped."""

        async def do() -> None:
            with contextlib.suppress(NanolensError):
                await work

        task = asyncio.get_running_loop().create_task(do())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def ask(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for an answer of the engine, unless it is known to hang, for at most as long as it takes to see that.

        Raises:
            ApiError: 503, why there is no answer.
        """
        if self.state.engine.is_alive and (silence := self.watch.silence()):  # one that has ended says how
            work.close()
            raise ApiError(503, f"{silence}; see /health", code="engine_silent")
        return await self.state.ask(work, self.watch.stall_s)

    def on_stall(self, request_id: str, seconds: float, pieces: int) -> None:
        """A reader of a stream was slow: count it, and note it in the journal, at most once a second."""
        self.metrics.stalls += 1
        self.metrics.stall_seconds += seconds
        now = self.clock()
        if now - self._last_mark < MARK_EVERY_S or not self.state.engine.is_alive:
            return
        self._last_mark = now
        text = f"stream {request_id}: its reader held it up for {seconds:.2f} s, {pieces} pieces waited"
        self.in_background(self.state.engine.mark(text, "back-pressure"))


def operations_of(request: Request) -> Operations:
    """The operations of the server that a request came to."""
    found = request.app.state.operations
    if not isinstance(found, Operations):
        raise RuntimeError("the application was not made by make_app")
    return found
