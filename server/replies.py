"""One request of the engine as its client sees it: a pause that an operator made is not the end of the stream.

Knows turns, no HTTP.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from ..engine.async_engine import AsyncEngine
from ..engine.outputs import CompletionOutput, Delta, RequestOutput
from ..engine.turn import Turn
from ..errors import NanolensError

HELD = frozenset({"operator", "breakpoint"})  # pauses that are not the client's: its stream waits for the resume
ABORT_S = 2.0  # for the engine to confirm an abort that nobody waits for
LOOK_S = 0.25  # between two looks at whether a request that is held still lives: it may expire


class Reply:
    """The turns of one request, until it ends or pauses for its client.

    Args:
        engine: that the request is for.
        turn: not begun yet.
        resumes: the turn is a later one of its request; what is told is of this turn alone.

    Attributes:
        request_id: the engine's name of it.
        output: what came of it; None until it is over.
    """

    def __init__(self, engine: AsyncEngine, turn: Turn, resumes: bool = False) -> None:
        self.request_id = turn.request_id
        self.output: RequestOutput | None = None
        self._engine = engine
        self._turn = turn
        self._later: deque[Turn] = deque()  # of resumes while it is open
        self._news = asyncio.Event()  # a later turn, or an end that no turn tells
        self._end: RequestOutput | None = None
        self._is_given_up = False
        self._told: dict[int, Delta] | None = {} if resumes else None

    @property
    def num_waiting(self) -> int:
        """Pieces that have come and were not read yet."""
        return self._turn.num_waiting

    async def start(self) -> None:
        """Send the request, or the resume.

        Raises:
            InvalidRequest, UnknownRequest, NotPaused, EngineDead: it is not taken.
        """
        await self._turn.start()

    async def pieces(self) -> AsyncIterator[list[Delta]]:
        """The pieces as they come, with those that have come meanwhile; of each index joined.

        Raises:
            RequestFailed, EngineDead: after the last one.
        """
        while True:
            async for delta in self._turn:
                found = joined([_bridged(each) for each in (delta, *self._turn.drain())])
                if self._told is not None:
                    for each in found:
                        _add(self._told, each)
                yield found
            output = self._turn.output
            if not _is_held(output):
                self._finish(output)
                return
            if not await self._held():
                yield [_ending(each) for each in output.outputs if not each.finished] if output is not None else []
                self._finish(self._end)
                return

    async def result(self) -> RequestOutput:
        """Wait for the end; a failed request has its `error`.

        Raises:
            InvalidRequest, UnknownRequest, NotPaused, EngineDead: as `start`, or the engine's end.
        """
        if self._told is not None:
            async for _ in self.pieces():
                pass
        else:
            output = await self._turn.result()
            while _is_held(output) and await self._held():
                output = await self._turn.result()
            self._finish(self._end or output)
        if self.output is None:
            raise RuntimeError(f"request {self.request_id} has no output at its end")
        return self.output

    async def resume(
        self, append: list[int] | None = None, max_tokens: int | None = None, index: int | None = None
    ) -> None:
        """Let go on what an operator paused; the pieces go to whoever reads this.

        Raises:
            UnknownRequest, NotPaused, InvalidRequest, EngineDead: it does not go on.
        """
        turn = self._engine.resume(self.request_id, append, max_tokens, index)
        self._later.append(turn)  # held, for a turn that nobody holds aborts its request
        try:
            await turn.start()
        except BaseException:
            self._later.remove(turn)
            raise
        self._news.set()

    def give_up(self, why: str) -> None:
        """End it here, for the engine does not: who waits for a turn gets an EngineDead."""
        self._is_given_up = True
        for turn in (self._turn, *self._later):
            turn.give_up(why)
        self._news.set()

    async def close(self) -> None:
        """Leave it: what has not come to its end is aborted. May be called again."""
        was_held = _is_held(self._turn.output) and self.output is None
        for turn in (self._turn, *self._later):
            await turn.aclose()
        if was_held:
            with suppress(NanolensError, TimeoutError):
                await asyncio.wait_for(self._engine.abort(self.request_id), ABORT_S)

    async def _held(self) -> bool:
        """Wait for the resume of what is held: whether there is one. Else `_end` is set."""
        while True:
            if self._later:
                self._turn = self._later.popleft()
                return True
            if self._is_given_up or not self._engine.has_request(self.request_id):
                self._end = _aborted(self._turn.output)
                return False
            self._news.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), LOOK_S)

    def _finish(self, output: RequestOutput | None) -> None:
        if output is not None and self._told is not None:
            output = replace(output, outputs=_of_pieces(output.outputs, self._told))
        self.output = output


def _is_held(output: RequestOutput | None) -> bool:
    return output is not None and any(each.pause_reason in HELD for each in output.outputs)


def _bridged(delta: Delta) -> Delta:
    """A piece without a pause that its client is not to see."""
    return replace(delta, pause_reason=None) if delta.pause_reason in HELD else delta


def _ending(each: CompletionOutput) -> Delta:
    return Delta(each.index, "", [], "abort")


def _aborted(output: RequestOutput | None) -> RequestOutput | None:
    """An output whose sequences were ended while they were paused."""
    if output is None:
        return None
    ended = [
        each if each.finished else replace(each, finish_reason="abort", pause_reason=None) for each in output.outputs
    ]
    return replace(output, outputs=ended, finished=True)


def _of_pieces(outputs: Sequence[CompletionOutput], pieces: Mapping[int, Delta]) -> list[CompletionOutput]:
    """Of each sequence what a turn gave, and how it left it."""
    return [
        replace(
            each,
            text=pieces[each.index].text,
            token_ids=pieces[each.index].token_ids,
            logprobs=None if each.logprobs is None else pieces[each.index].logprobs or [],
        )
        for each in outputs
        if each.index in pieces
    ]


def joined(deltas: Sequence[Delta]) -> list[Delta]:
    """Pieces with those of the same index put together, each at the place of its first."""
    if len(deltas) == 1:
        return list(deltas)
    found: dict[int, Delta] = {}
    for delta in deltas:
        _add(found, delta)
    return list(found.values())


def _add(found: dict[int, Delta], delta: Delta) -> None:
    """Put a piece behind those of its index; what is given stays as it is."""
    known = found.get(delta.index)
    if known is None:
        logprobs = None if delta.logprobs is None else list(delta.logprobs)
        found[delta.index] = replace(delta, token_ids=list(delta.token_ids), logprobs=logprobs)
        return
    known.text += delta.text
    known.token_ids += delta.token_ids
    known.finish_reason, known.stop_reason, known.pause_reason = (
        delta.finish_reason, delta.stop_reason, delta.pause_reason,
    )  # fmt: skip
    if delta.logprobs is not None:
        known.logprobs = known.logprobs or []
        known.logprobs += delta.logprobs
