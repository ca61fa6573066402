"""The end of what one server runs: nobody is let in, those that run may finish, and what is left is ended. No HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..errors import NanolensError
from ..telemetry.exporter_linger import ask_to_leave
from .calls import RETRY_S
from .errors import ApiError
from .operations import Operations

ABORT_S = 2.0  # for the engine to end what runs once the drain is over; one that takes longer counts as hanging
TELL_S = 1.0  # for clients to take the end of their answers; a connection that is stuck then is closed
EXPORTER_S = 3.0  # for the exporter to read the journal of an engine that is gone to its end
CLOSE_S = 30.0  # for an engine that answers to end its journal
CLOSE_HANGING_S = 2.0  # for one that does not, before it is killed
CUT_S = ABORT_S + 2 * TELL_S  # that `cut` takes at most


def nothing() -> None:
    """Nothing is to be done."""


class Ending:
    """Ends what one server runs.

    Args:
        operations: of the server.
        let_go: of clients that take nothing of their answers; called where requests end in an error.

    Attributes:
        hurry: set by whoever wants no more waiting.
    """

    def __init__(self, operations: Operations, let_go: Callable[[], object] = nothing) -> None:
        self.hurry = asyncio.Event()
        self._operations, self._let_go = operations, let_go
        self._engine = operations.state.engine

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        return self._operations.admission.in_flight

    def refuse(self) -> None:
        """Let nobody in from here on, and end what would never end by itself."""
        self._operations.admission.stop()
        self._operations.stopping.set()

    async def idle_within(self, seconds: float) -> bool:
        """Wait until no request is left, the time is up or someone hurries: whether none is left."""
        idle = asyncio.ensure_future(self._operations.admission.wait_idle())
        hurry = asyncio.ensure_future(self.hurry.wait())
        try:
            done, _ = await asyncio.wait((idle, hurry), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            return idle in done
        finally:
            idle.cancel()
            hurry.cancel()

    async def cut(self) -> None:
        """End every request with the reason "abort"; with an error, what the engine does not end within ABORT_S."""
        self.hurry.clear()
        if not (await self._abort_all() and await self.idle_within(TELL_S)):
            self._give_up()
            await self.idle_within(TELL_S)

    def hang_up(self) -> None:
        """Nobody waits for an answer of the engine any more."""
        self._operations.state.hung_up.set()

    async def close(self) -> bool:
        """Have the engine end its journal and its process: whether it did, and had not died before."""
        if not self._engine.is_alive:
            await self._engine.close()
        elif await self._close_within(CLOSE_S if await self._answers() else CLOSE_HANGING_S):
            return True
        await end_exporter(self._engine.metrics_port)
        return False

    async def _close_within(self, seconds: float) -> bool:
        """Close the engine; False: it was killed, after so many seconds or CLOSE_HANGING_S after someone hurried."""
        self.hurry.clear()
        closing = asyncio.ensure_future(self._engine.close(seconds))
        hurry = asyncio.ensure_future(self.hurry.wait())
        try:
            await asyncio.wait((closing, hurry), return_when=asyncio.FIRST_COMPLETED)
            in_time = closing.done() or await self._engine.close(CLOSE_HANGING_S)
            return await closing and in_time
        finally:
            hurry.cancel()

    async def _abort_all(self) -> bool:
        """Have the engine end every request that a client waits for, with the reason "abort": whether it has."""
        replies = self._operations.state.replies
        try:
            async with asyncio.timeout(ABORT_S):
                await asyncio.gather(*map(self._engine.abort, list(replies)))  # takes those on their way along
                while any(map(self._engine.has_request, replies)):
                    await asyncio.sleep(RETRY_S)
        except (NanolensError, TimeoutError):
            return False
        return True

    def _give_up(self) -> None:
        """End in an error what the engine has not ended, and let go of clients that take nothing."""
        error = ApiError(503, "the server stops, and the engine has not ended the request in time", code="stopping")
        for call in list(self._operations.state.calls):
            call.give_up(error)
        self._let_go()

    async def _answers(self) -> bool:
        """Whether the engine answers at all; it does between two steps."""
        try:
            await asyncio.wait_for(self._engine.progress(), ABORT_S)
        except (NanolensError, TimeoutError):
            return False
        return True


async def end_exporter(port: int | None) -> None:
    """Let go of the exporter of an engine that is gone: a server that ends leaves no process behind."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + EXPORTER_S
    while port is not None and loop.time() < deadline and not await asyncio.to_thread(ask_to_leave, port):
        await asyncio.sleep(RETRY_S)
