"""W11: reference counts that begin at the wrong number go below zero, and blocks never come back."""

from __future__ import annotations

import random

import pytest

from fake_engine import FakeEngine, solo


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("batching", ["mixed", "prefill_first"])
def test_after_two_hundred_random_requests_every_block_is_free(overlap: bool, batching: str) -> None:
    rng = random.Random(11)
    engine = FakeEngine(num_blocks=16, block_size=4, overlap=overlap, batching=batching, max_num_seqs=6)
    blocks = engine.core.blocks
    prefixes = [[rng.randrange(1000) for _ in range(20)] for _ in range(3)]
    prompts, aborted = {}, set()
    for _ in range(200):
        shared = rng.choice(prefixes)[: rng.randrange(21)]
        own = [rng.randrange(1000) for _ in range(rng.randrange(1, 21))]
        prompt = [*shared, *own]
        name = engine.add(prompt, rng.randrange(1, 15))
        prompts[name] = prompt
        if rng.random() < 0.2:
            aborted.add(name)
        for _ in range(rng.randrange(4)):
            engine.step()
            held = {block for seq in engine.snapshot().sequences for block in seq.block_table}
            assert blocks.num_free + len(held) == 16
            assert len(held) == sum(1 for count in blocks.refs if count)
        for victim in [name for name in aborted if rng.random() < 0.3]:
            engine.abort(victim)
    engine.run()
    assert engine.outputs.keys() == prompts.keys()
    for name, prompt in prompts.items():
        [out] = engine.outputs[name].outputs
        assert out.finish_reason == "length" or name in aborted
        assert out.token_ids == solo(prompt, len(out.token_ids))
    assert sorted(blocks.free) == list(range(16)) and blocks.refs == [0] * 16
