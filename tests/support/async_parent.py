"""A program for tests: it starts an AsyncEngine with a request that takes long, and ends in one of several ways.

Usage: async_parent.py JOURNAL MODE. Prints the engine's pid once the request has given a piece. MODE "waits" does
nothing more; "returns" ends the program without a close; "drops" lets go of the engine and waits.
"""

from __future__ import annotations

import asyncio
import gc
import sys

from fake_core import FakeAsyncEngine
from nanolens.engine.sampling_params import SamplingParams


async def main(journal: str, mode: str) -> None:
    """Do as MODE says."""
    engine = await FakeAsyncEngine.start("fake:0.01", journal=journal)
    turn = engine.generate([1, 2, 3], SamplingParams(max_tokens=200, temperature=0.0))
    await anext(turn)
    print(engine.pid, flush=True)
    if mode == "returns":
        return
    if mode == "drops":
        del engine, turn
        gc.collect()
    await asyncio.sleep(60)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
