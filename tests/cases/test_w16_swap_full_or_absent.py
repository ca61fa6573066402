"""W16: a swap space that is full, or that is not there, ends a preemption in a crash or a stand-still."""

from __future__ import annotations

from typing import Any

import pytest

from fake_engine import FakeEngine, solo
from nanolens.telemetry.events import SequencePreempted
from real_engine import greedy, ids_of, prompt_of, recorded, tiny_llm

A, B = list(range(9)), list(range(100, 109))
SPACES: dict[str, dict[str, Any]] = {
    "absent": {},
    "one host block": {"host_blocks": 1},
    "one disk block": {"disk_blocks": 1},
    "one of each": {"host_blocks": 1, "disk_blocks": 1},
}


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("mode", ["swap", "auto", "recompute"])
@pytest.mark.parametrize("space", SPACES)
def test_a_preemption_that_finds_no_slots_recomputes(space: str, mode: str, overlap: bool) -> None:
    engine = FakeEngine(num_blocks=6, block_size=4, preemption_mode=mode, overlap=overlap, **SPACES[space])
    a, b = engine.add(A, 10), engine.add(B, 10)
    engine.run()
    assert engine.ids(a) == solo(A, 10) and engine.ids(b) == solo(B, 10)
    preempted = engine.of(SequencePreempted)
    assert preempted and {event.mode for event in preempted} == {"recompute"}
    slots = engine.core.blocks.slots
    assert (len(slots.free_host), len(slots.free_disk)) == (slots.host_blocks, slots.disk_blocks)
    assert engine.core.recorder.totals.counts["swapped_out_blocks"] == 0
    engine.check_empty()


@pytest.mark.parametrize("overlap", [False, True])
def test_a_space_that_holds_one_of_two_takes_one_and_recomputes_the_other(overlap: bool) -> None:
    engine = FakeEngine(num_blocks=9, block_size=4, preemption_mode="swap", overlap=overlap, host_blocks=4)
    prompts = [list(range(100 * i, 100 * i + 9)) for i in range(3)]
    names = [engine.add(prompt, 16) for prompt in prompts]
    engine.run()
    assert [engine.ids(name) for name in names] == [solo(prompt, 16) for prompt in prompts]
    assert {event.mode for event in engine.of(SequencePreempted)} == {"swap", "recompute"}
    assert len(engine.core.blocks.slots.free_host) == 4
    engine.check_empty()


@pytest.mark.parametrize("host_blocks", [0, 1])
def test_a_real_model_gives_the_tokens_of_an_uncontended_run(host_blocks: int) -> None:
    prompts = [prompt_of(9), prompt_of(9, 1)]
    with tiny_llm() as llm:
        alone = ids_of(llm.generate(prompts, greedy(10), use_tqdm=False))
    with tiny_llm(num_blocks=6, host_blocks=host_blocks, preemption_mode="swap") as llm:
        events = recorded(llm)
        assert ids_of(llm.generate(prompts, greedy(10), use_tqdm=False)) == alone
        llm.engine.core.flush()
        assert {e.mode for e in events if isinstance(e, SequencePreempted)} == {"recompute"}
        assert len(llm.engine.core.blocks.slots.free_host) == host_blocks
