"""Attention over paged keys and values for a mixed batch of prefill chunks and decode tokens.

Knows block tables and lengths; doesn't know sequences, layers or who filled the pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class AttentionMetadata:
    """What attention needs to know of a step's batch; the same for all layers.

    Attributes:
        block_tables: [B, M] int32, each row's pages in order; entries beyond its context are not read.
        query_start: [B + 1] int32, row b's queries are tokens query_start[b] to query_start[b + 1] of the step.
        context_lens: [B] int32, tokens that row b attends to at most, this step's included.
        max_query_len: the longest row's queries.
        max_context_len: the longest context.
        num_decodes: leading rows that have exactly one query.
        query_lens_host: the rows' query lengths, on the host.
        context_lens_host: their context lengths, on the host.
    """

    block_tables: Tensor
    query_start: Tensor
    context_lens: Tensor
    max_query_len: int
    max_context_len: int
    num_decodes: int
    query_lens_host: tuple[int, ...]
    context_lens_host: tuple[int, ...]


def build_metadata(
    block_tables: Tensor, query_lens: Sequence[int], context_lens: Sequence[int], block_size: int
) -> AttentionMetadata:
    """Work out, once per step, what all layers share. Rows with one query should come first: they run together.

    Args:
        block_tables: [B, M] int32, on the device; M * block_size must cover each context.
        query_lens: B numbers of queries, each at least 1.
        context_lens: B numbers of tokens, this step's included; context_lens[b] >= query_lens[b].
        block_size: tokens in a page.

    Raises:
        ValueError: lengths that contradict each other or the tables.
    """
    if not len(query_lens) == len(context_lens) == block_tables.shape[0]:
        raise ValueError(
            f"{block_tables.shape[0]} block tables, {len(query_lens)} query lengths, {len(context_lens)} context "
            "lengths: must be equal in number"
        )
    for row, (queries, context) in enumerate(zip(query_lens, context_lens, strict=True)):
        if not 1 <= queries <= context <= block_tables.shape[1] * block_size:
            raise ValueError(
                f"row {row}: {queries} queries, context {context}, table of {block_tables.shape[1]} pages of "
                f"{block_size}: must be 1 <= queries <= context <= pages * page size"
            )
    device = block_tables.device
    starts = [0]
    for queries in query_lens:
        starts.append(starts[-1] + queries)
    num_decodes = 0
    while num_decodes < len(query_lens) and query_lens[num_decodes] == 1:
        num_decodes += 1
    return AttentionMetadata(
        block_tables=block_tables,
        query_start=torch.tensor(starts, dtype=torch.int32, device=device),
        context_lens=torch.tensor(list(context_lens), dtype=torch.int32, device=device),
        max_query_len=max(query_lens, default=0),
        max_context_len=max(context_lens, default=0),
        num_decodes=num_decodes,
        query_lens_host=tuple(query_lens),
        context_lens_host=tuple(context_lens),
    )


def paged_attention(
    q: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata, scale: float
) -> Tensor:
    """Causal attention; row b's queries are the last ones of its context. Grouped heads share K and V (GQA).

    Args:
        q: [T, Hq, D]; T may exceed the rows' queries (padding), whose output is then zero.
        key_cache: [num_blocks, block_size, Hkv, D].
        value_cache: likewise.
        metadata: of this step, from `build_metadata`.
        scale: factor on the scores before the softmax.

    Returns:
        [T, Hq, D] in the dtype of `q`.
    """
    out = torch.zeros_like(q)
    block_size = key_cache.shape[1]
    start = 0
    for row, (queries, context) in enumerate(
        zip(metadata.query_lens_host, metadata.context_lens_host, strict=True)
    ):
        pages = metadata.block_tables[row, : -(-context // block_size)].long()
        keys = key_cache[pages].flatten(0, 1)[:context].transpose(0, 1)
        values = value_cache[pages].flatten(0, 1)[:context].transpose(0, 1)
        positions = torch.arange(context, device=q.device)
        mask = positions <= positions[context - queries :, None]
        out[start : start + queries] = F.scaled_dot_product_attention(
            q[start : start + queries].transpose(0, 1)[None],
            keys[None],
            values[None],
            attn_mask=mask,
            scale=scale,
            enable_gqa=True,
        )[0].transpose(0, 1)
        start += queries
    return out
