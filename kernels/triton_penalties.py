"""Penalties, biases, forbidden tokens and counts on a GPU: one launch each; rows that ask for none return at once."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .triton_launch import launch


@triton.jit
def _penalise(
    logits,
    stride,
    slots,
    prompt_mask,
    mask_stride,
    output_counts,
    counts_stride,
    presences,
    frequencies,
    repetitions,
    vocab,
    HAS_SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    slot = row
    if HAS_SLOTS:
        slot = tl.load(slots + row).to(tl.int64)
    if slot >= 0:
        tokens = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = tokens < vocab
        counts = tl.load(output_counts + slot * counts_stride + tokens, mask=inside, other=0)
        in_prompt = tl.load(prompt_mask + slot * mask_stride + tokens, mask=inside, other=0) != 0
        seen = in_prompt | (counts > 0)
        # Only the logits of tokens that have occurred are read and written.
        values = tl.load(logits + row * stride + tokens, mask=seen, other=0.0).to(tl.float32)
        factor = tl.zeros_like(values) + tl.load(repetitions + row)
        values = tl.where(values > 0, tl.div_rn(values, factor), values * factor)
        values -= tl.load(frequencies + row) * counts.to(tl.float32)
        values -= tl.where(counts > 0, tl.load(presences + row), 0.0)
        tl.store(logits + row * stride + tokens, values.to(logits.dtype.element_ty), mask=seen)


@triton.jit
def _add_at(logits, stride, rows, token_ids, values, size, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows + place, mask=place < size, other=-1).to(tl.int64)
    asked = row >= 0
    token = tl.load(token_ids + place, mask=asked, other=0)
    value = tl.load(values + place, mask=asked, other=0.0)
    tl.atomic_add(logits + row * stride + token, value, mask=asked)


@triton.jit
def _forbid_at(logits, stride, rows, token_ids, size, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows + place, mask=place < size, other=-1).to(tl.int64)
    asked = row >= 0
    token = tl.load(token_ids + place, mask=asked, other=0)
    low = tl.full([BLOCK], -float("inf"), tl.float32).to(logits.dtype.element_ty)
    tl.store(logits + row * stride + token, low, mask=asked)


@triton.jit
def _count(output_counts, stride, slots, token_ids, size, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots + place, mask=place < size, other=-1).to(tl.int64)
    token = tl.load(token_ids + place, mask=place < size, other=-1)
    asked = (slot >= 0) & (token >= 0)
    where = output_counts + slot * stride + token
    tl.store(where, tl.load(where, mask=asked, other=0) + 1, mask=asked)


def apply_penalties(
    logits: Tensor,
    prompt_mask: Tensor,
    output_counts: Tensor,
    presence: Tensor,
    frequency: Tensor,
    repetition: Tensor,
    slots: Tensor | None = None,
    *,
    block: int = 2048,
    num_warps: int = 4,
) -> Tensor:
    """See kernels/penalties.py. The last dimension of the matrices must be contiguous.

    Args:
        logits: changed in place, in any floating dtype.
        prompt_mask: as there.
        output_counts: as there.
        presence: as there.
        frequency: as there.
        repetition: as there.
        slots: as there.
        block: tokens per program, a power of two.
        num_warps: of a program.
    """
    rows, vocab = logits.shape
    if rows:
        launch(_penalise, (triton.cdiv(vocab, block), rows),
            logits,
            logits.stride(0),
            presence if slots is None else slots,
            prompt_mask,
            prompt_mask.stride(0),
            output_counts,
            output_counts.stride(0),
            presence,
            frequency,
            repetition,
            vocab,
            HAS_SLOTS=slots is not None,
            BLOCK=block,
            num_warps=num_warps,
        )
    return logits


def apply_logit_bias(logits: Tensor, rows: Tensor, token_ids: Tensor, values: Tensor) -> Tensor:
    """See kernels/penalties.py. Three or more biases on one logit are added in any order."""
    if logits.dtype != torch.float32:
        raise TypeError(f"logits are {logits.dtype}: biases are added to torch.float32 logits; convert them before")
    if size := rows.shape[0]:
        launch(_add_at, (triton.cdiv(size, 128),),
            logits, logits.stride(0), rows, token_ids, values, size, BLOCK=128, num_warps=1
        )
    return logits


def mask_tokens(logits: Tensor, rows: Tensor, token_ids: Tensor) -> Tensor:
    """See kernels/penalties.py."""
    if size := rows.shape[0]:
        launch(
            _forbid_at, (triton.cdiv(size, 128),),
            logits, logits.stride(0), rows, token_ids, size, BLOCK=128, num_warps=1,
        )  # fmt: skip
    return logits


def count_tokens(output_counts: Tensor, slots: Tensor, token_ids: Tensor) -> None:
    """See kernels/penalties.py."""
    if size := slots.shape[0]:
        launch(_count, (triton.cdiv(size, 128),),
            output_counts, output_counts.stride(0), slots, token_ids, size, BLOCK=128, num_warps=1
        )
