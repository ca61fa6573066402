"""A decoding batch on scattered pages whose unused slots are NaN, and its attention in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class DecodeRows:
    """Inputs of one decode step; `expected` is [B, Hq, D] float64, zeros for rows of no context."""

    q: Tensor
    keys: Tensor
    values: Tensor
    tables: Tensor
    contexts: Tensor
    scale: float
    expected: Tensor


def make_rows(
    contexts: Sequence[int],
    page: int = 16,
    num_kv_heads: int = 2,
    group: int = 3,
    head_dim: int = 64,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
) -> DecodeRows:
    """Draw a batch. Table entries that no context needs point outside the pool, so that reading through them shows."""
    generator = torch.Generator().manual_seed(seed)
    batch, columns = len(contexts), -(-max(1, *contexts) // page) + 2
    num_pages = batch * columns + 1
    order = torch.randperm(num_pages, generator=generator)
    tables = torch.full((batch, columns), 2**30, dtype=torch.int32)
    keys = torch.full((num_pages, page, num_kv_heads, head_dim), torch.nan, dtype=dtype)
    values = keys.clone()
    q = torch.randn(batch, num_kv_heads * group, head_dim, generator=generator).to(dtype)
    expected = torch.zeros(q.shape, dtype=torch.float64)
    scale = head_dim**-0.5
    for row, context in enumerate(contexts):
        used = -(-context // page)
        tables[row, :used] = order[row * columns : row * columns + used].int()
        tokens = torch.arange(context)
        place = (tables[row, tokens // page].long(), tokens % page)
        keys[place] = torch.randn(context, num_kv_heads, head_dim, generator=generator).to(dtype)
        values[place] = torch.randn(context, num_kv_heads, head_dim, generator=generator).to(dtype)
        if context:
            grouped = q[row].double().view(num_kv_heads, group, head_dim)
            scores = torch.einsum("hgd,thd->hgt", grouped, keys[place].double()) * scale
            expected[row] = torch.einsum("hgt,thd->hgd", scores.softmax(-1), values[place].double()).flatten(0, 1)
    moved = (tensor.to(device) for tensor in (q, keys, values, tables))
    lengths = torch.tensor(contexts, dtype=torch.int32, device=device)
    return DecodeRows(*moved, contexts=lengths, scale=scale, expected=expected.to(device))


def relative_error(got: Tensor, expected: Tensor) -> float:
    """Norm of the difference over the norm of what is expected."""
    return float((got.double() - expected).norm() / expected.norm())
