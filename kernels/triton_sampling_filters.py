"""top-k, top-p and min-p on a GPU, without a sort: a token drawn from the whole row is kept if the filters leave it in.

The filters leave a prefix of the row's tokens, ordered by cost, then index. The first clock to ring in the whole row,
if it belongs to the prefix, is also the first to ring in the prefix; if not, the race is run again among the tokens
before it. So the result is the same token as that of a race among the kept tokens only.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl
from torch import Tensor

from .triton_launch import launch
from .triton_philox import exponential_tile

if TYPE_CHECKING:
    from .sampling import SamplingTensors

_COLDEST = tl.constexpr(1e-30)  # as in triton_sampling.py
_INFINITY_BITS = tl.constexpr(0x7F800000)
_LAST_INDEX = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _tile_costs(logits, tokens, best, temperature, VOCAB: tl.constexpr):
    """Costs (best - logit) / T, rounded as the reference's are: order and ties at the edges must be the same."""
    values = tl.load(logits + tokens, mask=tokens < VOCAB, other=-float("inf")).to(tl.float32)
    return _cost(best, values, tl.zeros_like(values) + temperature)


@triton.jit
def _cost(best, value, temperature):
    # -0 - 0 is -0, whose bits would come before all others
    return tl.abs(tl.div_rn(best - value, temperature))


@triton.jit
def _before(bits, tokens, edge_bits, edge_token):
    """Whether tokens come before an edge in the order (cost, index). Costs are not negative: their bits sort alike."""
    return (bits < edge_bits) | ((bits == edge_bits) & (tokens < edge_token))


@triton.jit
def _standing(logits, best, temperature, limit, edge_bits, edge_token, VOCAB: tl.constexpr, TILE: tl.constexpr):
    """(how many tokens come before the edge, the mass of those of them within the limit, that of all within it)."""
    counts = tl.zeros([TILE], tl.int32)
    masses = tl.zeros([TILE], tl.float64)
    totals = tl.zeros([TILE], tl.float64)
    for start in range(0, VOCAB, TILE):
        tokens = start + tl.arange(0, TILE)
        costs = _tile_costs(logits, tokens, best, temperature, VOCAB)
        inside = _before(costs.to(tl.int32, bitcast=True), tokens, edge_bits, edge_token)
        weights = tl.where(costs <= limit, tl.exp(-costs), 0.0).to(tl.float64)
        counts += (inside & (tokens < VOCAB)).to(tl.int32)
        totals += weights
        masses += tl.where(inside, weights, 0.0)
    return tl.sum(counts, axis=0), tl.sum(masses, axis=0), tl.sum(totals, axis=0)


@triton.jit
def _top_k_edge(logits, best, temperature, top_k, VOCAB: tl.constexpr, TILE: tl.constexpr):
    """(bits, token): exactly top_k tokens come before this edge.

    Narrows the bits of the k-th cost to a quarter with each pass; count(lower) < top_k <= count(upper) throughout.
    """
    lower = tl.full([], -1, tl.int32)
    upper = tl.full([], 0x7F800000, tl.int32)
    below = tl.full([], 0, tl.int32)
    within = tl.zeros([], tl.int32) + VOCAB
    while (upper - lower > 1) & (within != top_k):
        step = tl.maximum((upper - lower) // 4, 1)
        mid1 = lower + step
        mid2 = tl.minimum(mid1 + step, upper)
        mid3 = tl.minimum(mid2 + step, upper)
        counts1 = tl.zeros([TILE], tl.int32)
        counts2 = tl.zeros([TILE], tl.int32)
        counts3 = tl.zeros([TILE], tl.int32)
        for start in range(0, VOCAB, TILE):
            tokens = start + tl.arange(0, TILE)
            bits = _tile_costs(logits, tokens, best, temperature, VOCAB).to(tl.int32, bitcast=True)
            bits = tl.where(tokens < VOCAB, bits, _LAST_INDEX)
            counts1 += (bits <= mid1).to(tl.int32)
            counts2 += (bits <= mid2).to(tl.int32)
            counts3 += (bits <= mid3).to(tl.int32)
        count1 = tl.sum(counts1, axis=0)
        count2 = tl.sum(counts2, axis=0)
        count3 = tl.sum(counts3, axis=0)
        if count1 >= top_k:
            upper = mid1
            within = count1
        else:
            lower = mid1
            below = count1
            if count2 >= top_k:
                upper = mid2
                within = count2
            else:
                lower = mid2
                below = count2
                if count3 >= top_k:
                    upper = mid3
                    within = count3
                else:
                    lower = mid3
                    below = count3
    edge_token = tl.zeros([], tl.int32) + VOCAB
    if within != top_k:  # several tokens cost as much as the k-th: those of the lowest indices stay
        edge_token = _nth_of_cost(logits, best, temperature, upper, top_k - below, VOCAB, TILE) + 1
    return upper, edge_token


@triton.jit
def _nth_of_cost(logits, best, temperature, cost_bits, nth, VOCAB: tl.constexpr, TILE: tl.constexpr):
    """Index of the nth token (from 1 on) whose cost has these bits."""
    seen = tl.full([], 0, tl.int32)
    found = tl.full([], 0, tl.int32)
    for start in range(0, VOCAB, TILE):
        tokens = start + tl.arange(0, TILE)
        bits = _tile_costs(logits, tokens, best, temperature, VOCAB).to(tl.int32, bitcast=True)
        equal = ((bits == cost_bits) & (tokens < VOCAB)).to(tl.int32)
        ordinal = seen + tl.cumsum(equal, axis=0)
        found = tl.maximum(found, tl.max(tl.where((equal > 0) & (ordinal == nth), tokens, 0), axis=0))
        seen += tl.sum(equal, axis=0)
    return found


@triton.jit
def _race_before(
    logits,
    best,
    temperature,
    limit,
    edge_bits,
    edge_token,
    seed,
    position,
    VOCAB: tl.constexpr,
    TILE: tl.constexpr,
):
    """Who rings first among the tokens before the edge and within the limit. Tiles without any make no noise."""
    first = tl.full([TILE], float("inf"), tl.float32)
    winner = tl.full([TILE], 0, tl.int32)
    for start in range(0, VOCAB, TILE):
        tokens = start + tl.arange(0, TILE)
        costs = _tile_costs(logits, tokens, best, temperature, VOCAB)
        inside = _before(costs.to(tl.int32, bitcast=True), tokens, edge_bits, edge_token) & (costs <= limit)
        if tl.max(inside.to(tl.int32), axis=0) > 0:
            noise = exponential_tile(start // 4, seed, position, TILE // 4)
            arrivals = tl.where(inside, noise * tl.exp(costs), float("inf"))
            winner = tl.where(arrivals < first, tokens, winner)
            first = tl.minimum(arrivals, first)
    earliest = tl.min(first, axis=0)
    return tl.min(tl.where(first == earliest, winner, _LAST_INDEX), axis=0)


@triton.jit
def _filter_rows(
    logits,
    stride,
    row_best,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    seeds,
    positions,
    sampled,
    VOCAB: tl.constexpr,
    TILE: tl.constexpr,
):
    """Make a row's token one that the filters leave in; rows without filters return at once."""
    row = tl.program_id(0).to(tl.int64)
    best = tl.load(row_best + row)
    heat = tl.load(temperatures + row)
    asked_k = tl.load(top_ks + row)
    top_k = tl.where((asked_k > 0) & (asked_k < VOCAB), asked_k, VOCAB).to(tl.int32)
    top_p = tl.load(top_ps + row)
    min_p = tl.load(min_ps + row)
    usable = (best > -float("inf")) & (best < float("inf"))
    if usable & (heat > 0) & ((top_k < VOCAB) | (top_p < 1.0) | (min_p > 0.0)):
        logits += row * stride
        token = tl.load(sampled + row).to(tl.int32)
        temperature = tl.maximum(heat, _COLDEST)
        limit = tl.where(min_p > 0.0, tl.maximum(-tl.log(min_p), 0.0), float("inf"))
        seed, position = tl.load(seeds + row), tl.load(positions + row)
        share = top_p.to(tl.float64)
        edge_bits = tl.full([], 0x7F800000, tl.int32)  # tokens at or after the edge are out
        edge_token = tl.full([], 0x7FFFFFFF, tl.int32)
        k_mass = tl.full([], -1.0, tl.float64)  # of what min-p and top-k leave; -1: not yet known
        drawing = True
        while drawing:
            cost = _cost(best, tl.load(logits + token).to(tl.float32), temperature)
            bits = cost.to(tl.int32, bitcast=True)
            count, mass, total = _standing(logits, best, temperature, limit, bits, token, VOCAB, TILE)
            # top-k's mass is at least that up to this token and at most all: often this is enough to judge top-p.
            through = mass + tl.exp(-cost).to(tl.float64)
            unclear = (top_p < 1.0) & (top_k < VOCAB) & (mass >= share * through) & (mass < share * total)
            if (k_mass < 0) & ((count >= top_k) | (unclear & (cost <= limit))):
                k_bits, k_token = _top_k_edge(logits, best, temperature, top_k, VOCAB, TILE)
                _, k_mass, _ = _standing(logits, best, temperature, limit, k_bits, k_token, VOCAB, TILE)
                if _before(k_bits, k_token, edge_bits, edge_token):
                    edge_bits = k_bits
                    edge_token = k_token
            total = tl.where(k_mass < 0, total, k_mass)
            # The first token stays whatever is asked, so that the loop ends: a rejection moves the edge towards it.
            drawing = (count > 0) & ((cost > limit) | (count >= top_k) | ((top_p < 1.0) & (mass >= share * total)))
            if drawing:
                if _before(bits, token, edge_bits, edge_token):
                    edge_bits = bits
                    edge_token = token
                token = _race_before(
                    logits, best, temperature, limit, edge_bits, edge_token, seed, position, VOCAB, TILE
                )
        tl.store(sampled + row, token.to(tl.int64))


def filter_rows(
    logits: Tensor, row_best: Tensor, params: SamplingTensors, sampled: Tensor, *, tile: int, num_warps: int
) -> None:
    """Replace tokens that top-k, top-p or min-p leave out by those that a draw among the others gives.

    Args:
        logits: [R, V], rows contiguous.
        row_best: [R] float32, the rows' largest logits; +inf or -inf: the row is left alone.
        params: of the R rows.
        sampled: [R] int64, drawn with the same parameters from the whole rows; changed in place.
        tile: tokens looked at in one go, a power of two from 16 on.
        num_warps: of a program, one a row.
    """
    rows, vocab = logits.shape
    launch(_filter_rows, (rows,),
        logits,
        logits.stride(0),
        row_best,
        params.temperature,
        params.top_k,
        params.top_p,
        params.min_p,
        params.seeds,
        params.positions,
        sampled,
        VOCAB=vocab,
        TILE=tile,
        num_warps=num_warps,
    )
