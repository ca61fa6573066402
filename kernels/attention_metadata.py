"""What attention has to know of a step's batch: tables, lengths, and what follows from them for all layers.

Built without waiting for the device. Doesn't know what the rows are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from .attention_choice import Backend
from .attention_torch import Plan, build_plan

_ALIGNED = 4  # int32 entries in 16 bytes: Triton compiles a kernel of its own for pointers that are aligned less


class Rows(NamedTuple):
    """Consecutive rows of a batch; fields as in `AttentionMetadata`, cut to these rows."""

    block_tables: Tensor
    rows: Tensor | None
    query_start: Tensor
    context_lens: Tensor


@dataclass(frozen=True)
class AttentionMetadata:
    """What attention needs to know of a step's batch of B rows; the same for all layers.

    Attributes:
        block_tables: [R, M] int32, pages in order, a table a row; entries beyond a row's context are not read.
        query_start: [B + 1] int32, row b's queries are tokens query_start[b] to query_start[b + 1] of the step.
        context_lens: [B] int32, tokens that row b attends to at most, this step's included.
        max_query_len: the longest row's queries.
        max_context_len: at least the longest context.
        num_decodes: leading rows that have exactly one query.
        block_size: tokens in a page.
        num_tokens: queries of all rows.
        rows: [B] int32, row of `block_tables` that belongs to row b; None: row b.
        backend: what computes.
        is_static: the tensors' contents change while this object stays, as in a CUDA graph.
        key_start: [B - num_decodes + 1] int32, cumulated context lengths of the rows behind the decodes ("flash").
        query_lens_host: the rows' query lengths, on the host; None in static metadata.
        context_lens_host: their context lengths, likewise.
    """

    block_tables: Tensor
    query_start: Tensor
    context_lens: Tensor
    max_query_len: int
    max_context_len: int
    num_decodes: int
    block_size: int
    num_tokens: int
    rows: Tensor | None = None
    backend: Backend = "torch"
    is_static: bool = False
    key_start: Tensor | None = None
    query_lens_host: tuple[int, ...] | None = None
    context_lens_host: tuple[int, ...] | None = None
    _plans: dict[tuple[int, int], Plan] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def num_rows(self) -> int:
        """B."""
        return self.context_lens.shape[0]

    @cached_property
    def decodes(self) -> Rows:
        """The leading rows with one query each."""
        return self._cut(0, self.num_decodes)

    @cached_property
    def prefills(self) -> Rows:
        """The rows behind them. Their `query_start` counts from the step's first token."""
        return self._cut(self.num_decodes, self.num_rows)

    def torch_plan(self, num_heads: int, num_kv_heads: int) -> Plan:
        """The torch backend's gather indices and masks, made at the first layer and shared by the others.

        Raises:
            ValueError: static metadata, which keeps no lengths on the host.
        """
        if self.query_lens_host is None or self.context_lens_host is None:
            raise ValueError("the torch backend needs lengths on the host: use build_metadata, or another backend")
        key = (num_heads, num_kv_heads)
        if key not in self._plans:
            lengths = self.query_lens_host, self.context_lens_host
            self._plans[key] = build_plan(self.own_tables(), *lengths, self.block_size, *key)
        return self._plans[key]

    def own_tables(self) -> Tensor:
        """[B, M], the table of each row of the batch, gathered where `rows` says so: once a step, but at each call
        from static metadata, since a captured graph must gather again when it is replayed.
        """
        if self.rows is None:
            return self.block_tables
        return self.block_tables.index_select(0, self.rows) if self.is_static else self._gathered_tables

    @cached_property
    def _gathered_tables(self) -> Tensor:
        return self.block_tables if self.rows is None else self.block_tables.index_select(0, self.rows)

    def _cut(self, first: int, last: int) -> Rows:
        tables = self.block_tables if self.rows is not None else self.block_tables[first:last]
        rows = self.rows[first:last] if self.rows is not None else None
        return Rows(tables, rows, self.query_start[first : last + 1], self.context_lens[first:last])


def build_metadata(
    block_tables: Tensor,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    block_size: int,
    rows: Sequence[int] | Tensor | None = None,
    backend: Backend = "torch",
) -> AttentionMetadata:
    """Describe a step's batch once for all layers. Rows with one query should come first: they run together.

    The lengths go to the device in one copy that isn't waited for.

    Args:
        block_tables: [R, M] int32, on the device; M * block_size must cover each context.
        query_lens: B numbers of queries, each at least 1.
        context_lens: B numbers of tokens, this step's included; context_lens[b] >= query_lens[b].
        block_size: tokens in a page.
        rows: B rows of `block_tables`, of rows 0 to B - 1 of the batch; a tensor is int32 and on the device. None:
            R = B, in order.
        backend: from `choose_attention`.

    Raises:
        ValueError: lengths that contradict each other or the tables.
    """
    num_rows = block_tables.shape[0] if rows is None else len(rows)
    if not len(query_lens) == len(context_lens) == num_rows:
        raise ValueError(
            f"{num_rows} block tables, {len(query_lens)} query lengths, {len(context_lens)} context lengths: "
            "must be equal in number"
        )
    _check_lengths(query_lens, context_lens, block_tables.shape[1] * block_size)
    decodes = next((row for row, queries in enumerate(query_lens) if queries > 1), num_rows)
    starts = [0, *accumulate(query_lens)]
    key_starts = [0, *accumulate(context_lens[decodes:])] if backend == "flash" else []
    host_rows = [] if rows is None or isinstance(rows, Tensor) else rows
    query_start, contexts, key_start, row_ids = _to_device(
        [starts, context_lens, key_starts, host_rows], block_tables.device
    )
    return AttentionMetadata(
        block_tables=block_tables,
        query_start=query_start,
        context_lens=contexts,
        max_query_len=max(query_lens, default=0),
        max_context_len=max(context_lens, default=0),
        num_decodes=decodes,
        block_size=block_size,
        num_tokens=starts[-1],
        rows=rows if rows is None or isinstance(rows, Tensor) else row_ids,
        backend=backend,
        key_start=key_start if key_starts else None,
        query_lens_host=tuple(query_lens),
        context_lens_host=tuple(context_lens),
    )


def decode_metadata(
    block_tables: Tensor,
    rows: Tensor | None,
    context_lens: Tensor,
    block_size: int,
    max_context_len: int,
    backend: Backend = "triton",
) -> AttentionMetadata:
    """Describe a batch of decode tokens by tensors whose contents may change while it is in use, as in a CUDA graph.

    Args:
        block_tables: [R, M] int32.
        rows: [B] int32, the row of `block_tables` of each token; None: row b.
        context_lens: [B] int32, the tokens themselves included; 0 is a padding row, whose output is zero.
        block_size: tokens in a page.
        max_context_len: no context will ever be longer.
        backend: "triton" or "flash". With `rows`, flash-attn gathers the tables again in each layer.

    Raises:
        ValueError: the torch backend, which needs the lengths on the host.
    """
    if backend == "torch":
        raise ValueError("backend='torch' needs lengths on the host: use build_metadata, or 'triton' or 'flash'")
    batch = context_lens.shape[0]
    return AttentionMetadata(
        block_tables=block_tables,
        query_start=torch.arange(batch + 1, dtype=torch.int32, device=context_lens.device),
        context_lens=context_lens,
        max_query_len=1,
        max_context_len=max_context_len,
        num_decodes=batch,
        block_size=block_size,
        num_tokens=batch,
        rows=rows,
        backend=backend,
        is_static=True,
    )


def _check_lengths(query_lens: Sequence[int], context_lens: Sequence[int], capacity: int) -> None:
    for row, (queries, context) in enumerate(zip(query_lens, context_lens, strict=True)):
        if not 1 <= queries <= context <= capacity:
            raise ValueError(
                f"row {row}: {queries} queries, context {context}, table of {capacity} tokens: "
                "must be 1 <= queries <= context <= table"
            )


def _to_device(parts: Sequence[Sequence[int]], device: torch.device) -> list[Tensor]:
    """The lists as int32 tensors on the device, in one copy from pinned memory, each aligned to 16 bytes."""
    sizes = [-(-len(part) // _ALIGNED) * _ALIGNED for part in parts]
    flat: list[int] = []
    for part, size in zip(parts, sizes, strict=True):
        flat.extend(part)
        flat.extend([0] * (size - len(part)))
    # torch keeps the pinned block until the copy is done.
    host = torch.tensor(flat, dtype=torch.int32, pin_memory=device.type == "cuda")
    moved = host.to(device, non_blocking=True).split(sizes)
    return [tensor[: len(part)] for tensor, part in zip(moved, parts, strict=True)]
