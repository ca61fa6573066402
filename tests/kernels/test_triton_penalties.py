"""Penalties, biases, masks and counts in Triton, interpreted, against their torch references."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from triton_interpreter import load_interpreter

load_interpreter()

from nanolens.kernels import penalties, triton_penalties  # noqa: E402


def occurrences(slots: int, vocab: int) -> tuple[Tensor, Tensor]:
    """A prompt mask and output counts, both mostly empty."""
    return torch.rand(slots, vocab) < 0.2, (torch.rand(slots, vocab) * 5 - 3).clamp(min=0).ceil().int()


def factors(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(rows), torch.randn(rows), torch.rand(rows) + 0.5


@pytest.mark.parametrize("vocab", [1, 63, 64, 201])
def test_penalties_of_every_row(vocab: int) -> None:
    logits = torch.randn(5, vocab + 3)[:, :vocab] * 3
    logits[0, 0] = -torch.inf
    mask, counts = occurrences(5, vocab)
    own = factors(5)
    expected = penalties.torch_apply_penalties(logits.clone(), mask, counts, *own)
    out = triton_penalties.apply_penalties(logits, mask, counts, *own, block=64)
    assert out is logits
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6)


def test_penalties_by_slot_leave_rows_without_one_as_they_are() -> None:
    logits, before = (torch.randn(4, 150) * 3).repeat(2, 1, 1)
    mask, counts = occurrences(6, 150)
    slots, own = torch.tensor([5, -1, 0, -1]), factors(4)
    logits[1, 3] = before[1, 3] = torch.inf
    expected = penalties.torch_apply_penalties(before.clone(), mask, counts, *own, slots)
    triton_penalties.apply_penalties(logits, mask, counts, *own, slots, block=64)
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(logits[[1, 3]], before[[1, 3]])
    assert not torch.equal(logits[[0, 2]], before[[0, 2]])


def test_neutral_penalties_change_no_bit() -> None:
    logits = torch.randn(3, 100) * 3
    before = logits.clone()
    triton_penalties.apply_penalties(logits, *occurrences(3, 100), torch.zeros(3), torch.zeros(3), torch.ones(3))
    assert torch.equal(logits, before)


def test_biases_add_up_and_padding_is_skipped() -> None:
    logits = torch.zeros(3, 4)
    rows, tokens = torch.tensor([0, 1, 1, -1, 2]), torch.tensor([2, 0, 0, 3, 3])
    values = torch.tensor([5.0, 1.0, -3.0, 7.0, -torch.inf])
    expected = penalties.torch_apply_logit_bias(logits.clone(), rows, tokens, values)
    assert torch.equal(triton_penalties.apply_logit_bias(logits, rows, tokens, values), expected)
    assert logits.tolist() == [[0, 0, 5, 0], [-2, 0, 0, 0], [0, 0, 0, -torch.inf]]


def test_biases_on_other_dtypes_are_refused_by_name() -> None:
    rows = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(TypeError, match="bfloat16"):
        triton_penalties.apply_logit_bias(torch.zeros(1, 4, dtype=torch.bfloat16), rows, rows, torch.ones(1))


def test_masked_tokens_are_minus_infinity_and_padding_is_skipped() -> None:
    logits = torch.randn(2, 5)
    rows, tokens = torch.tensor([1, -1, 0, 1]), torch.tensor([2, 1, 4, 2])
    expected = penalties.torch_mask_tokens(logits.clone(), rows, tokens)
    assert torch.equal(triton_penalties.mask_tokens(logits, rows, tokens), expected)
    assert logits.isinf().sum() == 2


@pytest.mark.parametrize("count", [penalties.count_tokens, triton_penalties.count_tokens])
def test_counting_skips_rows_without_slot_or_token(count: object) -> None:
    counts = torch.full((3, 4), 2, dtype=torch.int32)
    count(counts, torch.tensor([2, -1, 0, 1]), torch.tensor([3, 1, 0, -1]))  # type: ignore[operator]
    assert counts.tolist() == [[3, 2, 2, 2], [2, 2, 2, 2], [2, 2, 2, 3]]


def test_many_pairs_fill_several_programs() -> None:
    logits, counts = torch.zeros(300, 6), torch.zeros(300, 6, dtype=torch.int32)
    rows, tokens = torch.arange(300), torch.arange(300) % 6
    triton_penalties.apply_logit_bias(logits, rows, tokens, torch.ones(300))
    triton_penalties.count_tokens(counts, rows, tokens)
    assert torch.equal(logits, counts.float()) and int(counts.sum()) == 300
