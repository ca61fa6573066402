"""Sampling on a GPU: a pass over the logits for bounds, a race where they leave the winner open; filters if asked for.

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
from .triton_philox import exponential_tile, word_tile
from .triton_sampling_filters import filter_rows

if TYPE_CHECKING:
    from .sampling import SamplingTensors

# Below it a temperature acts like this one: logits that differ at all have other tokens' rates at 0 anyway.
_COLDEST = tl.constexpr(1e-30)
_LOG2_E = tl.constexpr(1.4426950408889634)
# Bounds and arrivals that could matter differ by rounding errors of 1e-5 at most: costs there are below 26.
_ROUNDED = tl.constexpr(0.9999)


@triton.jit
def _chunk_values(logits, chunk, columns, FIRST: tl.constexpr, GROUPS: tl.constexpr):
    """A chunk of a row's logits [4 * GROUPS]; -inf where the row has no such column."""
    column = chunk * (4 * GROUPS) + tl.arange(0, 4 * GROUPS) - FIRST % 4
    inside = column < columns
    if FIRST % 4 != 0:
        inside = inside & (column >= 0)
    return tl.load(logits + column, mask=inside, other=-float("inf")).to(tl.float32)


@triton.jit
def _bound_chunks(
    logits,
    stride,
    temperatures,
    seeds,
    positions,
    chunk_best,
    chunk_bound,
    vocab,
    RANDOM: tl.constexpr,
    GROUPS: tl.constexpr,
    FIRST: tl.constexpr = 0,
):
    """Of each row's chunk of 4 * GROUPS tokens: the best logit, and a time before which none of its clocks rings,
    relative to that best logit. A NaN counts as +inf, so that the best logit tells of both.

    Where the first column is of token FIRST, chunks begin at the group of four that the generator numbers it in.

    This pass is bound by its instructions, so it makes no exponential numbers: -log(1 - u) is at least u.
    """
    chunk = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    infinity = float("inf")
    values = _chunk_values(logits + row * stride, chunk, vocab, FIRST, GROUPS)
    values = tl.where(values < infinity, values, infinity)
    best = tl.max(values, axis=0)
    place = row * tl.num_programs(0) + chunk
    tl.store(chunk_best + place, best)
    if RANDOM:
        temperature = tl.load(temperatures + row)
        if temperature > 0:
            words = word_tile(FIRST // 4 + chunk * GROUPS, tl.load(seeds + row), tl.load(positions + row), GROUPS)
            rate = _LOG2_E / tl.maximum(temperature, _COLDEST)
            shown = tl.where(best > -infinity, best, 0.0)
            bounds = (words.to(tl.float32) + 0.5) * tl.exp2((shown - values) * rate)
            tl.store(chunk_bound + place, tl.min(bounds, axis=0) * 2.3283064365386963e-10)


@triton.jit
def _race(
    logits,
    temperatures,
    seeds,
    positions,
    bounds,
    bests,
    best,
    vocab,
    chunks,
    FALLBACK: tl.constexpr,
    RANDOM: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUPS: tl.constexpr,
    FIRST: tl.constexpr,
):
    """(when the first clock of a row rings, relative to the logit `best`; whose it is, counted from the first chunk's
    begin): races in chunks, by their bounds, until no other chunk's can be earlier.

    Rarely more than one has to run. The result is that of a race among all tokens. All pointers are at the row.
    """
    places = tl.arange(0, WIDTH)
    infinity = float("inf")
    token = tl.full([], FALLBACK, tl.int32)
    times = tl.where(bests == best, 0.0, infinity)
    heat = tl.zeros([], tl.float32)
    if RANDOM:
        heat = tl.load(temperatures)
        if heat > 0:
            own = tl.load(bounds + places, mask=places < chunks, other=infinity)
            times = own * tl.exp2((best - bests) * (_LOG2_E / tl.maximum(heat, _COLDEST)))
    arrival = tl.full([], infinity, tl.float32)
    bound, chunk = tl.min(times, axis=0, return_indices=True)
    racing = True
    while racing:
        values = _chunk_values(logits, chunk, vocab, FIRST, GROUPS)
        arrivals = tl.where(values == best, 0.0, infinity)
        if RANDOM:
            if heat > 0:
                noise = exponential_tile(FIRST // 4 + chunk * GROUPS, tl.load(seeds), tl.load(positions), GROUPS)
                arrivals = noise * tl.exp((best - values) * (1.0 / tl.maximum(heat, _COLDEST)))
        first, winner = tl.min(arrivals, axis=0, return_indices=True)
        winner += chunk * (4 * GROUPS)
        if (first < arrival) | ((first == arrival) & (winner < token)):
            arrival = first
            token = winner
        times = tl.where(places == chunk, infinity, times)
        bound, chunk = tl.min(times, axis=0, return_indices=True)
        racing = bound * _ROUNDED < arrival  # at equal logits without a draw, the first chunk's token stays
    return arrival, token


@triton.jit
def _race_best_chunks(
    logits,
    stride,
    temperatures,
    seeds,
    positions,
    chunk_best,
    chunk_bound,
    row_best,
    sampled,
    vocab,
    chunks,
    FALLBACK: tl.constexpr,
    RANDOM: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Whose clock rings first in a row."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, WIDTH)
    infinity = float("inf")
    bests = tl.load(chunk_best + row * chunks + places, mask=places < chunks, other=-infinity)
    best = tl.max(bests, axis=0)
    token = tl.full([], FALLBACK, tl.int32)
    if (best > -infinity) & (best < infinity):
        arrival, token = _race(
            logits + row * stride, temperatures + row, seeds + row, positions + row, chunk_bound + row * chunks,
            bests, best, vocab, chunks, FALLBACK, RANDOM, WIDTH, GROUPS, 0,
        )  # fmt: skip
        if arrival == infinity:
            token = tl.full([], FALLBACK, tl.int32)
    tl.store(row_best + row, best)
    tl.store(sampled + row, token.to(tl.int64))


def sample(
    logits: Tensor,
    params: SamplingTensors,
    *,
    checked: bool = False,
    chunk: int | None = None,
    num_warps: int = 4,
    race_warps: int = 4,
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
        race_warps: of the second.
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
    best, bound, row_best = scores.split((rows * chunks, rows * chunks, rows))
    draw = (logits, logits.stride(0), params.temperature, params.seeds, params.positions, best, bound)
    constants = {"RANDOM": params.any_random, "GROUPS": chunk // 4}
    launch(_bound_chunks, (chunks, rows), *draw, vocab, **constants, num_warps=num_warps)
    launch(
        _race_best_chunks,
        (rows,),
        *draw,
        row_best,
        sampled,
        vocab,
        chunks,
        FALLBACK=-1 if checked else 0,
        WIDTH=triton.next_power_of_2(chunks),
        **constants,
        num_warps=race_warps,
    )
    if params.any_random and (params.any_top_k or params.any_top_p or params.any_min_p):
        filter_rows(logits, row_best, params, sampled, tile=filter_tile, num_warps=filter_warps)
    return sampled


def sample_checked(logits: Tensor, params: SamplingTensors) -> Tensor:
    """`sample`, with -1 for rows that have NaN, +inf, or no logit above -inf."""
    return sample(logits, params, checked=True)
