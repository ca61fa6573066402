"""How a replica ends what it runs when it is replaced or its fleet stops: the front tells it. Knows no Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum

from .ending import CUT_S, Ending

LOOK_S = 0.5  # between two questions to the front
ASK_S = 5.0  # for the answer to one
HEARD_S = 2 * LOOK_S + 0.2  # for a word of the front to be heard by every replica
END_S = CUT_S + 1.0  # for a replica that has heard that it has to end, and for its clients to get the ends
SURE = 2  # answers one after the other that say so, before a replica counts as left out

class Word(StrEnum):
    """What the front says to a replica."""

    GO_ON = ""
    LEFT_OUT = "left out"  # it is not among those that get calls, or not yet
    END = "end"  # the fleet stops, and its time to drain is over


class Retiring:
    """Listens to the front for one replica.

    Ray takes a replica that it stops off the list of those that get calls, and says nothing to the replica itself
    until all its calls have ended. So it asks: left out, it lets nobody in and ends after `drain_seconds` what still
    runs; told to end, it does so at once.

    Args:
        ending: of the replica's server.
        ask: the front's word. It may fail, as the front is being replaced: then all goes on.
        drain_seconds: that requests may take once the replica is left out.
    """

    def __init__(self, ending: Ending, ask: Callable[[], Awaitable[Word]], drain_seconds: float) -> None:
        self._ending, self._ask, self._drain_seconds = ending, ask, drain_seconds
        self._was_in = False
        self._times = 0  # that it was left out, one after the other

    async def run(self) -> None:
        """Listen until it is over, and end what runs."""
        while (word := await self._word()) is Word.GO_ON:
            await asyncio.sleep(LOOK_S)
        self._ending.refuse()
        if word is Word.END or not await self._drained():
            await self._ending.cut()
        self._ending.hang_up()

    async def _drained(self) -> bool:
        """Wait for what runs, until the time is up or the front says that the fleet ends: whether nothing is left."""
        told = asyncio.create_task(self._until_told())
        try:
            return await self._ending.idle_within(self._drain_seconds)
        finally:
            told.cancel()

    async def _until_told(self) -> None:
        """Hurry the wait once the front says so."""
        while await self._word() is not Word.END:
            await asyncio.sleep(LOOK_S)
        self._ending.hurry.set()

    async def _word(self) -> Word:
        """What holds now: a replica that was never in is not left out."""
        try:
            async with asyncio.timeout(ASK_S):
                word = await self._ask()
        except Exception:  # Ray's own, of many kinds
            return Word.GO_ON
        if word is not Word.LEFT_OUT:
            self._was_in, self._times = True, 0
            return word
        self._times += self._was_in
        return word if self._times >= SURE else Word.GO_ON
