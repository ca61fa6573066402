"""Attention of one query token per row over paged keys and values, split over the context where the batch is small.

Knows pages, tables and lengths; doesn't know layers, graphs, or which rows of a batch are decoding.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .decode_settings import choose_settings
from .triton_launch import launch

_LOG2_E = 1.4426950408889634
_MIN_ROWS = 16  # the least rows of a tensor core's product: a smaller group of query heads is padded to it
_COMBINE_CHUNK = 32


@lru_cache(maxsize=64)
def _device_facts(device: torch.device) -> tuple[int, bool]:
    """(multiprocessors, whether a kernel can be launched before the one it waits for has ended)."""
    if device.type != "cuda":
        return 132, False
    facts = torch.cuda.get_device_properties(device)
    return facts.multi_processor_count, facts.major >= 9


@triton.jit
def _attend_tile(
    q,
    top,
    total,
    acc,
    keys,
    values,
    pages,
    tile,
    context,
    scale_log2,
    page_stride,
    token_stride,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    MASKED: tl.constexpr,
):
    """One step of the online softmax (Milakov and Gimelshein 2018) over TILE tokens; `top` is in units of log2."""
    tokens = tile * TILE + tl.arange(0, TILE)
    dims = tl.arange(0, D_PAD)
    places = pages.to(tl.int64) * page_stride + (tokens % PAGE) * token_stride
    offsets = places[:, None] + dims[None, :]
    if MASKED:
        inside = (tokens < context)[:, None] & (dims < D)[None, :]
        k = tl.load(keys + offsets, mask=inside, other=0.0)
        v = tl.load(values + offsets, mask=inside, other=0.0)
    elif D == D_PAD:
        k = tl.load(keys + offsets)
        v = tl.load(values + offsets)
    else:
        k = tl.load(keys + offsets, mask=(dims < D)[None, :], other=0.0)
        v = tl.load(values + offsets, mask=(dims < D)[None, :], other=0.0)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
    if MASKED:
        scores = tl.where((tokens < context)[None, :], scores, float("-inf"))
    # A tile has at least one token of the context, so the new maximum is finite.
    new_top = tl.maximum(top, tl.max(scores, 1))
    weights = tl.exp2(scores - new_top[:, None])
    fade = tl.exp2(top - new_top)
    total = total * fade + tl.sum(weights, 1)
    acc = acc * fade[:, None]
    acc = tl.dot(weights.to(v.dtype), v, acc, input_precision="ieee")
    return new_top, total, acc


@triton.jit
def _attend_kernel(
    q_ptr,
    key_ptr,
    value_ptr,
    table_ptr,
    rows_ptr,
    context_ptr,
    out_ptr,
    logsum_ptr,
    scale_log2,
    q_row_stride,
    q_head_stride,
    q_dim_stride,
    page_stride,
    token_stride,
    head_stride,
    table_stride,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    SPLIT: tl.constexpr,
    HAS_ROWS: tl.constexpr,
    PEEL: tl.constexpr,
    AHEAD: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Attention of one row's group of query heads over one split of its context.

    The grid is (KV heads, splits, rows): neighbouring programs read neighbouring heads of the same tokens.
    """
    if DEPENDENT:
        gdc_launch_dependents()
    kv_head = tl.program_id(0)
    split = tl.program_id(1)
    num_splits = tl.num_programs(1)
    row = tl.program_id(2)
    context = tl.load(context_ptr + row)
    # Splits are of this row's own tiles: a short row is divided as evenly as a long one.
    tiles = tl.cdiv(context, TILE)
    per_split = tl.cdiv(tiles, num_splits)
    begin = split * per_split
    end = tl.minimum(begin + per_split, tiles)
    if SPLIT:
        if begin >= end:  # the combine pass reads no result of an empty split
            return
    table_row = row
    if HAS_ROWS:
        table_row = tl.load(rows_ptr + row)
    table = table_ptr + table_row.to(tl.int64) * table_stride

    heads = tl.arange(0, ROWS)
    dims = tl.arange(0, D_PAD)
    in_group = (heads < GROUP)[:, None] & (dims < D)[None, :]
    q_heads = kv_head * GROUP + heads
    q_offsets = row.to(tl.int64) * q_row_stride + q_heads[:, None] * q_head_stride + dims[None, :] * q_dim_stride
    q = tl.load(q_ptr + q_offsets, mask=in_group, other=0.0)
    keys = key_ptr + kv_head.to(tl.int64) * head_stride
    values = value_ptr + kv_head.to(tl.int64) * head_stride

    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, D_PAD], tl.float32)
    in_tile = tl.arange(0, TILE)
    stop = end
    if PEEL:
        stop = tl.minimum(end, context // TILE)
    if AHEAD:
        tokens = begin * TILE + in_tile
        pages = tl.load(table + tokens // PAGE, mask=tokens < context, other=0)
    for tile in range(begin, stop):
        if not AHEAD:
            tokens = tile * TILE + in_tile
            pages = tl.load(table + tokens // PAGE, mask=tokens < context, other=0)
        top, total, acc = _attend_tile(
            q, top, total, acc, keys, values, pages, tile, context, scale_log2, page_stride, token_stride,
            D, D_PAD, PAGE, TILE, not PEEL,
        )  # fmt: skip
        if AHEAD:
            tokens = (tile + 1) * TILE + in_tile
            pages = tl.load(table + tokens // PAGE, mask=tokens < context, other=0)
    if PEEL:
        if stop < end:
            if not AHEAD:
                tokens = stop * TILE + in_tile
                pages = tl.load(table + tokens // PAGE, mask=tokens < context, other=0)
            top, total, acc = _attend_tile(
                q, top, total, acc, keys, values, pages, stop, context, scale_log2, page_stride, token_stride,
                D, D_PAD, PAGE, TILE, True,
            )  # fmt: skip

    # A row of no context has a total of 0: its output is zeros.
    out = acc / tl.where(total > 0, total, 1.0)[:, None]
    places = (row.to(tl.int64) * tl.num_programs(0) * GROUP + q_heads) * num_splits + split
    tl.store(out_ptr + places[:, None] * D + dims[None, :], out.to(out_ptr.dtype.element_ty), mask=in_group)
    if SPLIT:
        tl.store(logsum_ptr + places, top + tl.log2(total), mask=heads < GROUP)


@triton.jit
def _combine_kernel(
    part_ptr,
    logsum_ptr,
    context_ptr,
    out_ptr,
    num_splits,
    D: tl.constexpr,
    D_PAD: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS_PAD: tl.constexpr,
    CHUNK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """Join the splits of one query head of one row, weighted by their shares of the softmax's sum (Dao et al. 2023)."""
    head = tl.program_id(0)
    row = tl.program_id(1)
    # The lengths were final before the splits were launched; only their results have to be waited for.
    tiles = tl.cdiv(tl.load(context_ptr + row), TILE)
    used = tl.cdiv(tiles, tl.maximum(tl.cdiv(tiles, num_splits), 1))
    place = row.to(tl.int64) * tl.num_programs(0) + head
    logsums = logsum_ptr + place * num_splits
    parts = part_ptr + place * num_splits * D
    if DEPENDENT:
        gdc_wait()
    splits = tl.arange(0, SPLITS_PAD)
    top = tl.max(tl.load(logsums + splits, mask=splits < used, other=float("-inf")), 0)
    dims = tl.arange(0, D_PAD)
    total = 0.0
    acc = tl.zeros([D_PAD], tl.float32)
    for first in range(0, used, CHUNK):
        chunk = first + tl.arange(0, CHUNK)
        share = tl.exp2(tl.load(logsums + chunk, mask=chunk < used, other=float("-inf")) - top)
        inside = (chunk < used)[:, None] & (dims < D)[None, :]
        part = tl.load(parts + chunk[:, None] * D + dims[None, :], mask=inside, other=0.0)
        total += tl.sum(share, 0)
        acc += tl.sum(part * share[:, None], 0)
    out = acc / tl.where(total > 0, total, 1.0)
    tl.store(out_ptr + place * D + dims, out.to(out_ptr.dtype.element_ty), mask=dims < D)


def decode_attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    rows: Tensor | None,
    context_lens: Tensor,
    scale: float,
    *,
    max_context_len: int | None = None,
    num_splits: int | None = None,
    tile: int | None = None,
    num_warps: int | None = None,
    num_stages: int | None = None,
    peel: bool | None = None,
    ahead: bool = True,
    dependent: bool | None = None,
) -> Tensor:
    """Attention of one token per row over the row's whole context, its own key and value included.

    Programs take rows in the order given; with ragged contexts the end of the launch is shortest when the longest rows
    come first. Can be captured in a CUDA graph: nothing here depends on what the tensors hold.

    Args:
        q: [B, Hq, D], any strides.
        key_cache: [N, P, Hkv, D] in the dtype of `q` (bfloat16, float16, float32), last stride 1; Hq a multiple of Hkv.
        value_cache: likewise, with the strides of `key_cache`.
        block_tables: [R, M] int32, last stride 1; entries beyond a row's context are not read.
        rows: [B] int32, the row of `block_tables` that belongs to each row of `q`; None: its own number.
        context_lens: [B] int32; 0 is a padding row, whose output is zero and for which no page is read.
        scale: factor on the scores before the softmax.
        max_context_len: no context is longer, in tokens; None: M * P. Bounds the number of splits, nothing else.
        num_splits: programs that share a row and KV head; None and below: see `choose_settings`.
        tile: tokens that a program reads at once, a power of two from 16.
        num_warps: of a program.
        num_stages: 1 more than the tiles in flight.
        peel: whether a last, partial tile runs apart.
        ahead: whether the page ids of a tile are read during the tile before it.
        dependent: whether the combine pass is launched before the splits have ended, and waits for them on the device;
            None: where the device can.

    Returns:
        [B, Hq, D] in the dtype of `q`, a new contiguous tensor.
    """
    batch, num_heads, head_dim = q.shape
    _, page, num_kv_heads, _ = key_cache.shape
    num_sms, can_depend = _device_facts(q.device)
    limit = max_context_len or block_tables.shape[1] * page
    chosen = choose_settings(batch, num_kv_heads, limit, head_dim, q.element_size(), num_sms)
    tile = tile or chosen.tile
    splits = num_splits or chosen.num_splits
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if batch == 0:
        return out
    split = splits > 1
    dependent = split and (can_depend if dependent is None else dependent)
    part, logsum = out, out
    if split:
        part = torch.empty((batch, num_heads, splits, head_dim), dtype=torch.float32, device=q.device)
        logsum = torch.empty((batch, num_heads, splits), dtype=torch.float32, device=q.device)
    group = num_heads // num_kv_heads
    padded_dim = triton.next_power_of_2(head_dim)
    page_stride, token_stride, head_stride, _ = key_cache.stride()
    launch(_attend_kernel, (num_kv_heads, splits, batch),
        q, key_cache, value_cache, block_tables, rows, context_lens, part, logsum, scale * _LOG2_E,
        *q.stride(), page_stride, token_stride, head_stride, block_tables.stride(0),
        GROUP=group, ROWS=max(_MIN_ROWS, triton.next_power_of_2(group)), D=head_dim, D_PAD=padded_dim, PAGE=page,
        TILE=tile, SPLIT=split, HAS_ROWS=rows is not None,
        PEEL=chosen.peel if peel is None else peel, AHEAD=ahead, DEPENDENT=dependent,
        num_warps=num_warps or chosen.num_warps, num_stages=num_stages or chosen.num_stages,
    )  # fmt: skip
    if split:
        splits_pad = triton.next_power_of_2(splits)
        launch(_combine_kernel, (num_heads, batch),
            part, logsum, context_lens, out, splits, D=head_dim, D_PAD=padded_dim, TILE=tile, SPLITS_PAD=splits_pad,
            CHUNK=min(splits_pad, _COMBINE_CHUNK), DEPENDENT=dependent, num_warps=4,
            **({"launch_pdl": True} if dependent else {}),
        )  # fmt: skip
    return out
