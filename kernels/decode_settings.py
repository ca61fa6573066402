"""How a launch of the decode attention is cut up, by a rule from its shape. Knows numbers, no tensors."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

_MAX_SPLITS = 64


class DecodeSettings(NamedTuple):
    """How a launch is cut up.

    Attributes:
        tile: tokens that a program reads at once.
        num_warps: of a program.
        num_stages: 1 more than the tiles in flight.
        num_splits: programs that share a row and KV head.
        peel: whether a last, partial tile runs apart, so that the loop needs no mask.
    """

    tile: int
    num_warps: int
    num_stages: int
    num_splits: int
    peel: bool


@lru_cache(maxsize=1024)
def choose_settings(
    batch: int, num_kv_heads: int, max_context_len: int, head_dim: int, element_size: int, num_sms: int
) -> DecodeSettings:
    """Settings by shape alone, so that a captured graph holds for whatever lengths its rows will have.

    Rule: two programs to a multiprocessor are enough to read at full speed, so rows are split only while there are
    fewer, and never into more splits than the longest context has tiles. Where many programs share a multiprocessor,
    small tiles with three in flight read fastest; where each is nearly alone, one large tile (docs/performance.md).
    Splitting a full batch of ragged rows doesn't pay: the combine pass costs more than the end of the longest row.

    Args:
        batch: rows, padding included.
        num_kv_heads: programs to a row before splitting.
        max_context_len: the longest context that a row can have, in tokens.
        head_dim: D.
        element_size: bytes of an element of the pages.
        num_sms: multiprocessors of the device.
    """
    programs = max(1, batch * num_kv_heads)
    crowded = programs > 4 * num_sms
    padded_dim = 1 << (head_dim - 1).bit_length()
    exact = element_size == 4
    # Exact float32 products hold their operands in registers: a larger tile, or a second body of the loop, spills them.
    tile = 16 if exact else max(16, min((4096 if crowded else 16384) // padded_dim, 128))
    most = min(_MAX_SPLITS, -(-max(max_context_len, 1) // tile))
    num_splits = max(1, min(most, round(2 * num_sms / programs)))
    num_warps = 2 if crowded and not exact and padded_dim <= 128 else 4
    num_stages = 4 if crowded and not exact else 2
    return DecodeSettings(tile, num_warps, num_stages, num_splits, peel=not exact and not crowded)
