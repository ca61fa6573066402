"""One HTTP request's replies from the engine, from their start to their end, whoever ends them. Knows no JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from starlette.types import Receive

from ..engine.outputs import Delta, RequestOutput
from ..errors import EngineDead, NanolensError, RequestFailed
from .errors import ApiError
from .replies import Reply
from .shapes import Shape
from .state import ServerState

RETRY_S = 0.02
GRACE_S = 1.0  # behind a deadline, for the engine to end the request and to give what there is of it

T = TypeVar("T")
_News = asyncio.Queue[tuple[int, list[Delta], Exception | None]]


class ClientGone(Exception):
    """The client has closed the connection: nobody reads the answer."""


class Call:
    """The replies that answer one HTTP request. `close` is called in every case, and aborts what is left of them.

    Args:
        state: of the server.
        replies: not begun yet.
        shape: of the answer.
        timeout_s: they are ended then, with what they have; None: never.
        release: called once, when the call is closed.

    Attributes:
        timed_out: whether `timeout_s` ended it.
    """

    def __init__(
        self,
        state: ServerState,
        replies: Sequence[Reply],
        shape: Shape,
        timeout_s: float | None,
        release: Callable[[], None],
    ) -> None:
        self.replies = list(replies)
        self.shape = shape
        self.timed_out = False
        self._state = state
        self._release: Callable[[], None] | None = release
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        if timeout_s is not None:
            self._timer = asyncio.get_running_loop().call_later(timeout_s, self._expire)
        self._timeout_s = timeout_s
        self._over: asyncio.Future[ApiError] = asyncio.get_running_loop().create_future()
        state.calls.add(self)
        for reply in self.replies:
            state.replies[reply.request_id] = reply

    async def start(self) -> None:
        """Have the engine take all of them, to be streamed.

        Raises:
            InvalidRequest, UnknownRequest, NotPaused, EngineDead: of the first that it does not take.
            ApiError: of `give_up`.
        """
        await self._unless_over(asyncio.gather(*(reply.start() for reply in self.replies)))

    async def results(self) -> list[RequestOutput]:
        """Wait for the ends of all of them.

        Raises:
            RequestFailed: one of them ended in an error.
            InvalidRequest, UnknownRequest, NotPaused, EngineDead, ApiError: as `start`.
        """
        outputs = await self._unless_over(asyncio.gather(*(reply.result() for reply in self.replies)))
        for output in outputs:
            if output.error is not None:
                raise RequestFailed(output.error)
        return outputs

    @property
    def outputs(self) -> list[RequestOutput]:
        """What came of the replies, once all of them are over."""
        return [reply.output for reply in self.replies if reply.output is not None]

    @property
    def waiting(self) -> dict[str, int]:
        """Request of the engine -> its pieces that have come and were not read yet."""
        return {reply.request_id: reply.num_waiting for reply in self.replies}

    async def pieces(self) -> AsyncIterator[tuple[int, Delta]]:
        """The pieces of all replies as they come: place of the prompt, piece. What waited meanwhile comes joined.

        Raises:
            RequestFailed, EngineDead: as the first reply that does.
            ApiError: of `give_up`.
        """
        try:
            async for piece in self._pieces():
                yield piece
        except EngineDead:
            if self._over.done():
                raise self._over.result() from None
            raise

    async def _pieces(self) -> AsyncIterator[tuple[int, Delta]]:
        if len(self.replies) == 1:
            async for deltas in self.replies[0].pieces():
                for delta in deltas:
                    yield 0, delta
            return
        news: _News = asyncio.Queue(maxsize=1)
        for place, reply in enumerate(self.replies):
            self._spawn(_forward(place, reply, news))
        num_open = len(self.replies)
        while num_open:
            place, deltas, error = await news.get()
            if error is not None:
                raise error
            num_open -= not deltas
            for delta in deltas:
                yield place, delta

    def settle(self) -> None:
        """Let what pauses for its client be resumed. Done before the client is told of the pause."""
        replies = self._state.replies
        for reply in self.replies:
            if replies.get(reply.request_id) is not reply:
                continue  # settled before, and the next turn may be open already
            del replies[reply.request_id]
            if reply.output is not None and not reply.output.finished:
                self._state.remember_paused(reply.request_id, self.shape.for_resume(reply.request_id))

    def give_up(self, error: ApiError) -> None:
        """End what has not ended with an error, whatever the engine does."""
        if not self._over.done():
            self._over.set_result(error)
            for reply in self.replies:
                if reply.output is None:
                    reply.give_up(str(error))

    async def close(self) -> None:
        """Abort what has not ended, and let go of places and names. What pauses for its client stays."""
        release, self._release = self._release, None
        if release is None:
            return
        try:
            if self._timer is not None:
                self._timer.cancel()
            for reply in self.replies:
                await reply.close()
            for task in self._tasks:
                task.cancel()
        finally:
            self.settle()
            self._state.calls.discard(self)
            release()

    def _expire(self) -> None:
        self.timed_out = True
        for reply in self.replies:
            self._spawn(self._abort(reply))
        self._timer = asyncio.get_running_loop().call_later(GRACE_S, self._expire_here)

    def _expire_here(self) -> None:
        """The deadline of an engine that does not answer."""
        words = f"timeout: the request had {self._timeout_s:g} s, and the engine does not answer; see /health"
        self.give_up(ApiError(504, words, code="timeout"))

    async def _unless_over(self, work: asyncio.Future[T]) -> T:
        """Wait for something, but no longer than until `give_up`."""
        try:
            await asyncio.wait((work, self._over), return_when=asyncio.FIRST_COMPLETED)
            if self._over.done() and (not work.done() or work.exception() is not None):
                raise self._over.result()
            return work.result()
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _abort(self, reply: Reply) -> None:
        """End a request, which may be on its way to the engine only."""
        with suppress(NanolensError):  # the reply tells why
            while reply.output is None and not await self._state.engine.abort(reply.request_id):
                await asyncio.sleep(RETRY_S)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _forward(place: int, reply: Reply, news: _News) -> None:
    """Put a reply's pieces into a queue; an empty list is its end."""
    try:
        async for deltas in reply.pieces():
            if deltas:
                await news.put((place, deltas, None))
    except NanolensError as error:
        await news.put((place, [], error))
    else:
        await news.put((place, [], None))


async def until_gone(receive: Receive) -> None:
    """Wait until the client closes its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T:
    """Do something that is worth it only while the client is there.

    Raises:
        ClientGone: it has gone; the work was cancelled.
    """
    task, watcher = asyncio.ensure_future(work), asyncio.ensure_future(until_gone(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)
