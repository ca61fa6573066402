"""From the joined projection to attention's inputs: split, QK-norm, rotate, and write K and V to their pages."""

from __future__ import annotations

import torch
from torch import Tensor

from .dispatch import on_gpu
from .norm import torch_rms_norm
from .rotary import apply_rotary


def split_norm_rope_store(
    qkv: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
) -> Tensor:
    """Split a joined projection, normalise and rotate Q and K, and store K and V.

    Args:
        qkv: [T, (Hq + 2 * Hkv) * D]: all query heads, then key heads, then value heads.
        positions: [T] int64.
        cos_sin: [max_positions, D], from `rotary_tables`.
        q_norm: [D] weight of the norm over each query head, or None.
        k_norm: [D] likewise for key heads.
        eps: of both norms.
        key_cache: [num_blocks, block_size, Hkv, D], written.
        value_cache: likewise.
        slot_mapping: [T] int64, block * block_size + offset for each token; -1: padding, nothing is written.
        num_heads: Hq.
        num_kv_heads: Hkv.
        head_dim: D.

    Returns:
        [T, Hq, D], the rotated queries; contiguous on a GPU, not so elsewhere.
    """
    form = num_heads, num_kv_heads, head_dim
    if qkv.is_cuda:
        query: Tensor = on_gpu("triton_qkv", "split_norm_rope_store")(
            qkv, positions, cos_sin, q_norm, k_norm, eps, key_cache, value_cache, slot_mapping, *form
        )
        return query
    return torch_split_norm_rope_store(
        qkv, positions, cos_sin, q_norm, k_norm, eps, key_cache, value_cache, slot_mapping, *form
    )


def torch_split_norm_rope_store(
    qkv: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
) -> Tensor:
    """`split_norm_rope_store` in torch, on any device."""
    heads = qkv.view(-1, num_heads + 2 * num_kv_heads, head_dim)
    rotating, value = heads[:, :-num_kv_heads], heads[:, -num_kv_heads:]
    if q_norm is not None or k_norm is not None:
        query, key = rotating[:, :num_heads], rotating[:, num_heads:]
        query = query if q_norm is None else torch_rms_norm(query, q_norm, eps)
        key = key if k_norm is None else torch_rms_norm(key, k_norm, eps)
        rotating = torch.cat((query, key), dim=1)
    # Queries and keys turn by the same angles, so they go through one call.
    rotated = apply_rotary(rotating, cos_sin, positions)
    query, key = rotated[:, :num_heads], rotated[:, num_heads:]
    torch_store_kv(key, value, key_cache, value_cache, slot_mapping)
    return query


def store_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write one K and one V vector per token and head to the pages; tokens of slot -1 are left out.

    Args:
        key: [T, Hkv, D].
        value: [T, Hkv, D].
        key_cache: [num_blocks, block_size, Hkv, D], contiguous.
        value_cache: likewise.
        slot_mapping: [T] int64.
    """
    if key.is_cuda:
        on_gpu("triton_qkv", "store_kv")(key, value, key_cache, value_cache, slot_mapping)
    else:
        torch_store_kv(key, value, key_cache, value_cache, slot_mapping)


def torch_store_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    """`store_kv` in torch, on any device; on a GPU it waits for the slots."""
    if slot_mapping.numel() and int(slot_mapping.min()) < 0:
        real = slot_mapping >= 0
        slot_mapping, key, value = slot_mapping[real], key[real], value[real]
    for cache, new in ((key_cache, key), (value_cache, value)):
        cache.view(-1, *cache.shape[2:]).index_copy_(0, slot_mapping, new.to(cache.dtype))
