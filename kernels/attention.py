"""Attention over paged keys and values for a mixed batch of prefill chunks and decode tokens.

Knows backends and which rows each of their kernels takes; doesn't know sequences, layers or who filled the pages.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .attention_choice import Backend, choose_attention
from .attention_metadata import AttentionMetadata, build_metadata, decode_metadata
from .attention_torch import attend
from .dispatch import on_gpu

__all__ = [
    "AttentionMetadata",
    "Backend",
    "build_metadata",
    "choose_attention",
    "decode_metadata",
    "paged_attention",
]


def paged_attention(
    q: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata, scale: float
) -> Tensor:
    """Causal attention; row b's queries are the last ones of its context. Grouped heads share K and V (GQA).

    Args:
        q: [T, Hq, D], any strides; T may exceed the rows' queries (padding), whose output is then zero.
        key_cache: [num_blocks, block_size, Hkv, D], contiguous, in the dtype of `q`; Hq is a multiple of Hkv.
        value_cache: likewise.
        metadata: of this step, from `build_metadata` or `decode_metadata`.
        scale: factor on the scores before the softmax, at least 0.

    Returns:
        [T, Hq, D] in the dtype of `q`, a new tensor.
    """
    backend = metadata.backend
    if backend == "torch":
        return attend(q, key_cache, value_cache, metadata.torch_plan(q.shape[1], key_cache.shape[2]), scale)
    prefill, decode = (_flash_prefill, _flash_decode) if backend == "flash" else (_triton_prefill, _triton_decode)
    num_decodes, num_tokens = metadata.num_decodes, metadata.num_tokens
    if num_decodes == q.shape[0]:
        return decode(q, key_cache, value_cache, metadata, scale)
    if num_decodes < metadata.num_rows:
        out = prefill(q, key_cache, value_cache, metadata, scale)
    else:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if num_decodes:
        out[:num_decodes] = decode(q[:num_decodes], key_cache, value_cache, metadata, scale)
    if num_tokens < q.shape[0]:
        out[num_tokens:] = 0
    return out


def _triton_prefill(
    q: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata, scale: float
) -> Tensor:
    kernel = on_gpu("triton_prefill_attention", "prefill_attention")
    out: Tensor = kernel(q, key_cache, value_cache, *metadata.prefills, metadata.max_query_len, scale)
    return out


def _triton_decode(
    q: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata, scale: float
) -> Tensor:
    kernel, part = on_gpu("triton_decode_attention", "decode_attention"), metadata.decodes
    longest = metadata.max_context_len
    out: Tensor = kernel(
        q, key_cache, value_cache, part.block_tables, part.rows, part.context_lens, scale, max_context_len=longest
    )
    return out


def _flash_prefill(
    q: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata, scale: float
) -> Tensor:
    from .flash_attention import prefill_attention

    if metadata.key_start is None:
        raise ValueError("this metadata was not built for flash-attn: pass backend='flash' to build_metadata")
    return prefill_attention(
        q,
        key_cache,
        value_cache,
        metadata.own_tables()[metadata.num_decodes :],
        metadata.prefills.query_start,
        metadata.key_start,
        metadata.max_query_len,
        metadata.max_context_len,
        scale,
    )


def _flash_decode(
    q: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata, scale: float
) -> Tensor:
    from .flash_attention import decode_attention

    tables = metadata.own_tables()[: metadata.num_decodes]
    return decode_attention(q, key_cache, value_cache, tables, metadata.decodes.context_lens, scale)
