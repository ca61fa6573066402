"""One turn of a request, from its start or a resume to its end or a pause, as an asynchronous stream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from ..errors import EngineDead, RequestFailed
from .outputs import Delta, RequestOutput


class Turn:
    """`async for delta in turn` gives the pieces of one turn; `await turn.result()` the whole of it.

    The turn ends when the request has ended, or when none of its sequences waits or runs and one is PAUSED; `output`
    tells which (`output.finished`). A paused request stays until it is resumed, finished, aborted or expires.

    Nothing is sent before the first item is asked for, or `start`. A turn that is left before its end (`aclose`, a
    cancelled task, no reference to it any more) aborts its request, with all its sequences. One task reads a turn.

    Iterating raises, after the last piece:
        RequestFailed: the request ended in ERROR; the message names the cause. (`result` returns it, in `error`.)
        EngineDead: the engine's process ended first; the message names how.

    Attributes:
        request_id: its name.
        output: the request as the turn left it; None until then.
    """

    def __init__(
        self, request_id: str, begin: Callable[[Turn, bool], Awaitable[None]], leave: Callable[[int], None]
    ) -> None:
        self.request_id = request_id
        self.output: RequestOutput | None = None
        self.stream = 0  # the engine's number for it, once it has begun
        self._begin = begin
        self._leave = leave
        self._has_begun = False
        self._is_open = False  # someone has to be told when it is left
        self._is_read = False  # its end was handed out
        self._death = ""
        self._deltas: deque[Delta] = deque()
        self._news = asyncio.Event()

    def __aiter__(self) -> Turn:
        return self

    async def __anext__(self) -> Delta:
        delta = await self._next(wants_deltas=True)
        if delta is not None:
            return delta
        if not self._is_read:
            self._is_read = True
            if self.output is not None and self.output.error is not None:
                raise RequestFailed(self.output.error)
        raise StopAsyncIteration

    async def result(self) -> RequestOutput:
        """Wait for the end of the turn; pieces that were not read are dropped.

        Raises:
            InvalidRequest, UnknownRequest, NotPaused: as `start`.
            EngineDead: the engine's process ended first, or the turn was closed.
        """
        while await self._next(wants_deltas=False) is not None:
            pass
        self._is_read = True
        if self.output is None:
            raise EngineDead(f"request {self.request_id} was left before its end")
        return self.output

    async def start(self) -> None:
        """Send the request, or the resume, now. Done once, and by the first item if not before.

        Raises:
            InvalidRequest: naming the field.
            UnknownRequest, NotPaused: of a resume.
            EngineDead: the engine has ended.
        """
        await self._start(wants_deltas=True)

    @property
    def num_waiting(self) -> int:
        """Pieces that have come and were not read yet."""
        return len(self._deltas)

    def drain(self) -> list[Delta]:
        """The pieces that have come and were not read yet: for a reader that fell behind."""
        deltas = list(self._deltas)
        self._deltas.clear()
        return deltas

    async def aclose(self) -> None:
        """Leave the turn; a request that has not come to its end, or a pause, is aborted."""
        self._is_read = True
        self._has_begun = True
        self._deltas.clear()
        self._abandon()

    def give_up(self, why: str) -> None:
        """End it here with an EngineDead, whatever the engine does, which aborts the request once it takes commands."""
        if self._is_open:
            self._leave(self.stream)
            self.end(None, why)

    def push(self, delta: Delta) -> None:
        """Take the next piece. For the engine."""
        self._deltas.append(delta)
        self._news.set()

    def end(self, output: RequestOutput | None, death: str = "") -> None:
        """Take the end: the output, or why there is none. For the engine."""
        self.output, self._death = output, death
        self._is_open = False
        self._news.set()

    async def _start(self, wants_deltas: bool) -> None:
        if self._has_begun:
            return
        self._has_begun = self._is_open = True
        try:
            await self._begin(self, wants_deltas)
        except Exception:
            self._is_open = False
            self._is_read = True
            raise
        except BaseException:
            self._abandon()
            raise

    async def _next(self, wants_deltas: bool) -> Delta | None:
        """The next piece; None after the last one."""
        await self._start(wants_deltas)
        while not self._deltas and self._is_open:
            self._news.clear()
            try:
                await self._news.wait()
            except BaseException:
                self._abandon()
                raise
        if self._deltas:
            return self._deltas.popleft()
        if self._death and not self._is_read:
            self._is_read = True
            raise EngineDead(self._death)
        return None

    def _abandon(self) -> None:
        if self._is_open:
            self._is_open = False
            self._news.set()
            self._leave(self.stream)

    def __del__(self) -> None:
        self._abandon()
