"""Philox4x32, the counter-based generator of Salmon et al. 2011 ("Parallel Random Numbers: As Easy as 1, 2, 3").

A number is a pure function of (seed, position, vocabulary index). 32-bit words are held in int64, since torch has
no unsigned arithmetic; the words equal those of Triton's `tl.philox_impl(c0, c1, c2, c3, k0, k1, n_rounds)`.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS = 7  # the fewest that pass BigCrush (Salmon et al., table 2)
_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF
_CHUNK = 1 << 16  # counters worked on at a time: their words stay in a CPU's cache

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox4x32(counter: Words, key: tuple[Tensor, Tensor], rounds: int = ROUNDS) -> Words:
    """Four random 32-bit words for each counter and key.

    Args:
        counter: four int64 tensors of values below 2**32, broadcastable with each other and with the key's.
        key: two such tensors.
        rounds: of the generator.

    Returns:
        Four int64 tensors of values below 2**32.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        # A product wraps around int64, but its 64 bits are right. c1 and c3 keep high halves that don't belong to them,
        # and c0 and c2 the sign's copies: the mask removes both before the next product.
        low, high = c0 * _M0, c2 * _M1
        c0 = _xor(_xor(high >> 32, c1), k0).bitwise_and_(_MASK)
        c2 = _xor(_xor(low >> 32, c3), k1).bitwise_and_(_MASK)
        c1, c3 = high, low
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1 & _MASK, c2, c3 & _MASK


def _xor(own: Tensor, other: Tensor) -> Tensor:
    """own ^ other, written over `own` where that has room for the result."""
    if own.dim() and torch.broadcast_shapes(own.shape, other.shape) == own.shape:
        return own.bitwise_xor_(other)
    return own ^ other


def exponential_noise(seeds: Tensor, positions: Tensor, vocab_size: int, first: int = 0) -> Tensor:
    """Standard exponential numbers for each row and vocabulary index from `first` on.

    Args:
        seeds: [R] int64, the key (low word first).
        positions: [R] int64, 0 <= position < 2**32.
        vocab_size: V.
        first: vocabulary index of the first column.

    Returns:
        [R, V] float32; entry (r, v - first) is made of word v % 4 of counter (v // 4, positions[r], 0, 0).
    """
    skipped = first % 4
    rows, groups = seeds.shape[0], (skipped + vocab_size + 3) // 4
    bits = torch.empty(rows, groups, 4, dtype=torch.float32, device=seeds.device)
    step = max(1, _CHUNK // max(rows, 1))
    for start in range(0, groups, step):
        counter = torch.arange(start, min(start + step, groups), device=seeds.device).add_(first // 4)
        for word, values in enumerate(_words(counter[None], positions[:, None], seeds[:, None])):
            bits[:, start : start + step, word] = values
    return _exponential(bits.view(rows, -1)[:, skipped : skipped + vocab_size])


def exponential_noise_at(seeds: Tensor, positions: Tensor, token_ids: Tensor) -> Tensor:
    """The entries of `exponential_noise` for single tokens.

    Args:
        seeds: [N] int64.
        positions: [N] int64.
        token_ids: [N] int64.

    Returns:
        [N] float32.
    """
    words = torch.stack(_words(token_ids >> 2, positions, seeds), dim=-1)
    return _exponential(words.gather(1, (token_ids & 3)[:, None]).squeeze(1).to(torch.float32))


def _words(group: Tensor, positions: Tensor, seeds: Tensor) -> Words:
    """The four words of counter (group, position, 0, 0) under each seed; the shapes broadcast."""
    zero = torch.zeros((), dtype=torch.int64, device=seeds.device)
    return philox4x32((group, positions & _MASK, zero, zero), (seeds & _MASK, (seeds >> 32) & _MASK))


def _exponential(bits: Tensor) -> Tensor:
    """Standard exponential numbers from 32-bit words: -log1p(-u), u = (word + 1/2) / 2**32 in (0, 1).

    Small numbers keep the full resolution of the words: these are the ones that win a race.

    Args:
        bits: float32, the words rounded to it; overwritten.

    Returns:
        float32 of the same shape, above 0 and at most 16.7.
    """
    uniform = bits.add_(0.5).mul_(2.0**-32).clamp_(max=1.0 - 2.0**-24)
    return uniform.neg_().log1p_().neg_()
