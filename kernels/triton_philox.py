"""The numbers of philox.py inside Triton kernels: the same words, and exponential numbers equal up to rounding."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import triton
import triton.language as tl

from .philox import ROUNDS

_ROUNDS = tl.constexpr(ROUNDS)


@triton.jit
def word_tile(first_group, seed, position, GROUPS: tl.constexpr):
    """The random words, uint32, of 4 * GROUPS neighbouring vocabulary indices, from index 4 * first_group on."""
    counter = (first_group + tl.arange(0, GROUPS)).to(tl.uint32)
    zero = counter * 0
    low = zero + (seed & 0xFFFFFFFF).to(tl.uint32)
    high = zero + ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    place = zero + (position & 0xFFFFFFFF).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox_impl(counter, place, zero, zero, low, high, _ROUNDS)
    return tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))


@triton.jit
def exponential_tile(first_group, seed, position, GROUPS: tl.constexpr):
    """Standard exponential numbers of the same indices.

    -log1p(-u) without log1p: with w = 1 - u rounded and d the part that rounding dropped, log(1 - u) = log(w) + d / w,
    and d is 0 wherever 1 / w and 1 + u differ by more than float32 could tell.
    """
    words = word_tile(first_group, seed, position, GROUPS)
    uniform = tl.minimum((words.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.99999994039535522)
    rest = 1.0 - uniform
    dropped = (1.0 - rest) - uniform
    return -tl.log(rest) - dropped * (1.0 + uniform)
