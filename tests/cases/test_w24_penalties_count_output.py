"""W24: presence and frequency count generated tokens only, repetition the prompt's too, preempted or not."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from nanolens.engine.sampling_params import SamplingParams
from nanolens.telemetry.events import SequencePreempted
from real_engine import ids_of, preemptions, prompt_of, recorded, scripted_llm

T = 7  # the token that the prompt holds five times
POSITIVE = {T: 10.0, 8: 9.0, 9: 7.5, 10: 5.5, 11: 4.4, 12: 3.1}
NEGATIVE = {token: value - 12.0 for token, value in POSITIVE.items()}
PROMPT = [T, 1, T, 2, T, 3, T, 4, T]
COUNT = 22


def expected(table: dict[int, float], presence: float, frequency: float, repetition: float) -> list[int]:
    """Greedy tokens by the definitions of vLLM's documentation, from counts kept here."""
    output: list[int] = []
    for _ in range(COUNT):
        counts, seen = Counter(output), {*PROMPT, *output}

        def value(token: int, counts: Counter[int] = counts, seen: set[int] = seen) -> float:
            logit = table[token]
            if token in seen:
                logit = logit / repetition if logit > 0 else logit * repetition
            return logit - frequency * counts[token] - presence * (counts[token] > 0)

        output.append(max(table, key=value))
    return output


PENALTIES: list[dict[str, Any]] = [
    {"presence_penalty": 2.0},
    {"frequency_penalty": 2.0},
    {"repetition_penalty": 2.0},
    {"presence_penalty": 1.5, "frequency_penalty": 0.75, "repetition_penalty": 1.25},
    {"presence_penalty": -1.0, "frequency_penalty": -0.5, "repetition_penalty": 0.7},
]


def reference(table: dict[int, float], penalties: dict[str, float]) -> list[int]:
    return expected(
        table, penalties.get("presence_penalty", 0.0), penalties.get("frequency_penalty", 0.0),
        penalties.get("repetition_penalty", 1.0),
    )  # fmt: skip


def params(penalties: dict[str, Any]) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=COUNT, ignore_eos=True, **penalties)


@pytest.mark.parametrize("table", [POSITIVE, NEGATIVE], ids=["positive", "negative"])
@pytest.mark.parametrize("penalties", PENALTIES, ids=str)
def test_tokens_follow_the_definitions(table: dict[int, float], penalties: dict[str, Any]) -> None:
    with scripted_llm(lambda position, token: table) as llm:
        assert ids_of(llm.generate(PROMPT, params(penalties), use_tqdm=False))[0] == reference(table, penalties)


def test_the_first_token_shows_which_of_them_count_the_prompt() -> None:
    with scripted_llm(lambda position, token: POSITIVE) as llm:
        first = [ids_of(llm.generate(PROMPT, params(own), use_tqdm=False))[0][0] for own in PENALTIES[:3]]
    assert first == [T, T, 8]  # 10 halved by the repetition penalty falls behind 9


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("table", [POSITIVE, NEGATIVE], ids=["positive", "negative"])
@pytest.mark.parametrize("penalties", PENALTIES, ids=str)
def test_tokens_are_the_same_after_preemptions(
    table: dict[int, float], penalties: dict[str, Any], overlap: bool
) -> None:
    with scripted_llm(lambda position, token: table, num_blocks=11, overlap=overlap) as llm:
        events = recorded(llm)
        outputs = llm.generate(
            [prompt_of(9, 1), PROMPT], [params({"logit_bias": {20: 90.0}}), params(penalties)], use_tqdm=False
        )
    assert preemptions(events) > 0
    assert outputs[1].metrics is not None and outputs[1].metrics.num_preemptions > 0
    assert ids_of(outputs)[1] == reference(table, penalties)


def test_a_token_generated_once_before_a_preemption_counts_exactly_once_after_it() -> None:
    prompt_length, after = len(PROMPT), len(PROMPT) + 6
    tables = {
        prompt_length - 1: {T: 10.0},
        after: {T: 10.0, 8: 8.5},  # T at 8.0 if it counts once: falls behind; at 10.0 if not at all
        after + 1: {T: 10.0, 9: 7.0},  # T at 8.0 if it counts once: stays ahead; at 6.0 or less if more often
    }
    with scripted_llm(lambda position, token: tables.get(position, {30 + position: 1.0}), num_blocks=6) as llm:
        events = recorded(llm)
        outputs = llm.generate(
            [prompt_of(8, 1), PROMPT], [params({}), params({"frequency_penalty": 2.0})], use_tqdm=False
        )
    lost = [event.num_tokens for event in events if isinstance(event, SequencePreempted) and event.seq == 1]
    assert lost and prompt_length < lost[0] < after  # between the first T and the question
    found = ids_of(outputs)[1]
    assert (found[0], found[7], found[8]) == (T, 8, T)
