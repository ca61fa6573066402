"""Causal attention of prefill chunks over paged keys and values in Triton: online softmax over tiles of keys.

The algorithm is FlashAttention-2's forward pass (Dao 2023, arXiv 2307.08691). Knows pages and lengths, no sequences.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from .triton_launch import launch

_LOG2_E = math.log2(math.e)


@triton.jit
def _key_slots(table, start, limit, PAGE: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr):
    """[BLOCK_N] int64 slots of the keys from `start` on. A tile that lies within one page needs one look-up."""
    keys = start + tl.arange(0, BLOCK_N)
    if PAGE % BLOCK_N == 0:
        page = tl.load(table + start // PAGE).to(tl.int64)
        return page * PAGE + keys % PAGE
    else:
        if MASKED:
            pages = tl.load(table + keys // PAGE, mask=keys < limit, other=0)
        else:
            pages = tl.load(table + keys // PAGE)
        return pages.to(tl.int64) * PAGE + keys % PAGE


@triton.jit
def _attend_tile(
    acc, highest, total, q, key_cache, value_cache, table, start, limit, positions, head_offset, scale_log2,
    TOKEN_STRIDE: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Take in keys start to start + BLOCK_N. Unless MASKED, all of them are seen by every query of the tile.

    A masked tile reads no key from `limit` on: there the block table and the pages may hold anything.
    """
    keys = start + tl.arange(0, BLOCK_N)
    dims = tl.arange(0, BLOCK_D)
    slots = _key_slots(table, start, limit, PAGE, BLOCK_N, MASKED)
    offsets = slots[:, None] * TOKEN_STRIDE + (head_offset + dims)[None, :]
    if MASKED:
        inside = (keys < limit)[:, None] & (dims < HEAD_DIM)[None, :]
        k = tl.load(key_cache + offsets, mask=inside, other=0.0)
        v = tl.load(value_cache + offsets, mask=inside, other=0.0)
    elif BLOCK_D == HEAD_DIM:
        k = tl.load(key_cache + offsets)
        v = tl.load(value_cache + offsets)
    else:
        k = tl.load(key_cache + offsets, mask=(dims < HEAD_DIM)[None, :], other=0.0)
        v = tl.load(value_cache + offsets, mask=(dims < HEAD_DIM)[None, :], other=0.0)
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if MASKED:
        # Key 0 is seen by every query and is in a row's first tile: `highest` is finite from there on.
        seen = (keys[None, :] <= positions[:, None]) & (keys < limit)[None, :]
        scores = tl.where(seen, scores, -float("inf"))
    new_highest = tl.maximum(highest, tl.max(scores, axis=1) * scale_log2)
    probs = tl.exp2(scores * scale_log2 - new_highest[:, None])
    keep = tl.exp2(highest - new_highest)
    total = total * keep + tl.sum(probs, axis=1)
    acc = tl.dot(probs.to(v.dtype), v, acc * keep[:, None], input_precision=PRECISION)
    return acc, new_highest, total


# Lengths and strides of a step's tables change from step to step: compiling for their alignment would compile
# the kernel again in the middle of serving.
@triton.jit(
    do_not_specialize=["table_stride"],
    do_not_specialize_on_alignment=["block_tables", "rows", "query_start", "context_lens"],
)
def _prefill_kernel(
    out, q, key_cache, value_cache, block_tables, rows, query_start, context_lens,
    table_stride, q_token_stride, q_head_stride, scale_log2,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    PAGE: tl.constexpr, PACK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_M // PACK queries of one row, for PACK query heads that share a KV head.

    Grid (query tiles, NUM_HEADS // PACK, rows). Late tiles have the most keys; they start first, so that the
    short ones fill the end of the launch.
    """
    QUERIES: tl.constexpr = BLOCK_M // PACK
    row = tl.program_id(2)
    first_token = tl.load(query_start + row)
    num_queries = tl.load(query_start + row + 1) - first_token
    first_query = (tl.num_programs(0) - 1 - tl.program_id(0)) * QUERIES
    if first_query >= num_queries:
        return
    context = tl.load(context_lens + row)
    if rows is not None:
        table_row = tl.load(rows + row).to(tl.int64)
    else:
        table_row = row.to(tl.int64)
    table = block_tables + table_row * table_stride

    lanes = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    queries = first_query + lanes // PACK
    heads = tl.program_id(1) * PACK + lanes % PACK
    real = (lanes < QUERIES * PACK) & (queries < num_queries)
    tokens = (first_token + queries).to(tl.int64)
    q_offsets = (tokens * q_token_stride + heads * q_head_stride)[:, None] + dims[None, :]
    inside = real[:, None] & (dims < HEAD_DIM)[None, :]
    q_tile = tl.load(q + q_offsets, mask=inside, other=0.0)

    # Query i of the row sees keys 0 to context - num_queries + i.
    positions = context - num_queries + queries
    first_position = context - num_queries + first_query
    limit = tl.minimum(first_position + QUERIES, context)
    seen_by_all = (first_position + 1) // BLOCK_N * BLOCK_N
    head_offset = (tl.program_id(1) * PACK // (NUM_HEADS // NUM_KV_HEADS)) * HEAD_DIM
    TOKEN_STRIDE: tl.constexpr = NUM_KV_HEADS * HEAD_DIM

    highest = tl.full([BLOCK_M], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in tl.range(0, seen_by_all, BLOCK_N):
        acc, highest, total = _attend_tile(
            acc, highest, total, q_tile, key_cache, value_cache, table, start, limit, positions, head_offset,
            scale_log2, TOKEN_STRIDE, HEAD_DIM, BLOCK_D, PAGE, BLOCK_N, False, PRECISION,
        )  # fmt: skip
    for start in tl.range(seen_by_all, limit, BLOCK_N):
        acc, highest, total = _attend_tile(
            acc, highest, total, q_tile, key_cache, value_cache, table, start, limit, positions, head_offset,
            scale_log2, TOKEN_STRIDE, HEAD_DIM, BLOCK_D, PAGE, BLOCK_N, True, PRECISION,
        )  # fmt: skip
    out_offsets = (tokens * (NUM_HEADS * HEAD_DIM) + heads * HEAD_DIM)[:, None] + dims[None, :]
    tl.store(out + out_offsets, (acc / total[:, None]).to(out.dtype.element_ty), mask=inside)


def default_tiles(head_dim: int, dtype: torch.dtype, lanes: int) -> tuple[int, int, int, int]:
    """(block_m, block_n, num_warps, num_stages) for a launch.

    Args:
        head_dim: D.
        dtype: of queries and pages.
        lanes: the longest row's queries times the query heads of a KV head: what a tile could hold at most.
    """
    if dtype == torch.float32:
        # Exact fp32 products run on the ordinary cores, with both operands in registers: larger tiles spill.
        return (64, 32, 8, 2) if head_dim <= 64 else (32, 16, 8, 2)
    if lanes <= 64:
        return (64, 64, 4, 3) if head_dim <= 128 else (64, 32, 4, 2)
    return (128, 64, 8, 3) if head_dim <= 128 else (128, 32, 8, 2)


def prefill_attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    rows: Tensor | None,
    query_start: Tensor,
    context_lens: Tensor,
    max_query_len: int,
    scale: float,
    *,
    block_m: int | None = None,
    block_n: int | None = None,
    num_warps: int | None = None,
    num_stages: int | None = None,
    pack: int | None = None,
) -> Tensor:
    """Causal attention; row b's queries are the last ones of its context, whose keys are all in the pages.

    Args:
        q: [T, Hq, D] fp32, fp16 or bf16, last dimension contiguous.
        key_cache: [N, P, Hkv, D], contiguous, in the dtype of `q`; Hq is a multiple of Hkv, P any number.
        value_cache: likewise.
        block_tables: [R, M] int32, last dimension contiguous; entries beyond a row's context are not read.
        rows: [B] int32, the row of `block_tables` that belongs to batch row b; None: row b.
        query_start: [B + 1] int32, row b's queries are tokens query_start[b] to query_start[b + 1] of `q`; none is
            allowed, and query_start[0] may be above 0.
        context_lens: [B] int32, this step's tokens included; at least the row's queries.
        max_query_len: of the longest row; no row may have more.
        scale: factor on the scores before the softmax, at least 0.
        block_m: lanes of a tile, a power of two of at least 16: block_m // pack queries of `pack` heads each.
        block_n: keys of a tile, a power of two of at least 16.
        num_warps: of a program.
        num_stages: tiles of keys in flight, and one.
        pack: query heads in one tile: Hq // Hkv or 1. None packs them where block_m holds them.

    Returns:
        [T, Hq, D], contiguous, in the dtype of `q`; tokens that belong to no row are left unwritten.
    """
    num_heads, head_dim = q.shape[1], q.shape[2]
    num_kv_heads, group = key_cache.shape[2], num_heads // key_cache.shape[2]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if max_query_len == 0 or context_lens.shape[0] == 0:
        return out
    tiles = default_tiles(head_dim, q.dtype, max_query_len * group)
    block_m, block_n = block_m or tiles[0], block_n or tiles[1]
    pack = pack or (group if group <= block_m else 1)
    grid = (triton.cdiv(max_query_len, block_m // pack), num_heads // pack, context_lens.shape[0])
    launch(_prefill_kernel, grid,
        out,
        q if q.stride(2) == 1 else q.contiguous(),
        key_cache,
        value_cache,
        block_tables,
        rows,
        query_start,
        context_lens,
        block_tables.stride(0),
        q.stride(0) if q.stride(2) == 1 else num_heads * head_dim,
        q.stride(1) if q.stride(2) == 1 else head_dim,
        scale * _LOG2_E,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_D=max(16, triton.next_power_of_2(head_dim)),
        PAGE=key_cache.shape[1],
        PACK=pack,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=num_warps or tiles[2],
        num_stages=num_stages or tiles[3],
    )
    return out
