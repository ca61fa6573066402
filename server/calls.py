"""One HTTP request's turns in the engine, from their start to their end, whoever ends them. Knows no JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from starlette.types import Receive

from ..engine.outputs import Delta, RequestOutput
from ..engine.turn import Turn
from ..errors import NanolensError, RequestFailed
from .shapes import Shape
from .state import ServerState

T = TypeVar("T")


class ClientGone(Exception):
    """The client has closed the connection: nobody reads the answer."""


class Call:
    """The turns that answer one HTTP request. `close` is called in every case, and aborts what is left of them.

    Args:
        state: of the server.
        turns: not begun yet.
        shape: of the answer.
        timeout_s: they are ended then, with what they have; None: never.
        release: called once, when the call is closed.

    Attributes:
        timed_out: whether `timeout_s` ended it.
    """

    def __init__(
        self,
        state: ServerState,
        turns: Sequence[Turn],
        shape: Shape,
        timeout_s: float | None,
        release: Callable[[], None],
    ) -> None:
        self.turns = list(turns)
        self.shape = shape
        self.timed_out = False
        self._engine = state.engine
        self._release: Callable[[], None] | None = release
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        if timeout_s is not None:
            self._timer = asyncio.get_running_loop().call_later(timeout_s, self._expire)

    async def start(self) -> None:
        """Have the engine take all of them, to be streamed.

        Raises:
            InvalidRequest, UnknownRequest, NotPaused, EngineDead: of the first that it does not take.
        """
        await asyncio.gather(*(turn.start() for turn in self.turns))

    async def results(self) -> list[RequestOutput]:
        """Wait for the ends of all of them.

        Raises:
            RequestFailed: one of them ended in an error.
            InvalidRequest, EngineDead: as `start`.
        """
        outputs = list(await asyncio.gather(*(turn.result() for turn in self.turns)))
        for output in outputs:
            if output.error is not None:
                raise RequestFailed(output.error)
        return outputs

    @property
    def outputs(self) -> list[RequestOutput]:
        """What the turns left, once all of them have ended."""
        return [turn.output for turn in self.turns if turn.output is not None]

    async def pieces(self) -> AsyncIterator[tuple[int, Delta]]:
        """The pieces of all turns as they come: place of the turn, piece. What waited meanwhile comes joined.

        Raises:
            RequestFailed, EngineDead: as the first turn that does.
        """
        if len(self.turns) == 1:
            async for delta in self.turns[0]:
                for each in joined([delta, *self.turns[0].drain()]):
                    yield 0, each
            return
        news: asyncio.Queue[tuple[int, list[Delta], Exception | None]] = asyncio.Queue(maxsize=1)
        for place, turn in enumerate(self.turns):
            self._spawn(_forward(place, turn, news))
        open_turns = len(self.turns)
        while open_turns:
            place, deltas, error = await news.get()
            if error is not None:
                raise error
            open_turns -= not deltas
            for each in joined(deltas):
                yield place, each

    async def close(self) -> None:
        """Abort what has not ended, and let go of the call's places and names. May be called again."""
        release, self._release = self._release, None
        if self._timer is not None:
            self._timer.cancel()
        for turn in self.turns:
            await turn.aclose()
        for task in self._tasks:
            task.cancel()
        if release is not None:
            release()

    def _expire(self) -> None:
        self.timed_out = True
        for turn in self.turns:
            self._spawn(self._abort(turn.request_id))

    async def _abort(self, request_id: str) -> None:
        try:
            await self._engine.abort(request_id)
        except NanolensError:
            pass  # the turns tell why

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _forward(place: int, turn: Turn, news: asyncio.Queue[tuple[int, list[Delta], Exception | None]]) -> None:
    """Put a turn's pieces into a queue; an empty list is its end."""
    try:
        async for delta in turn:
            await news.put((place, [delta, *turn.drain()], None))
    except NanolensError as error:
        await news.put((place, [], error))
    else:
        await news.put((place, [], None))


def joined(deltas: Sequence[Delta]) -> list[Delta]:
    """Pieces with those of the same index put together, each at the place of its first."""
    if len(deltas) == 1:
        return list(deltas)
    found: dict[int, Delta] = {}
    for delta in deltas:
        known = found.get(delta.index)
        if known is None:
            logprobs = None if delta.logprobs is None else list(delta.logprobs)
            found[delta.index] = Delta(
                delta.index, delta.text, list(delta.token_ids), delta.finish_reason, delta.stop_reason, logprobs,
                delta.pause_reason,
            )  # fmt: skip
            continue
        known.text += delta.text
        known.token_ids += delta.token_ids
        known.finish_reason, known.stop_reason = delta.finish_reason, delta.stop_reason
        known.pause_reason = delta.pause_reason
        if delta.logprobs is not None:
            known.logprobs = [*(known.logprobs or ()), *delta.logprobs]
    return list(found.values())


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


