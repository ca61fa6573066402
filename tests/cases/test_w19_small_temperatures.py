"""W19: temperature 0 is greedy, and a tiny one is too where the best token stands out; nothing overflows."""

from __future__ import annotations

import math

import pytest

from nanolens.engine.llm import LLM
from nanolens.engine.outputs import CompletionOutput
from nanolens.engine.sampling_params import SamplingParams
from real_engine import prompt_of, tiny_llm

TEMPERATURES = [0.0, 1e-6, 1e-4, 1.0]
MARGIN = 0.01


@pytest.fixture(scope="module")
def outputs() -> dict[float, list[CompletionOutput]]:
    """Four prompts, each at four temperatures, in one batch."""
    prompts = [prompt_of(5 + i, i) for i in range(4)]
    pairs = [(prompt, temperature) for prompt in prompts for temperature in TEMPERATURES]
    params = [SamplingParams(temperature=t, max_tokens=32, logprobs=2, ignore_eos=True) for _, t in pairs]
    with tiny_llm(num_blocks=256) as llm:
        done = llm.generate([prompt for prompt, _ in pairs], params, use_tqdm=False)
    found: dict[float, list[CompletionOutput]] = {temperature: [] for temperature in TEMPERATURES}
    for (_, temperature), output in zip(pairs, done, strict=True):
        found[temperature].append(output.outputs[0])
    return found


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_every_number_is_finite_and_the_text_not_empty(
    outputs: dict[float, list[CompletionOutput]], temperature: float
) -> None:
    for output in outputs[temperature]:
        assert output.text and len(output.token_ids) == 32
        for entry in output.logprobs or []:
            assert all(math.isfinite(value) for value in (entry.logprob, *(p for _, p in entry.top)))


def test_zero_takes_the_likeliest_token_at_each_step(outputs: dict[float, list[CompletionOutput]]) -> None:
    for output in outputs[0.0]:
        assert output.token_ids == [entry.top[0][0] for entry in output.logprobs or []]


@pytest.mark.parametrize("temperature", [1e-6, 1e-4])
def test_a_tiny_temperature_takes_it_where_it_stands_out(
    outputs: dict[float, list[CompletionOutput]], temperature: float
) -> None:
    compared = 0
    for output in outputs[temperature]:
        for token, entry in zip(output.token_ids, output.logprobs or [], strict=True):
            if entry.top[0][1] - entry.top[1][1] > MARGIN:
                assert token == entry.top[0][0]
                compared += 1
    assert compared > 60


def test_one_does_not_always_take_it(outputs: dict[float, list[CompletionOutput]]) -> None:
    ranks = [entry.rank for output in outputs[1.0] for entry in output.logprobs or []]
    assert max(ranks) > 1


@pytest.mark.model
def test_the_embedded_model_writes_the_same_text_at_tiny_temperatures(smollm2: type[LLM]) -> None:
    llm = smollm2()
    params = [SamplingParams(temperature=t, max_tokens=8) for t in TEMPERATURES]
    question = [{"role": "user", "content": "What is the capital of France?"}]
    texts = [output.outputs[0].text for output in llm.chat([question] * 4, params, use_tqdm=False)]
    assert texts[0] == texts[1] == texts[2] == "The capital of France is Paris."
    assert texts[3]
