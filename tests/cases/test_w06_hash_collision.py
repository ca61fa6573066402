"""W06: two prompts with an equal block hash: the second is silently answered from the first one's KV."""

from __future__ import annotations

import pytest

from fake_engine import FakeEngine, solo
from nanolens.telemetry.events import RequestFinished

A, B = list(range(8)), list(range(100, 108))


@pytest.mark.parametrize("overlap", [False, True])
def test_an_equal_hash_never_shares_another_prompts_blocks(overlap: bool) -> None:
    engine = FakeEngine(block_size=4, overlap=overlap)
    engine.core.blocks.prefixes.hash_block = lambda parent, tokens: b"constant"  # type: ignore[method-assign]
    first = engine.add(A, 6)
    engine.run()
    before = engine.core.blocks.prefixes.num_collisions
    second = engine.add(B, 6)
    engine.run()
    assert engine.of(RequestFinished)[1].num_cached_tokens == 0
    assert engine.core.blocks.prefixes.num_collisions == before + 1
    assert engine.ids(first) == solo(A, 6)
    fresh = FakeEngine(block_size=4, overlap=overlap)
    name = fresh.add(B, 6)
    fresh.run()
    assert engine.ids(second) == fresh.ids(name) == solo(B, 6)
