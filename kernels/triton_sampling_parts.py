"""Sampling on GPUs that each hold the logits of a part of the vocabulary: a rank bounds and races among its own tokens.

Bounds, noise and arrivals are those of triton_sampling.py, so the tokens are those of the whole rows, to the bit.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from .triton_launch import launch
from .triton_sampling import _bound_chunks, _race

if TYPE_CHECKING:
    from .sampling import SamplingTensors
    from .sampling_parts import Gather, VocabularyPart

_NOTHING = tl.constexpr((1 << 63) - 1)  # a rank without a token to offer


@triton.jit
def _race_part(
    logits,
    stride,
    temperatures,
    seeds,
    positions,
    all_best,
    chunk_bound,
    offers,
    columns,
    chunks,
    rows,
    rank,
    FIRST: tl.constexpr,
    SIZE: tl.constexpr,
    RANDOM: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """A rank's offer for a row: its earliest arrival, relative to the best logit of all ranks, and whose it is.

    Arrivals aren't negative, so that the bits of one, before the token's, order offers by arrival, then token.
    """
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, WIDTH)
    infinity = float("inf")
    best = tl.full([], -infinity, tl.float32)
    for peer in tl.static_range(SIZE):
        theirs = all_best + (peer * rows + row) * chunks + places
        best = tl.maximum(best, tl.max(tl.load(theirs, mask=places < chunks, other=-infinity), axis=0))
    offer = tl.full([], _NOTHING, tl.int64)
    if (best > -infinity) & (best < infinity):
        own = all_best + (rank * rows + row) * chunks + places
        bests = tl.load(own, mask=places < chunks, other=-infinity)
        arrival, token = _race(
            logits + row * stride, temperatures + row, seeds + row, positions + row, chunk_bound + row * chunks,
            bests, best, columns, chunks, 0, RANDOM, WIDTH, GROUPS, FIRST,
        )  # fmt: skip
        if arrival < infinity:
            bits = arrival.to(tl.int32, bitcast=True).to(tl.int64)
            offer = (bits << 32) | (token + FIRST // 4 * 4).to(tl.int64)
    tl.store(offers + row, offer)


@triton.jit
def _take_best_offers(offers, sampled, rows, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Each row's token from the offers of all ranks [SIZE, rows]; -1 where there is none."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    best = tl.full([BLOCK], _NOTHING, tl.int64)
    for peer in tl.static_range(SIZE):
        best = tl.minimum(best, tl.load(offers + peer * rows + row, mask=inside, other=_NOTHING))
    tl.store(sampled + row, tl.where(best == _NOTHING, -1, best & 0xFFFFFFFF), mask=inside)


def sample_part_checked(
    logits: Tensor,
    part: VocabularyPart,
    params: SamplingTensors,
    gather: Gather,
    *,
    chunk: int | None = None,
    num_warps: int = 4,
    race_warps: int = 4,
) -> Tensor:
    """`sampling_parts.sample_part_checked`: three launches and two gatherings of a few bytes a row.

    Args:
        logits: [R, C] float32, bfloat16 or float16.
        part: which columns these are.
        params: of the R rows; without filters.
        gather: all ranks' tensors, one on the other.
        chunk: tokens per program of the first pass, a power of two from 16 on, the same on all ranks.
        num_warps: of the first pass.
        race_warps: of the second.
    """
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    rows, device = logits.shape[0], logits.device
    sampled = torch.empty(rows, dtype=torch.int64, device=device)
    if not rows:
        return sampled
    chunk = chunk or (1024 if rows <= 8 else 2048)
    chunks = triton.cdiv(part.widest + 3, chunk)  # of every rank: up to three places of the first may be another's
    best, bound = torch.empty((2, rows, chunks), dtype=torch.float32, device=device)
    draw = (logits, logits.stride(0), params.temperature, params.seeds, params.positions)
    constants = {"RANDOM": params.any_random, "GROUPS": chunk // 4, "FIRST": part.first}
    launch(_bound_chunks, (chunks, rows), *draw, best, bound, part.usable, **constants, num_warps=num_warps)
    everyones = gather(best)
    offers = torch.empty(rows, dtype=torch.int64, device=device)
    launch(
        _race_part, (rows,), *draw, everyones, bound, offers, part.usable, chunks, rows, part.rank,
        SIZE=everyones.shape[0], WIDTH=triton.next_power_of_2(chunks), **constants, num_warps=race_warps,
    )  # fmt: skip
    block = 128
    launch(
        _take_best_offers, (triton.cdiv(rows, block),), gather(offers), sampled, rows,
        SIZE=everyones.shape[0], BLOCK=block, num_warps=4,
    )  # fmt: skip
    return sampled
