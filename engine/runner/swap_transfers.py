"""Copies of KV blocks between the pool and rows of main memory, through staging that is allocated once.

Knows tensors and streams; neither slots nor sequences.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor

from ...errors import InvalidConfig
from .staging import Staging

STAGING_BYTES = 128 << 20  # each way, at most; a block where that is larger
Mark = torch.cuda.Event | None  # a moment on the stream of the steps; None on a CPU, where launched is done


def staging_rows(block_bytes: int, num_blocks: int, num_slots: int) -> int:
    """Blocks that the staging holds each way: no more than could ever move at once, nor an eighth of the pool."""
    return max(1, min(STAGING_BYTES // block_bytes, num_blocks // 8, num_slots))


def staging_bytes(block_bytes: int) -> int:
    """Bytes of the device that staging takes at most, both ways."""
    return 2 * max(STAGING_BYTES, block_bytes)


def word_type(num_bytes: int) -> torch.dtype:
    """The widest integer that `num_bytes` is a multiple of: blocks are copied as bits, and wide words copy fastest."""
    kinds = (torch.int64, torch.int32, torch.int16)
    return next((kind for kind in kinds if num_bytes % kind.itemsize == 0), torch.uint8)


class Transfers:
    """Moves blocks of a pool out and in by way of the device's staging.

    `gather`, `mark` and `copy` belong to the thread that launches steps, and only enqueue; `to_host` and `to_device`
    belong to one other thread, work on a stream of their own, and return when the data has arrived.

    Args:
        pages: [num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim], contiguous.
        num_rows: blocks that staging holds each way; 0 where there is no swap space, for `copy` alone.

    Attributes:
        row_shape: shape of a block outside of the pool, in words of `dtype`: keys and values of all layers.
    """

    def __init__(self, pages: Tensor, num_rows: int) -> None:
        self.device = pages.device
        self.num_rows = num_rows
        layers, kinds, num_blocks = pages.shape[:3]
        page = pages.view(torch.uint8).reshape(layers * kinds, num_blocks, -1)
        self.dtype = word_type(page.shape[2])
        # [num_blocks, 2 * layers, words]: one index reaches a block in all layers
        self._blocks = page.view(self.dtype).transpose(0, 1)
        self.row_shape = (page.shape[0], self._blocks.shape[2])
        self._staging = Staging(self.device)
        self._stream: torch.cuda.Stream | None = None
        shape = (num_rows, *self.row_shape)
        try:
            self._leaving = torch.empty(shape, dtype=self.dtype, device=self.device)
            on_gpu = self.device.type == "cuda" and num_rows > 0
            self._coming = torch.empty_like(self._leaving) if on_gpu else self._leaving
        except RuntimeError as error:
            size = 2 * num_rows * self.block_bytes
            raise InvalidConfig(
                f"a swap space (host_blocks, disk_blocks) needs {size >> 20} MiB of {self.device} for blocks on their "
                "way, which are not free there: lower num_blocks"
            ) from error
        if on_gpu:
            self._stream = torch.cuda.Stream(self.device)
            self._coming_index = torch.zeros(num_rows, dtype=torch.int64, device=self.device)
            self._index_on_host = torch.zeros(num_rows, dtype=torch.int64, pin_memory=True)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block: all layers, keys and values."""
        return self.row_shape[0] * self.row_shape[1] * self.dtype.itemsize

    def mark(self) -> Mark:
        """Now, on the stream of the steps."""
        if self._stream is None:
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event

    def gather(self, blocks: Sequence[int], first: int) -> None:
        """Copy blocks into the leaving rows from `first` on, in the order of the steps."""
        (index,) = self._staging.send(np.array(blocks, dtype=np.int64))
        torch.index_select(self._blocks, 0, index, out=self._leaving[first : first + len(blocks)])

    def copy(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy blocks to blocks, one pair (source, target) after the other, in the order of the steps.

        Allocates nothing, so that a step that is short of memory does not fail here.
        """
        for source, target in pairs:
            self._blocks[target].copy_(self._blocks[source])

    def to_host(self, first: int, rows: Sequence[Tensor], after: Mark) -> None:
        """Copy leaving rows, from `first` on, into rows of main memory, once `after` has passed."""
        with self._own_stream(after):
            for number, row in enumerate(rows, first):
                row.copy_(self._leaving[number], non_blocking=True)
            self._finish()

    def to_device(self, rows: Sequence[Tensor], blocks: Sequence[int], after: Mark) -> None:
        """Copy at most `num_rows` rows of main memory into blocks, once `after` has passed."""
        if self._stream is None:
            for row, block in zip(rows, blocks, strict=True):
                self._blocks[block].copy_(row)
            return
        with self._own_stream(after):
            for number, row in enumerate(rows):
                self._coming[number].copy_(row, non_blocking=True)
            index = self._coming_index[: len(blocks)]
            self._index_on_host[: len(blocks)] = torch.tensor(blocks)
            index.copy_(self._index_on_host[: len(blocks)], non_blocking=True)
            self._blocks.index_copy_(0, index, self._coming[: len(blocks)])
            self._finish()

    def close(self) -> None:
        """Let go of the pool and of staging; nothing may be copying."""
        self._blocks = self._leaving = self._coming = torch.empty(0)

    def _own_stream(self, after: Mark) -> AbstractContextManager[object]:
        if self._stream is None:
            return contextlib.nullcontext()
        if after is not None:
            self._stream.wait_event(after)
        return torch.cuda.stream(self._stream)

    def _finish(self) -> None:
        """Wait, asleep, for what this thread has enqueued."""
        if self._stream is not None:
            event = torch.cuda.Event(blocking=True)
            event.record(self._stream)
            event.synchronize()
