"""Attention over paged keys and values for a mixed batch of prefill chunks and decode tokens.

Knows block tables and lengths; doesn't know sequences, layers or who filled the pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from .attention_torch import Plan, attend, build_plan


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
        block_size: tokens in a page.
        query_lens_host: the rows' query lengths, on the host.
        context_lens_host: their context lengths, on the host.
    """

    block_tables: Tensor
    query_start: Tensor
    context_lens: Tensor
    max_query_len: int
    max_context_len: int
    num_decodes: int
    block_size: int
    query_lens_host: tuple[int, ...]
    context_lens_host: tuple[int, ...]
    _plans: dict[tuple[int, int], Plan] = field(default_factory=dict, init=False, repr=False, compare=False)

    def torch_plan(self, num_heads: int, num_kv_heads: int) -> Plan:
        """The torch backend's gather indices and masks, made at the first layer and shared by the others."""
        key = (num_heads, num_kv_heads)
        if key not in self._plans:
            self._plans[key] = build_plan(
                self.block_tables, self.query_lens_host, self.context_lens_host, self.block_size, *key
            )
        return self._plans[key]


def build_metadata(
    block_tables: Tensor, query_lens: Sequence[int], context_lens: Sequence[int], block_size: int
) -> AttentionMetadata:
    """Describe a step's batch once for all layers. Rows with one query should come first: they run together.

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
    capacity = block_tables.shape[1] * block_size
    for row, (queries, context) in enumerate(zip(query_lens, context_lens, strict=True)):
        if not 1 <= queries <= context <= capacity:
            raise ValueError(
                f"row {row}: {queries} queries, context {context}, table of {capacity} tokens: "
                "must be 1 <= queries <= context <= table"
            )
    device = block_tables.device
    decodes = next((row for row, queries in enumerate(query_lens) if queries > 1), len(query_lens))
    return AttentionMetadata(
        block_tables=block_tables,
        query_start=torch.tensor([0, *accumulate(query_lens)], dtype=torch.int32, device=device),
        context_lens=torch.tensor(list(context_lens), dtype=torch.int32, device=device),
        max_query_len=max(query_lens, default=0),
        max_context_len=max(context_lens, default=0),
        num_decodes=decodes,
        block_size=block_size,
        query_lens_host=tuple(query_lens),
        context_lens_host=tuple(context_lens),
    )


def paged_attention(
    q: Tensor, key_cache: Tensor, value_cache: Tensor, metadata: AttentionMetadata, scale: float
) -> Tensor:
    """Causal attention; row b's queries are the last ones of its context. Grouped heads share K and V (GQA).

    Args:
        q: [T, Hq, D], any strides; T may exceed the rows' queries (padding), whose output is then zero.
        key_cache: [num_blocks, block_size, Hkv, D], contiguous, in the dtype of `q`; Hq is a multiple of Hkv.
        value_cache: likewise.
        metadata: of this step, from `build_metadata`.
        scale: factor on the scores before the softmax.

    Returns:
        [T, Hq, D] in the dtype of `q`, a new tensor.
    """
    plan = metadata.torch_plan(q.shape[1], key_cache.shape[2])
    return attend(q, key_cache, value_cache, plan, scale)
