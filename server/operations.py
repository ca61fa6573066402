"""What the routes that look at and steer a server share. Knows no HTTP but how a request finds it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Request

from ..errors import NanolensError
from .admission import QueueAdmission
from .errors import ApiError
from .server_metrics import ServerMetrics
from .stalls import StallNotes
from .state import ServerState

if TYPE_CHECKING:
    from .health import EngineWatch

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
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Nobody has been slow yet."""
        self._stalls = StallNotes(self._note_stall)

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

    def on_stall(self, waiting: Mapping[str, int], seconds: float) -> None:
        """A reader of a stream was slow: count it, and note it in the journal.

        Args:
            waiting: request of the engine -> its pieces that waited.
            seconds: how long it held the stream up.
        """
        self.metrics.stalls += 1
        self.metrics.stall_seconds += seconds
        self._stalls.add(waiting, round(seconds * 1e9))

    def on_stream_end(self, requests: Iterable[str]) -> None:
        """The stream of these requests of the engine is over: note what has not been noted."""
        self._stalls.end(requests)

    def _note_stall(self, request: str, stalled_ns: int, pieces: int, end_t: int) -> None:
        if self.state.engine.is_alive:
            self.in_background(self.state.engine.note_stall(request, stalled_ns, pieces, end_t))


def operations_of(request: Request) -> Operations:
    """The operations of the server that a request came to."""
    found = request.app.state.operations
    if not isinstance(found, Operations):
        raise RuntimeError("the application was not made by make_app")
    return found
