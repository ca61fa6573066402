"""Batches over paged keys and values, in which what no row may read is NaN, and their attention in float64."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

# norm of the difference / norm of the reference
RELATIVE_ERROR = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 1e-2}


class PagedBatch:
    """Rows with scattered pages. Slots that no context holds are NaN, and unused table entries name a page of NaN.

    Args:
        query_lens: queries of each row, 0 allowed.
        contexts: tokens of each row, its queries included.
        block_size: tokens in a page.
        num_kv_heads: Hkv.
        group: query heads of a KV head.
        head_dim: D.
        dtype: of queries and pages.
        device: where all tensors are.
        extra_tables: tables of no row, among which the rows' own are strewn; above 0, `rows` is set.
        strided: `q` is a slice of a joined projection.
    """

    def __init__(
        self,
        query_lens: Sequence[int],
        contexts: Sequence[int],
        block_size: int = 16,
        num_kv_heads: int = 2,
        group: int = 2,
        head_dim: int = 64,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        extra_tables: int = 0,
        strided: bool = False,
    ) -> None:
        self.query_lens, self.contexts, self.block_size = list(query_lens), list(contexts), block_size
        self.scale = head_dim**-0.5
        num_tables = len(contexts) + extra_tables
        columns = -(-max(contexts) // block_size) + 1
        shape = (num_tables * columns + 1, block_size, num_kv_heads, head_dim)
        pages = torch.randperm(shape[0])
        tables = pages[1:].view(num_tables, columns).int()
        order = torch.randperm(num_tables)[: len(contexts)] if extra_tables else torch.arange(len(contexts))
        self.key_cache, self.value_cache = (torch.full(shape, torch.nan, dtype=dtype) for _ in range(2))
        self._slots = []
        for row, context in zip(order.tolist(), contexts, strict=True):
            positions = torch.arange(context)
            slots = tables[row, positions // block_size].long() * block_size + positions % block_size
            for cache in (self.key_cache, self.value_cache):
                cache.flatten(0, 1)[slots] = torch.randn(context, *shape[2:]).to(dtype)
            tables[row, -(-context // block_size) :] = pages[0]
            self._slots.append(slots.to(device))
        num_tokens, num_heads = sum(query_lens), num_kv_heads * group
        q = torch.randn(num_tokens, num_heads + 2 * num_kv_heads if strided else num_heads, head_dim).to(dtype)
        self.q = q.to(device)[:, :num_heads]
        self.key_cache, self.value_cache = self.key_cache.to(device), self.value_cache.to(device)
        self.block_tables = tables.to(device)
        self.rows = order.int().to(device) if extra_tables else None
        self.query_start = torch.tensor([0, *accumulate(query_lens)], dtype=torch.int32, device=device)
        self.context_lens = torch.tensor(list(contexts), dtype=torch.int32, device=device)

    def expected(self) -> Tensor:
        """[T, Hq, D] float64."""
        out = torch.empty(self.q.shape, dtype=torch.float64, device=self.q.device)
        group = self.q.shape[1] // self.key_cache.shape[2]
        token = 0
        for slots, queries, context in zip(self._slots, self.query_lens, self.contexts, strict=True):
            keys, values = (cache.flatten(0, 1)[slots].double() for cache in (self.key_cache, self.value_cache))
            keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
            q = self.q[token : token + queries].double()
            scores = torch.einsum("qhd,khd->hqk", q, keys) * self.scale
            seen = torch.ones(queries, context, dtype=torch.bool, device=q.device).tril(context - queries)
            probs = scores.masked_fill(~seen, -torch.inf).softmax(-1)
            out[token : token + queries] = torch.einsum("hqk,khd->qhd", probs, values)
            token += queries
        return out


def relative_error(out: Tensor, expected: Tensor) -> float:
    """Norm of the difference over the norm of what is expected; NaN where `out` has one."""
    return float((out.double() - expected).norm() / expected.norm())
