"""W01: a prompt whose every block is cached leaves nothing to compute: a query of length zero crashes the model."""

from __future__ import annotations

import pytest

from fake_engine import FakeEngine, solo
from nanolens.telemetry.events import PrefixMatched, RequestFinished, StepPlanned


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("batching", ["mixed", "prefill_first"])
def test_a_fully_cached_prompt_computes_its_last_tokens(overlap: bool, batching: str) -> None:
    prompt = list(range(8))
    engine = FakeEngine(block_size=4, overlap=overlap, batching=batching)
    first = engine.add(prompt, 8)
    engine.run()
    again = engine.add(prompt, 1)
    engine.run()
    assert engine.ids(again) == engine.ids(first)[:1] == solo(prompt, 1)
    assert engine.of(RequestFinished)[1].num_cached_tokens == 4
    assert engine.outputs[again].metrics is not None and engine.outputs[again].metrics.num_cached_tokens == 4
    assert engine.of(PrefixMatched)[1].hit == 4
    assert engine.of(StepPlanned)[-1].chunks == [(1, 4, 4)]


@pytest.mark.parametrize("length", range(1, 18))
def test_every_repeated_prompt_computes_at_least_one_token(length: int) -> None:
    prompt = list(range(length))
    engine = FakeEngine(block_size=4)
    for _ in range(3):
        name = engine.add(prompt, 6)
        engine.run()
        assert engine.ids(name) == solo(prompt, 6)
    for matched in engine.of(PrefixMatched)[1:]:
        assert matched.hit == (length - 1) // 4 * 4 < length
