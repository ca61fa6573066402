"""W04: two equal prompts in one step: the second takes over the first one's entry in the cache, and blocks get lost."""

from __future__ import annotations

import pytest

from fake_engine import FakeEngine, solo
from nanolens.telemetry.events import PrefixMatched

PROMPT = list(range(8))


def check_blocks(engine: FakeEngine) -> None:
    state = engine.snapshot()
    held = {block for seq in state.sequences for block in seq.block_table}
    assert engine.core.blocks.num_blocks - len(state.free_blocks) == len(held)
    assert min(engine.core.blocks.refs) >= 0


@pytest.mark.parametrize("overlap", [False, True])
def test_twins_keep_their_own_blocks_and_a_third_copy_shares(overlap: bool) -> None:
    engine = FakeEngine(num_blocks=16, block_size=4, overlap=overlap)
    short, long = engine.add(PROMPT, 2), engine.add(PROMPT, 4)
    engine.step()
    assert len({seq.block_table[0] for seq in engine.snapshot().sequences}) == 2  # both were admitted, neither shares
    while short not in engine.outputs:
        engine.step()
        check_blocks(engine)
    third = engine.add(PROMPT, 4)
    while engine.step():
        check_blocks(engine)
    assert engine.ids(short) == solo(PROMPT, 2)
    assert engine.ids(long) == engine.ids(third) == solo(PROMPT, 4)
    assert engine.of(PrefixMatched)[-1].hit >= 4
    assert engine.core.blocks.num_free == 16 and engine.core.blocks.refs == [0] * 16


def test_what_follows_a_twin_is_found_after_the_other_twins_blocks_are_gone() -> None:
    engine = FakeEngine(num_blocks=12, block_size=4)
    longer = [*PROMPT, *solo(PROMPT, 8)]
    engine.add(PROMPT, 1)
    twin = engine.add(PROMPT, 12)
    for _ in range(10):
        engine.step()
    engine.add(list(range(500, 523)), 1)  # takes all that is free
    engine.run()
    assert engine.ids(twin) == solo(PROMPT, 12)
    engine.add(PROMPT, 1)
    engine.run()
    again = engine.add([*longer, 7], 3)
    engine.run()
    assert engine.ids(again) == solo([*longer, 7], 3)
    assert engine.core.blocks.prefixes.num_collisions == 0
