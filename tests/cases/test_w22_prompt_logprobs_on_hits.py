"""W22: prompt log-probabilities are the cold ones when the prompt is cached, in any order, chunked, preempted."""

from __future__ import annotations

import random
from typing import Any

import pytest

from nanolens.engine.outputs import RequestOutput
from nanolens.engine.plan import TokenLogprobs
from real_engine import greedy, preemptions, prompt_of, recorded, tiny_llm

PROMPT = prompt_of(33)
OTHERS = [prompt_of(33, 1), prompt_of(20, 2), PROMPT[:32], PROMPT[:17] + prompt_of(9, 3)]
ASKED = greedy(4, prompt_logprobs=1)
BLOCK = 16


def entries(output: RequestOutput) -> list[TokenLogprobs | None]:
    assert output.prompt_logprobs is not None
    return output.prompt_logprobs


def check(output: RequestOutput, cold: list[TokenLogprobs | None]) -> None:
    """Same length, None at the front, and the cold values within 1e-4."""
    found = entries(output)
    assert len(found) == len(cold) == len(output.prompt_token_ids)
    assert found[0] is None
    for position, (one, other) in enumerate(zip(found[1:], cold[1:], strict=True), 1):
        assert one is not None and other is not None, f"position {position}"
        assert one.token_id == other.token_id == output.prompt_token_ids[position]
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert (one.rank, [token for token, _ in one.top]) == (other.rank, [token for token, _ in other.top])


@pytest.fixture(scope="module")
def cold() -> list[TokenLogprobs | None]:
    """Of the prompt alone, on a fresh engine."""
    with tiny_llm(block_size=BLOCK, prefix_cache=False) as llm:
        return entries(llm.generate(PROMPT, ASKED, use_tqdm=False)[0])


def test_a_warm_cache_gives_the_cold_values(cold: list[TokenLogprobs | None]) -> None:
    with tiny_llm(block_size=BLOCK) as llm:
        first, again = (llm.generate(PROMPT, ASKED, use_tqdm=False)[0] for _ in range(2))
        check(first, cold)
        check(again, cold)
        assert first.outputs[0].token_ids == again.outputs[0].token_ids


def test_a_cache_warmed_by_a_request_without_them_gives_the_cold_values(cold: list[TokenLogprobs | None]) -> None:
    with tiny_llm(block_size=BLOCK) as llm:
        llm.generate(PROMPT, greedy(4), use_tqdm=False)
        check(llm.generate(PROMPT, ASKED, use_tqdm=False)[0], cold)


WAYS: list[dict[str, Any]] = [{}, {"max_prefill_chunk": 7}, {"overlap": True}, {"batching": "prefill_first"}]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_any_order_beside_any_neighbour_gives_the_cold_values(
    cold: list[TokenLogprobs | None], way: dict[str, Any]
) -> None:
    with tiny_llm(block_size=BLOCK, **way) as llm:
        for seed in range(4):
            prompts = [*OTHERS, PROMPT]
            random.Random(seed).shuffle(prompts)
            params = [ASKED if prompt == PROMPT or seed % 2 else greedy(6) for prompt in prompts]
            check(llm.generate(prompts, params, use_tqdm=False)[prompts.index(PROMPT)], cold)


def test_siblings_share_the_cold_values(cold: list[TokenLogprobs | None]) -> None:
    with tiny_llm(block_size=BLOCK) as llm:
        check(llm.generate(PROMPT, greedy(4, prompt_logprobs=1, n=3), use_tqdm=False)[0], cold)


def test_a_preempted_prefill_and_its_return_give_the_cold_values(cold: list[TokenLogprobs | None]) -> None:
    with tiny_llm(block_size=4, num_blocks=14, max_prefill_chunk=2, max_num_seqs=2) as llm:
        events = recorded(llm)
        outputs = llm.generate([prompt_of(15, 4), PROMPT], [greedy(30), ASKED], use_tqdm=False)
    assert preemptions(events) > 0
    assert outputs[1].metrics is not None and outputs[1].metrics.num_preemptions > 0
    check(outputs[1], cold)
