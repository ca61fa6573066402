"""Paged attention by the package flash-attn (2.8): pages of 256 tokens or a multiple, fp16 and bf16.

Importing this file imports the package. What it can do is checked in `attention_choice`.
"""

from __future__ import annotations

from flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache
from torch import Tensor


def prefill_attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    key_start: Tensor,
    max_query_len: int,
    max_context_len: int,
    scale: float,
) -> Tensor:
    """Causal attention of prefill chunks; row b's queries are the last ones of its context.

    Args:
        q: [T, Hq, D], last dimension contiguous, D a multiple of 8.
        key_cache: [N, P, Hkv, D], P a multiple of 256.
        value_cache: likewise.
        block_tables: [B, M] int32, one table a row, last dimension contiguous.
        query_start: [B + 1] int32, row b's queries are tokens query_start[b] to query_start[b + 1] of `q`;
            query_start[0] may be above 0.
        key_start: [B + 1] int32, cumulated context lengths from 0.
        max_query_len: of the longest row; above 1, or the package takes `q` for one token a row.
        max_context_len: at least the longest row's.
        scale: factor on the scores before the softmax.

    Returns:
        [T, Hq, D]; tokens that belong to no row are left unwritten.
    """
    out: Tensor = flash_attn_varlen_func(
        q,
        key_cache,
        value_cache,
        cu_seqlens_q=query_start,
        cu_seqlens_k=key_start,
        max_seqlen_q=max_query_len,
        max_seqlen_k=max_context_len,
        softmax_scale=scale,
        causal=True,
        block_table=block_tables,
    )
    return out


def decode_attention(
    q: Tensor, key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, context_lens: Tensor, scale: float
) -> Tensor:
    """Attention of one query a row to the row's whole context. Sizes of its scratch come from shapes only.

    Args:
        q: [B, Hq, D], last dimension contiguous, D a multiple of 8.
        key_cache: [N, P, Hkv, D], P a multiple of 256.
        value_cache: likewise.
        block_tables: [B, M] int32, one table a row, last dimension contiguous.
        context_lens: [B] int32; 0 gives zeros.
        scale: factor on the scores before the softmax.

    Returns:
        [B, Hq, D].
    """
    out: Tensor = flash_attn_with_kvcache(
        q[:, None],
        key_cache,
        value_cache,
        cache_seqlens=context_lens,
        block_table=block_tables,
        softmax_scale=scale,
        causal=True,
    )
    return out[:, 0]
