"""Penalties, biases and masks on logits, and log-probabilities."""

from __future__ import annotations

import pytest
import torch

from nanolens.kernels.logprobs import token_logprobs
from nanolens.kernels.penalties import apply_logit_bias, apply_penalties, mask_tokens

START = [4.0, -4.0, 4.0, -4.0, 4.0, -4.0, 0.0, -torch.inf]
#        prompt     output     both       neither: tokens 6 and 7
PROMPT = [1, 1, 0, 0, 1, 1, 0, 0]
OUTPUT = [0, 0, 1, 3, 2, 1, 0, 0]


def penalised(presence: float = 0.0, frequency: float = 0.0, repetition: float = 1.0) -> list[float]:
    logits = torch.tensor([START])
    apply_penalties(
        logits,
        torch.tensor([PROMPT], dtype=torch.bool),
        torch.tensor([OUTPUT], dtype=torch.int32),
        torch.tensor([presence]),
        torch.tensor([frequency]),
        torch.tensor([repetition]),
    )
    return logits[0].tolist()


def test_neutral_penalties_change_no_bit() -> None:
    assert penalised() == START


def test_presence_is_taken_once_from_what_was_generated() -> None:
    assert penalised(presence=0.5) == [4.0, -4.0, 3.5, -4.5, 3.5, -4.5, 0.0, -torch.inf]


def test_frequency_is_taken_for_each_generated_occurrence() -> None:
    assert penalised(frequency=0.5) == [4.0, -4.0, 3.5, -5.5, 3.0, -4.5, 0.0, -torch.inf]


def test_repetition_divides_positive_and_multiplies_negative_logits_of_prompt_and_output() -> None:
    assert penalised(repetition=2.0) == [2.0, -8.0, 2.0, -8.0, 2.0, -8.0, 0.0, -torch.inf]


def test_repetition_comes_before_the_others() -> None:
    assert penalised(presence=1.0, frequency=1.0, repetition=2.0)[2:5] == [0.0, -12.0, -1.0]


@pytest.mark.parametrize("before, halved", [(3.0, 1.5), (-3.0, -6.0)])
def test_a_token_five_times_in_the_prompt_feels_repetition_only(before: float, halved: float) -> None:
    """Before any output; then once generated, however often the prompt held it."""
    mask, none, once = torch.tensor([[True, False]]), torch.tensor([[0, 0]]), torch.tensor([[1, 0]])
    off, two, neutral = torch.zeros(1), torch.full((1,), 2.0), torch.ones(1)

    def first(counts: torch.Tensor, presence: torch.Tensor, frequency: torch.Tensor, repetition: torch.Tensor) -> float:
        logits = torch.tensor([[before, 1.0]])
        return float(apply_penalties(logits, mask, counts, presence, frequency, repetition)[0, 0])

    assert first(none, two, off, neutral) == before
    assert first(none, off, two, neutral) == before
    assert first(none, off, off, two) == halved
    assert first(once, off, two, neutral) == before - 2.0
    assert first(once, off, off, two) == halved


def test_rows_have_penalties_of_their_own() -> None:
    logits, prompt = torch.ones(2, 2), torch.zeros(2, 2, dtype=torch.bool)
    counts = torch.tensor([[1, 0], [1, 0]])
    apply_penalties(logits, prompt, counts, torch.tensor([0.0, 1.0]), torch.zeros(2), torch.ones(2))
    assert logits.tolist() == [[1.0, 1.0], [0.0, 1.0]]


def test_biases_add_up() -> None:
    logits = torch.zeros(2, 3)
    apply_logit_bias(logits, torch.tensor([0, 1, 1]), torch.tensor([2, 0, 0]), torch.tensor([5.0, 1.0, -3.0]))
    assert logits.tolist() == [[0.0, 0.0, 5.0], [-2.0, 0.0, 0.0]]


def test_masked_tokens_are_minus_infinity_whatever_their_bias() -> None:
    logits = torch.zeros(2, 3)
    rows, tokens = torch.tensor([1, 0, 1]), torch.tensor([2, 0, 2])
    apply_logit_bias(logits, rows, tokens, torch.full((3,), 100.0))
    mask_tokens(logits, rows, tokens)
    assert logits.tolist() == [[-torch.inf, 0.0, 0.0], [0.0, 0.0, -torch.inf]]


def test_no_pairs_change_nothing() -> None:
    none = torch.empty(0, dtype=torch.int64)
    logits = torch.zeros(1, 3)
    apply_logit_bias(logits, none, none, torch.empty(0))
    mask_tokens(logits, none, none)
    assert logits.tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logprobs_equal_float64_log_softmax(dtype: torch.dtype) -> None:
    logits = (torch.randn(5, 300, generator=torch.Generator().manual_seed(1)) * 4).to(dtype)
    tokens = torch.tensor([0, 299, 17, 5, 5])
    expected = logits.double().log_softmax(-1)
    out = token_logprobs(logits, tokens, 7)
    torch.testing.assert_close(out.chosen.double(), expected[torch.arange(5), tokens], rtol=0, atol=1e-5)
    best = expected.topk(7)
    torch.testing.assert_close(out.top_logprobs.double(), best.values, rtol=0, atol=1e-5)
    assert torch.equal(logits.gather(1, out.top_ids), logits.gather(1, best.indices))
    for row, token in enumerate(tokens.tolist()):
        assert int(out.ranks[row]) == 1 + int((logits[row] > logits[row, token]).sum())


def test_the_best_token_has_rank_one_and_leads_the_list() -> None:
    logits = torch.tensor([[0.0, 9.0, 3.0]])
    out = token_logprobs(logits, torch.tensor([1]), 2)
    assert out.ranks.tolist() == [1] and out.top_ids.tolist() == [[1, 2]]


def test_more_alternatives_than_tokens_gives_all_tokens() -> None:
    assert token_logprobs(torch.zeros(1, 3), torch.tensor([0]), 20).top_ids.shape == (1, 3)


def test_no_alternatives_gives_none() -> None:
    assert token_logprobs(torch.zeros(2, 3), torch.tensor([0, 1])).top_ids.shape == (2, 0)


def test_a_forbidden_token_has_logprob_minus_infinity() -> None:
    out = token_logprobs(torch.tensor([[0.0, -torch.inf]]), torch.tensor([1]), 2)
    assert out.chosen.tolist() == [-torch.inf] and out.ranks.tolist() == [2]
