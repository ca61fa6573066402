"""Paged attention in plain torch: the reference on every device, and the fast path on a CPU.

Rows with one query run as a few batched products over gathered keys, whatever their number; each prefill chunk runs
as one call of torch's fused attention. What depends on the step only is worked out once, in a `Plan`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# A group of decode rows is padded to its longest context. Beyond this many padded tokens, plus a share of the real
# ones, a further group costs less than the padding.
_FREE_PADDING = 512
_PADDING_SHARE = 0.25

_MAX_CHUNK_QUERIES = 512  # of a chunk that needs a mask, which has chunk x context entries
_MAX_KEPT_MASK = 1 << 20  # entries of a mask that is kept for all layers; larger ones are made for each


@dataclass(frozen=True)
class DecodeGroup:
    """b rows with one query each, padded to N tokens of context. Padding reads the row's first token again.

    Attributes:
        tokens: the rows' places among the step's tokens, a slice or [b] int64.
        key_rows: [b * Hkv * N] int64, rows of a cache seen as [num_blocks * block_size * Hkv, D], by row, head, token.
        value_rows: [b * Hq, N] int64, the same with each head repeated for its group of query heads.
        bias: [b * Hkv, 1, N] float32, 0 for a token of the context and -inf for padding.
    """

    tokens: slice | Tensor
    key_rows: Tensor
    value_rows: Tensor
    bias: Tensor


@dataclass(frozen=True)
class PrefillChunk:
    """Consecutive queries of one row.

    Attributes:
        start: first token of the chunk among the step's.
        stop: one past its last.
        context: tokens that its last query attends to.
        pages: [P] int64, the pages of these.
        mask: [queries, context] bool, None where it is plainly causal or too large to keep.
    """

    start: int
    stop: int
    context: int
    pages: Tensor
    mask: Tensor | None


@dataclass(frozen=True)
class Plan:
    """A step's work, in groups; `num_tokens` counts the queries of all of them."""

    decodes: tuple[DecodeGroup, ...]
    prefills: tuple[PrefillChunk, ...]
    num_tokens: int


def build_plan(
    block_tables: Tensor,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    block_size: int,
    num_heads: int,
    num_kv_heads: int,
) -> Plan:
    """Work out gather indices and masks for a step.

    Args:
        block_tables: [B, M] integer, on the device.
        query_lens: B numbers of queries.
        context_lens: B context lengths.
        block_size: tokens in a page.
        num_heads: Hq, a multiple of Hkv.
        num_kv_heads: Hkv.
    """
    tables = block_tables.long()
    starts: list[int] = []
    total = 0
    for queries in query_lens:
        starts.append(total)
        total += queries
    singles = [row for row, queries in enumerate(query_lens) if queries == 1]
    decodes = tuple(
        _decode_group(tables, rows, starts, context_lens, block_size, num_heads, num_kv_heads)
        for rows in _group_by_length(singles, context_lens)
    )
    prefills: list[PrefillChunk] = []
    for row, queries in enumerate(query_lens):
        if queries > 1:
            prefills += _prefill_chunks(tables[row], starts[row], queries, context_lens[row], block_size)
    return Plan(decodes, tuple(prefills), total)


def attend(q: Tensor, key_cache: Tensor, value_cache: Tensor, plan: Plan, scale: float) -> Tensor:
    """Attention of all of a step's queries; arguments and result as in `attention.paged_attention`."""
    if len(plan.decodes) == 1 and plan.num_tokens == q.shape[0] and not plan.prefills:
        return _attend_decodes(q, key_cache, value_cache, plan.decodes[0], scale)
    out = q.new_empty(q.shape)
    for group in plan.decodes:
        out[group.tokens] = _attend_decodes(q[group.tokens], key_cache, value_cache, group, scale)
    for chunk in plan.prefills:
        part = slice(chunk.start, chunk.stop)
        out[part] = _attend_chunk(q[part], key_cache, value_cache, chunk, scale)
    out[plan.num_tokens :] = 0
    return out


def _group_by_length(rows: list[int], context_lens: Sequence[int]) -> list[list[int]]:
    """Split rows so that padding each group to its longest context wastes little."""
    groups: list[list[int]] = []
    longest = real = padding = 0
    for row in sorted(rows, key=lambda row: -context_lens[row]):
        context = context_lens[row]
        if groups and padding + longest - context <= _FREE_PADDING + _PADDING_SHARE * (real + context):
            groups[-1].append(row)
            real, padding = real + context, padding + longest - context
        else:
            groups.append([row])
            longest, real, padding = context, context, 0
    return [sorted(group) for group in groups]


def _decode_group(
    tables: Tensor,
    rows: list[int],
    starts: Sequence[int],
    context_lens: Sequence[int],
    block_size: int,
    num_heads: int,
    num_kv_heads: int,
) -> DecodeGroup:
    device = tables.device
    tokens = [starts[row] for row in rows]
    contexts = [context_lens[row] for row in rows]
    padded = max(contexts)
    positions = torch.arange(padded, device=device)
    real = positions < torch.tensor(contexts, device=device)[:, None]
    reads = torch.where(real, positions, 0)
    tables = tables if len(rows) == tables.shape[0] else tables[torch.tensor(rows, device=device)]
    slots = tables.gather(1, reads // block_size) * block_size + reads % block_size
    heads = torch.arange(num_kv_heads, device=device)[:, None]
    key_rows = slots[:, None, :] * num_kv_heads + heads
    group = num_heads // num_kv_heads
    value_rows = key_rows[:, :, None, :].expand(-1, -1, group, -1)
    bias = torch.zeros(real.shape, device=device).masked_fill_(~real, -torch.inf)
    consecutive = tokens == list(range(tokens[0], tokens[0] + len(tokens)))
    return DecodeGroup(
        tokens=slice(tokens[0], tokens[0] + len(tokens)) if consecutive else torch.tensor(tokens, device=device),
        key_rows=key_rows.flatten(),
        value_rows=value_rows.reshape(-1, padded),
        bias=bias[:, None, :].expand(-1, num_kv_heads, -1).reshape(-1, 1, padded),
    )


def _attend_decodes(q: Tensor, key_cache: Tensor, value_cache: Tensor, group: DecodeGroup, scale: float) -> Tensor:
    """[b, Hq, D] queries, one a row, against their contexts."""
    rows, num_heads, head_dim = q.shape
    batch, _, padded = group.bias.shape
    keys = key_cache.view(-1, head_dim).index_select(0, group.key_rows).view(batch, padded, head_dim)
    queries = q.reshape(batch, -1, head_dim)
    scores = torch.baddbmm(group.bias, queries.float(), keys.float().transpose(1, 2), alpha=scale)
    probs = scores.softmax(dim=-1)
    if q.dtype == torch.float32:
        # Gathers and sums in one pass: the values are never copied.
        out = F.embedding_bag(
            group.value_rows, value_cache.view(-1, head_dim), mode="sum", per_sample_weights=probs.view(-1, padded)
        )
    else:
        values = value_cache.view(-1, head_dim).index_select(0, group.key_rows).view(batch, padded, head_dim)
        out = torch.bmm(probs, values.float()).to(q.dtype)
    return out.view(rows, num_heads, head_dim)


def _prefill_chunks(table: Tensor, start: int, queries: int, context: int, block_size: int) -> list[PrefillChunk]:
    """One chunk where the row begins at position 0, which needs no mask; else chunks of bounded size."""
    prefix = context - queries
    size = queries if prefix == 0 else _MAX_CHUNK_QUERIES
    chunks = []
    for first in range(0, queries, size):
        last = min(first + size, queries)
        seen = prefix + last
        kept = prefix > 0 and (last - first) * seen <= _MAX_KEPT_MASK
        mask = _causal_mask(last - first, seen, table.device) if kept else None
        chunks.append(PrefillChunk(start + first, start + last, seen, table[: -(-seen // block_size)], mask))
    return chunks


def _causal_mask(queries: int, context: int, device: torch.device) -> Tensor:
    """[queries, context] bool: the queries are the last ones of the context."""
    return torch.ones(queries, context, dtype=torch.bool, device=device).tril_(context - queries)


def _attend_chunk(q: Tensor, key_cache: Tensor, value_cache: Tensor, chunk: PrefillChunk, scale: float) -> Tensor:
    """[queries, Hq, D] queries of one row against its context."""
    queries = chunk.stop - chunk.start
    causal = queries == chunk.context
    mask = chunk.mask if causal or chunk.mask is not None else _causal_mask(queries, chunk.context, q.device)
    keys = key_cache.index_select(0, chunk.pages).flatten(0, 1)[: chunk.context]
    values = value_cache.index_select(0, chunk.pages).flatten(0, 1)[: chunk.context]
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
        attn_mask=mask,
        is_causal=causal,
        scale=scale,
        enable_gqa=True,
    )
    return out[0].transpose(0, 1)
