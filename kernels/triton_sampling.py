"""Sampling on a GPU: one pass over the logits, then a reduction; one more kernel where a row asks for a filter.

The host looks at nothing on the device, so that all of it can be part of a CUDA graph.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from .triton_launch import launch
from .triton_philox import exponential_tile
from .triton_sampling_filters import filter_rows

if TYPE_CHECKING:
    from .sampling import SamplingTensors

# Below it a temperature acts like this one: logits that differ at all have other tokens' rates at 0 anyway.
_COLDEST = tl.constexpr(1e-30)


@triton.jit
def _race_chunks(
    logits,
    stride,
    temperatures,
    seeds,
    positions,
    chunk_best,
    chunk_arrival,
    chunk_token,
    vocab,
    RANDOM: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Of each row's chunk of 4 * GROUPS tokens: the best logit, and who rings first, relative to that best logit.

    A NaN counts as +inf, so that the best logit tells of both.
    """
    chunk = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    tokens = chunk * (4 * GROUPS) + tl.arange(0, 4 * GROUPS)
    infinity = float("inf")
    values = tl.load(logits + row * stride + tokens, mask=tokens < vocab, other=-infinity).to(tl.float32)
    values = tl.where(values < infinity, values, infinity)
    best = tl.max(values, axis=0)
    arrivals = tl.where(values == best, 0.0, infinity)
    if RANDOM:
        temperature = tl.load(temperatures + row)
        if temperature > 0:
            noise = exponential_tile(chunk * GROUPS, tl.load(seeds + row), tl.load(positions + row), GROUPS)
            costs = (best - values) * (1.0 / tl.maximum(temperature, _COLDEST))
            arrivals = tl.where(values == -infinity, infinity, noise * tl.exp(costs))
    arrival, winner = tl.min(arrivals, axis=0, return_indices=True)
    place = row * tl.num_programs(0) + chunk
    tl.store(chunk_best + place, best)
    tl.store(chunk_arrival + place, arrival)
    tl.store(chunk_token + place, chunk * (4 * GROUPS) + winner)


@triton.jit
def _join_chunks(
    chunk_best,
    chunk_arrival,
    chunk_token,
    temperatures,
    row_best,
    sampled,
    chunks,
    FALLBACK: tl.constexpr,
    RANDOM: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The winner among a row's chunks, with every arrival brought to the row's best logit."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, WIDTH)
    infinity = float("inf")
    bests = tl.load(chunk_best + row * chunks + places, mask=places < chunks, other=-infinity)
    best = tl.max(bests, axis=0)
    arrivals = tl.where(bests == best, 0.0, infinity)
    if RANDOM:
        temperature = tl.load(temperatures + row)
        if temperature > 0:
            own = tl.load(chunk_arrival + row * chunks + places, mask=places < chunks, other=infinity)
            costs = (best - bests) * (1.0 / tl.maximum(temperature, _COLDEST))
            arrivals = tl.where(bests == -infinity, infinity, own * tl.exp(costs))
    _, winner = tl.min(arrivals, axis=0, return_indices=True)
    token = tl.load(chunk_token + row * chunks + tl.minimum(winner, chunks - 1)).to(tl.int64)
    usable = (best > -infinity) & (best < infinity)
    tl.store(row_best + row, best)
    tl.store(sampled + row, tl.where(usable, token, FALLBACK))


def sample(
    logits: Tensor,
    params: SamplingTensors,
    *,
    checked: bool = False,
    chunk: int | None = None,
    num_warps: int = 4,
    filter_tile: int = 2048,
    filter_warps: int = 16,
) -> Tensor:
    """Draw one token for each row, as `sampling.sample` does; two launches, and a third if a flag names a filter.

    Args:
        logits: [R, V] float32, bfloat16 or float16.
        params: of the R rows. Which kernels run depends on the flags alone.
        checked: give -1 (else 0) for rows with NaN, with +inf, or without any logit above -inf.
        chunk: tokens per program of the first pass, a power of two from 16 on.
        num_warps: of the first pass.
        filter_tile: tokens that the filters look at in one go, a power of two.
        filter_warps: of the filters.

    Returns:
        [R] int64.
    """
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    rows, vocab = logits.shape
    sampled = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if not rows:
        return sampled
    # Few rows: smaller chunks, so that the device's multiprocessors all get one.
    chunk = chunk or (1024 if rows <= 8 else 2048)
    chunks = triton.cdiv(vocab, chunk)
    scores = torch.empty(2 * rows * chunks + rows, dtype=torch.float32, device=logits.device)
    best, arrival, row_best = scores.split((rows * chunks, rows * chunks, rows))
    token = torch.empty(rows * chunks, dtype=torch.int32, device=logits.device)
    launch(_race_chunks, (chunks, rows),
        logits,
        logits.stride(0),
        params.temperature,
        params.seeds,
        params.positions,
        best,
        arrival,
        token,
        vocab,
        RANDOM=params.any_random,
        GROUPS=chunk // 4,
        num_warps=num_warps,
    )
    launch(_join_chunks, (rows,),
        best,
        arrival,
        token,
        params.temperature,
        row_best,
        sampled,
        chunks,
        FALLBACK=-1 if checked else 0,
        RANDOM=params.any_random,
        WIDTH=triton.next_power_of_2(chunks),
        num_warps=1,
    )
    if params.any_random and (params.any_top_k or params.any_top_p or params.any_min_p):
        filter_rows(logits, row_best, params, sampled, tile=filter_tile, num_warps=filter_warps)
    return sampled


def sample_checked(logits: Tensor, params: SamplingTensors) -> Tensor:
    """`sample`, with -1 for rows that have NaN, +inf, or no logit above -inf."""
    return sample(logits, params, checked=True)
