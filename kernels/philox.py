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
        # The product may wrap around int64; its 64 bits are right all the same, and the mask removes the sign's copies.
        low, high = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = (
            ((high >> 32) & _MASK) ^ c1 ^ k0,
            high & _MASK,
            ((low >> 32) & _MASK) ^ c3 ^ k1,
            low & _MASK,
        )
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1, c2, c3


def exponential_from_bits(bits: Tensor) -> Tensor:
    """Standard exponential numbers from 32-bit words: -log1p(-u), u = (bits + 1/2) / 2**32 in (0, 1).

    Small values keep the full resolution of the words: these are the ones that win a race.

    Args:
        bits: int64, values below 2**32.

    Returns:
        float32 of the same shape, finite and above 0 (at most 16.7).
    """
    uniform = bits.to(torch.float32).add_(0.5).mul_(2.0**-32).clamp_(max=1.0 - 2.0**-24)
    return uniform.neg_().log1p_().neg_()


def exponential_noise(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Standard exponential numbers for each row and vocabulary index.

    Args:
        seeds: [R] int64, the key (low word first).
        positions: [R] int64, 0 <= position < 2**32.
        vocab_size: V.

    Returns:
        [R, V] float32; entry (r, v) is word v % 4 of counter (v // 4, positions[r], 0, 0).
    """
    groups = torch.arange((vocab_size + 3) // 4, device=seeds.device)
    zero = torch.zeros((), dtype=torch.int64, device=seeds.device)
    key = ((seeds & _MASK)[:, None], ((seeds >> 32) & _MASK)[:, None])
    words = philox4x32((groups[None], (positions & _MASK)[:, None], zero, zero), key)
    bits = torch.stack(words, dim=-1).flatten(1)[:, :vocab_size]
    return exponential_from_bits(bits)
