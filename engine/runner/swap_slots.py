"""Slots for KV blocks in main memory and in a file, and how blocks get into and out of them.

Knows neither queues nor sequences; one thread at a time uses it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .. import faults
from .host_memory import HostMemory
from .swap_file import SwapFile
from .swap_transfers import Mark, Transfers

BOUNCE_BYTES = 32 << 20  # main memory between the device and the file, at most; a block where that is larger


class SwapSlots:
    """Slots [0, host_blocks) in main memory, then `disk_blocks` in a file.

    A slot whose last write failed holds nothing until it is written again.

    Args:
        transfers: between the pool and main memory.
        host_blocks: slots in main memory, pinned on a GPU.
        disk_blocks: slots in the file.
        path: the file's; None exactly when `disk_blocks` is 0.

    Raises:
        InvalidConfig: the memory or the file can't be had.

    Attributes:
        num_filed: blocks written to the file or read from it so far.
    """

    def __init__(self, transfers: Transfers, host_blocks: int, disk_blocks: int, path: str | None) -> None:
        self.host_blocks = host_blocks
        self.num_filed = 0
        self._transfers = transfers
        self._chunk = transfers.num_rows  # blocks moved at once
        bounce = 0
        if disk_blocks:
            bounce = self._chunk = min(transfers.num_rows, max(1, BOUNCE_BYTES // transfers.block_bytes))
        self._holds = bytearray(host_blocks + disk_blocks)  # slot -> whether it holds a block
        purpose = f"host_blocks={host_blocks}" if host_blocks else f"disk_blocks={disk_blocks}"
        rows = host_blocks + bounce
        self._file: SwapFile | None = None
        self._memory = HostMemory(rows * transfers.block_bytes, transfers.device, purpose)
        try:
            # the last `bounce` rows are on the way to or from the file
            self._rows = self._memory.bytes.view(transfers.dtype).view(rows, *transfers.row_shape)
            if path is not None:
                self._file = SwapFile(path, disk_blocks, transfers.block_bytes)
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._holds)

    def take_out(self, first_row: int, places: Sequence[int], after: Mark) -> None:
        """Fill slots from leaving rows of staging, from `first_row` on; `places` are -1 - slot.

        Raises:
            OSError: the file failed; the slots hold nothing.
        """
        slots = self._begin_write(places)
        for start in range(0, len(slots), self._chunk):
            part = slots[start : start + self._chunk]
            rows = [self._row(slot, number) for number, slot in enumerate(part)]
            self._transfers.to_host(first_row + start, rows, after)
            for slot, row in zip(part, rows, strict=True):
                if slot >= self.host_blocks:
                    self._write(slot, row)
        self._end_write(slots)

    def bring_in(self, places: Sequence[int], blocks: Sequence[int], after: Mark) -> None:
        """Fill blocks of the pool from slots.

        Raises:
            OSError: a slot holds nothing, or can't be read; the blocks hold anything now.
        """
        slots = self._check(places)
        for start in range(0, len(slots), self._chunk):
            part = slots[start : start + self._chunk]
            rows = [self._row(slot, number) for number, slot in enumerate(part)]
            for slot, row in zip(part, rows, strict=True):
                if slot >= self.host_blocks:
                    self._read(slot, row)
            self._transfers.to_device(rows, blocks[start : start + self._chunk], after)

    def move_down(self, places: Sequence[int], targets: Sequence[int]) -> None:
        """Fill slots of the file from slots in main memory.

        Raises:
            OSError: a slot holds nothing, or the file failed; the targets hold nothing.
        """
        to = self._begin_write(targets)
        for source, target in zip(self._check(places), to, strict=True):
            self._write(target, self._rows[source])
        self._end_write(to)

    def spoil(self, places: Sequence[int]) -> None:
        """Say of slots that they hold nothing."""
        self._begin_write(places)

    def close(self) -> None:
        """Give back memory and file. A second call does nothing."""
        self._rows = torch.empty(0)
        self._memory.close()
        if self._file is not None:
            self._file.close()

    def _row(self, slot: int, number: int) -> Tensor:
        """Where a slot's block lies in main memory: its own row, or the bounce row of this number."""
        return self._rows[slot if slot < self.host_blocks else self.host_blocks + number]

    def _begin_write(self, places: Sequence[int]) -> list[int]:
        slots = [-1 - place for place in places]
        for slot in slots:
            self._holds[slot] = 0
        return slots

    def _end_write(self, slots: list[int]) -> None:
        for slot in slots:
            self._holds[slot] = 1

    def _check(self, places: Sequence[int]) -> list[int]:
        slots = [-1 - place for place in places]
        for slot in slots:
            if not self._holds[slot]:
                raise OSError(f"slot {slot} of the swap space holds nothing: its last write failed")
        return slots

    def _write(self, slot: int, row: Tensor) -> None:
        faults.reach("disk_write")
        self._disk.write(slot - self.host_blocks, _bytes_of(row))
        self.num_filed += 1

    def _read(self, slot: int, row: Tensor) -> None:
        faults.reach("disk_read")
        self._disk.read(slot - self.host_blocks, _bytes_of(row))
        self.num_filed += 1

    @property
    def _disk(self) -> SwapFile:
        if self._file is None:
            raise OSError("there is no swap file")
        return self._file


def _bytes_of(row: Tensor) -> memoryview:
    return row.numpy().reshape(-1).view(np.uint8).data
