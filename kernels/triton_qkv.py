"""From the joined projection to attention's inputs in one Triton kernel: split, QK-norm, rotate, store K and V.

A program does some heads of one token. Whether a head is a query, a key or a value is a mask, so any head counts work.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .triton_launch import launch, launches_early, start_next, wait_for_inputs


@triton.jit
def _split_norm_rope_store(
    qkv_ptr,
    positions_ptr,
    cos_sin_ptr,
    q_norm_ptr,
    k_norm_ptr,
    query_ptr,
    key_cache_ptr,
    value_cache_ptr,
    slots_ptr,
    qkv_stride,
    eps,
    HQ: tl.constexpr,
    HKV: tl.constexpr,
    D: tl.constexpr,
    Q_NORM: tl.constexpr,
    K_NORM: tl.constexpr,
    HEADS: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    start_next(EARLY)
    wait_for_inputs(EARLY)
    HALF: tl.constexpr = D // 2
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    lane = tl.arange(0, HALF_BLOCK)[None, :]
    real = (head < HQ + 2 * HKV) & (lane < HALF)
    is_query, is_value = head < HQ, head >= HQ + HKV
    source = qkv_ptr + token * qkv_stride + head * D + lane
    low = tl.load(source, mask=real, other=0.0).to(tl.float32)
    high = tl.load(source + HALF, mask=real, other=0.0).to(tl.float32)

    turned_low, turned_high = low, high
    if Q_NORM or K_NORM:
        scale = tl.rsqrt((tl.sum(low * low, axis=1) + tl.sum(high * high, axis=1)) / D + eps)[:, None]
        if Q_NORM:
            weight_low, weight_high = _halves(q_norm_ptr, lane, HALF)
            turned_low = tl.where(is_query, low * scale * weight_low, turned_low)
            turned_high = tl.where(is_query, high * scale * weight_high, turned_high)
        if K_NORM:
            weight_low, weight_high = _halves(k_norm_ptr, lane, HALF)
            turned_low = tl.where(is_query, turned_low, low * scale * weight_low)
            turned_high = tl.where(is_query, turned_high, high * scale * weight_high)
    cos, sin = _halves(cos_sin_ptr + tl.load(positions_ptr + token) * D, lane, HALF)
    first = turned_low * cos - turned_high * sin
    second = turned_high * cos + turned_low * sin

    kind = query_ptr.dtype.element_ty
    target = query_ptr + token * HQ * D + head * D + lane
    tl.store(target, first.to(kind), mask=real & is_query)
    tl.store(target + HALF, second.to(kind), mask=real & is_query)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    stored = real & (slot >= 0)
    kind = key_cache_ptr.dtype.element_ty
    target = key_cache_ptr + slot * HKV * D + (head - HQ) * D + lane
    tl.store(target, first.to(kind), mask=stored & (head >= HQ) & (head < HQ + HKV))
    tl.store(target + HALF, second.to(kind), mask=stored & (head >= HQ) & (head < HQ + HKV))
    target = value_cache_ptr + slot * HKV * D + (head - HQ - HKV) * D + lane
    tl.store(target, low.to(kind), mask=stored & is_value)
    tl.store(target + HALF, high.to(kind), mask=stored & is_value)


@triton.jit
def _halves(ptr, lane, HALF: tl.constexpr):
    low = tl.load(ptr + lane, mask=lane < HALF, other=0.0).to(tl.float32)
    return low, tl.load(ptr + HALF + lane, mask=lane < HALF, other=0.0).to(tl.float32)


@triton.jit
def _store_kv(
    key_ptr,
    value_ptr,
    key_cache_ptr,
    value_cache_ptr,
    slots_ptr,
    key_stride,
    key_head_stride,
    value_stride,
    value_head_stride,
    HKV: tl.constexpr,
    D: tl.constexpr,
    HEADS: tl.constexpr,
    D_BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    start_next(EARLY)
    wait_for_inputs(EARLY)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    lane = tl.arange(0, D_BLOCK)[None, :]
    slot = tl.load(slots_ptr + token).to(tl.int64)
    stored = (head < HKV) & (lane < D) & (slot >= 0)
    key = tl.load(key_ptr + token * key_stride + head * key_head_stride + lane, mask=stored, other=0.0)
    value = tl.load(value_ptr + token * value_stride + head * value_head_stride + lane, mask=stored, other=0.0)
    target = slot * HKV * D + head * D + lane
    tl.store(key_cache_ptr + target, key.to(key_cache_ptr.dtype.element_ty), mask=stored)
    tl.store(value_cache_ptr + target, value.to(value_cache_ptr.dtype.element_ty), mask=stored)


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
    *,
    heads: int = 16,
    num_warps: int = 4,
) -> Tensor:
    """See kernels/qkv.py; the queries are contiguous. `heads`: of a program, a power of two."""
    tokens = qkv.shape[0]
    qkv = qkv if qkv.stride(1) == 1 else qkv.contiguous()
    query = torch.empty((tokens, num_heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    if tokens:
        early = launches_early(key_cache)
        launch(_split_norm_rope_store, (tokens, triton.cdiv(num_heads + 2 * num_kv_heads, heads)),
            qkv,
            positions.contiguous(),
            cos_sin,
            cos_sin if q_norm is None else q_norm,
            cos_sin if k_norm is None else k_norm,
            query,
            key_cache,
            value_cache,
            slot_mapping.contiguous(),
            qkv.stride(0),
            eps,
            HQ=num_heads,
            HKV=num_kv_heads,
            D=head_dim,
            Q_NORM=q_norm is not None,
            K_NORM=k_norm is not None,
            HEADS=heads,
            HALF_BLOCK=triton.next_power_of_2(head_dim // 2),
            EARLY=early,
            num_warps=num_warps,
            launch_pdl=early,
        )
    return query


def store_kv(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor, *, heads: int = 8
) -> None:
    """See kernels/qkv.py. `heads`: of a program, a power of two."""
    tokens, num_kv_heads, head_dim = key.shape
    key = key if key.stride(2) == 1 else key.contiguous()
    value = value if value.stride(2) == 1 else value.contiguous()
    if tokens:
        early = launches_early(key_cache)
        launch(_store_kv, (tokens, triton.cdiv(num_kv_heads, heads)),
            key,
            value,
            key_cache,
            value_cache,
            slot_mapping.contiguous(),
            key.stride(0),
            key.stride(1),
            value.stride(0),
            value.stride(1),
            HKV=num_kv_heads,
            D=head_dim,
            HEADS=heads,
            D_BLOCK=triton.next_power_of_2(head_dim),
            EARLY=early,
            launch_pdl=early,
        )
