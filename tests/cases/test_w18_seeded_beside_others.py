"""W18: a seeded request's tokens don't depend on its neighbours, its place in the batch, or how it is computed."""

from __future__ import annotations

from typing import Any

import pytest

from nanolens.engine.llm import LLM
from nanolens.engine.sampling_params import SamplingParams
from real_engine import ids_of, preemptions, prompt_of, recorded, tiny_llm

PROMPT = prompt_of(11)
SEEDED = SamplingParams(seed=42, temperature=0.8, max_tokens=16, ignore_eos=True)


def other(seed: int | None) -> SamplingParams:
    return SamplingParams(seed=seed, temperature=0.8, max_tokens=24, ignore_eos=True)


def beside(llm: LLM, params: SamplingParams) -> list[int]:
    """The seeded request's tokens, as the first of two."""
    return ids_of(llm.generate([PROMPT, prompt_of(7, 1)], [SEEDED, params], use_tqdm=False))[0]


@pytest.fixture(scope="module")
def alone() -> list[int]:
    with tiny_llm() as llm:
        found = ids_of(llm.generate(PROMPT, SEEDED, use_tqdm=False))[0]
    assert len(set(found)) > 8  # the temperature shows
    return found


@pytest.mark.parametrize("seed", [None, 43, 42])
def test_a_neighbour_changes_nothing(alone: list[int], seed: int | None) -> None:
    with tiny_llm() as llm:
        assert beside(llm, other(seed)) == alone


def test_the_place_in_the_batch_changes_nothing(alone: list[int]) -> None:
    with tiny_llm() as llm:
        outputs = llm.generate([prompt_of(7, 1), PROMPT], [other(None), SEEDED], use_tqdm=False)
    assert ids_of(outputs)[1] == alone


def test_a_neighbour_that_draws_differently_changes_nothing(alone: list[int]) -> None:
    rules = SamplingParams(temperature=1.5, top_p=0.7, top_k=20, presence_penalty=1.0, logprobs=3, max_tokens=24)
    with tiny_llm() as llm:
        assert beside(llm, rules) == alone


@pytest.mark.parametrize(
    "way",
    [{"max_prefill_chunk": 3}, {"overlap": True}, {"batching": "prefill_first"}, {"prefix_cache": False}],
    ids=str,
)
def test_the_way_of_computing_changes_nothing(alone: list[int], way: dict[str, Any]) -> None:
    with tiny_llm(**way) as llm:
        assert beside(llm, other(None)) == alone


def test_a_preemption_changes_nothing(alone: list[int]) -> None:
    with tiny_llm(num_blocks=9) as llm:
        events = recorded(llm)
        outputs = llm.generate([prompt_of(8, 1), PROMPT], [other(None), SEEDED], use_tqdm=False)
    assert preemptions(events) > 0
    assert outputs[1].metrics is not None and outputs[1].metrics.num_preemptions > 0
    assert ids_of(outputs)[1] == alone
