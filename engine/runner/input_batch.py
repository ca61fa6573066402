"""The persistent running batch: a row for each running sequence, and a step's plan turned into index arrays.

Pure numpy on the host. It knows neither the device nor the model; it reads sequences and never changes them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..plan import StepPlan
from ..sequence import Sequence

IntArray = npt.NDArray[np.int64]
TableArray = npt.NDArray[np.int32]

ON_DEVICE = -1  # stands in `input_ids` for a token that only the device knows


@dataclass(slots=True)
class SampleRows:
    """The S sequences of a step that sample a token, in the order in which the device samples them."""

    plan: list[int]  # plan indices
    rows: IntArray  # of the running batch
    positions: IntArray  # that the sampled tokens will have


@dataclass(slots=True)
class StepArrays:
    """One step as the forward pass wants it: B sequences, those with one token first; T tokens; S that sample.

    `order` lists the plan's indices in batch order.
    """

    order: list[int]
    rows: IntArray  # [B] rows of the running batch
    input_ids: IntArray  # [T]; ON_DEVICE where `pending_index` points
    positions: IntArray  # [T]
    slot_mapping: IntArray  # [T]: block * block_size + offset
    query_start: list[int]  # [B + 1]
    query_lens: list[int]  # [B]
    context_lens: list[int]  # [B], this step's tokens included
    pending_index: IntArray  # [P] tokens that are the last sampled token of a row
    pending_rows: IntArray  # [P] those rows
    sample_index: IntArray  # [S] token whose hidden state gives the logits
    samples: SampleRows


class InputBatch:
    """Rows of the running sequences, with their block tables.

    A row is given when a sequence is first seen and taken back when its id is in `plan.released`. A sequence whose
    epoch changed lost its blocks meanwhile and is treated as new. Within an epoch a block table only grows, so a
    step costs O(sequences + new blocks), not O(blocks held).

    Args:
        max_num_seqs: rows.
        max_blocks: blocks of the longest sequence.
        block_size: tokens in a block.
    """

    def __init__(self, max_num_seqs: int, max_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.table: TableArray = np.zeros((max_num_seqs + 1, max_blocks), dtype=np.int32)  # the last row is padding
        self.changes: list[tuple[int, int, int]] = []  # (row, first column, end column) since they were last cleared
        self._rows: dict[int, int] = {}
        self._free = list(range(max_num_seqs - 1, -1, -1))  # the lowest row is given first
        self._num_blocks = [0] * max_num_seqs
        self._epochs = [0] * max_num_seqs

    def update(self, plan: StepPlan) -> tuple[list[int], list[int], list[int]]:
        """Take back the rows of the released, give rows to the new, append new block ids.

        Returns:
            The row of each planned sequence, the plan indices of those that are new, and the rows taken back.

        Raises:
            RuntimeError: more sequences run than there are rows, or a new one has its next token on the device only.
        """
        freed = self.release(plan.released)
        rows: list[int] = []
        admitted: list[int] = []
        known, num_blocks, epochs = self._rows, self._num_blocks, self._epochs
        for index, (seq, epoch) in enumerate(zip(plan.sequences, plan.epochs, strict=True)):
            row = known.get(seq.seq_id, -1)
            if row < 0 or epochs[row] != epoch:
                row = self._admit(seq, row, epoch, plan.starts[index])
                admitted.append(index)
            rows.append(row)
            held, blocks = num_blocks[row], seq.block_table
            if len(blocks) != held:
                self.table[row, held : len(blocks)] = blocks[held:]
                self.changes.append((row, held, len(blocks)))
                num_blocks[row] = len(blocks)
        return rows, admitted, freed

    def release(self, seq_ids: list[int]) -> list[int]:
        """Take back the rows of these sequences, those that have one; the rows."""
        freed = [row for seq_id in seq_ids if (row := self._rows.pop(seq_id, None)) is not None]
        self._free.extend(reversed(freed))
        return freed

    def changed_entries(self) -> tuple[IntArray, TableArray]:
        """What the table got since `changes` was cleared: flat indices into it, and the block ids there."""
        width = self.table.shape[1]
        spans = [np.arange(row * width + first, row * width + end) for row, first, end in self.changes]
        flat = np.concatenate(spans) if spans else np.zeros(0, dtype=np.int64)
        return flat, self.table.reshape(-1)[flat]

    def _admit(self, seq: Sequence, row: int, epoch: int, start: int) -> int:
        if start >= len(seq.token_ids):
            raise RuntimeError(
                f"sequence {seq.seq_id} is new to the runner, but its token at position {start} is not on the host"
            )
        if row < 0:
            if not self._free:
                raise RuntimeError(f"more sequences run than max_num_seqs={len(self._epochs)} rows")
            row = self._free.pop()
            self._rows[seq.seq_id] = row
        self._num_blocks[row], self._epochs[row] = 0, epoch
        return row

    def arrays(self, plan: StepPlan, plan_rows: list[int]) -> StepArrays:
        """Lay out a step; `plan_rows` comes from `update` of the same plan. Sequences with one token come first."""
        counts = np.array(plan.counts, dtype=np.int64)
        rows = np.array(plan_rows, dtype=np.int64)
        starts = np.array(plan.starts, dtype=np.int64)
        singles = counts == 1
        num_decodes = int(np.count_nonzero(singles))
        size = len(plan_rows)
        permutation = np.arange(size) if num_decodes == size else np.argsort(~singles, kind="stable")
        place = np.empty(size, dtype=np.int64)  # plan index -> place in the batch
        place[permutation] = np.arange(size)
        order: list[int] = permutation.tolist()
        counts_b, rows_b, starts_b = counts[permutation], rows[permutation], starts[permutation]
        context = starts_b + counts_b
        query_start = np.zeros(size + 1, dtype=np.int64)
        np.cumsum(counts_b, out=query_start[1:])
        if num_decodes == size:
            positions, token_rows = starts_b, rows_b
        else:
            positions = np.arange(query_start[-1]) + np.repeat(starts_b - query_start[:-1], counts_b)
            token_rows = np.repeat(rows_b, counts_b)
        input_ids = _token_ids(plan, order, num_decodes)
        pending = np.flatnonzero(input_ids == ON_DEVICE)
        blocks = self.table[token_rows, positions // self.block_size].astype(np.int64)
        sample_plan = [index for index, samples in enumerate(plan.samples) if samples]
        sampling = np.array(sample_plan, dtype=np.int64)
        return StepArrays(
            order=order,
            rows=rows_b,
            input_ids=input_ids,
            positions=positions,
            slot_mapping=blocks * self.block_size + positions % self.block_size,
            query_start=query_start.tolist(),
            query_lens=counts_b.tolist(),
            context_lens=context.tolist(),
            pending_index=pending,
            pending_rows=token_rows[pending],
            sample_index=query_start[1:][place[sampling]] - 1,
            samples=SampleRows(sample_plan, rows[sampling], (starts + counts)[sampling]),
        )


def _token_ids(plan: StepPlan, order: list[int], num_decodes: int) -> IntArray:
    """The step's tokens in batch order, ON_DEVICE for one that the host does not know yet."""
    sequences, starts, counts = plan.sequences, plan.starts, plan.counts
    singles: list[int] = []
    for index in order[:num_decodes]:
        ids, start = sequences[index].token_ids, starts[index]
        singles.append(ids[start] if start < len(ids) else ON_DEVICE)
    parts = [np.array(singles, dtype=np.int64)]
    for index in order[num_decodes:]:
        start, count = starts[index], counts[index]
        ids = sequences[index].token_ids[start : start + count]
        part = np.full(count, ON_DEVICE, dtype=np.int64)
        part[: len(ids)] = ids
        parts.append(part)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
