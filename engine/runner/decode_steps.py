"""Decode steps whose inputs already lie on the device: filled, computed and sampled there, on CUDA as graphs.

Knows rows of the running batch; neither sequences nor what the host has to do with the tokens.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...kernels.attention import AttentionMetadata
from ...kernels.decode_inputs import DecodeInputs, fill_decode_inputs
from ...kernels.sampling import SamplingTensors, sample_checked
from ...models.batch import ForwardBatch
from .split_head import SplitHead

logger = logging.getLogger(__name__)

KVCaches = list[tuple[Tensor, Tensor]]


class DecodeModel(Protocol):
    """What a decode step needs of a model."""

    def forward(self, input_ids: Tensor, positions: Tensor, batch: ForwardBatch) -> Tensor:
        """[T] ids and positions -> [T, hidden]; writes the step's keys and values to the pages."""

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """[N, hidden] -> [N, vocab], into `out` where the model can."""


@dataclass(frozen=True)
class DeviceRows:
    """What lies on the device for each row of the running batch. The last row is the padding's.

    Attributes:
        block_tables: [R, M] int32.
        last_tokens: [R] int64, the token sampled last; below 0: none valid.
        temperature: [R] float32.
        seeds: [R] int64.
    """

    block_tables: Tensor
    last_tokens: Tensor
    temperature: Tensor
    seeds: Tensor

    @classmethod
    def empty(cls, max_num_seqs: int, max_blocks: int, device: torch.device) -> DeviceRows:
        """Rows for `max_num_seqs` sequences of up to `max_blocks` blocks, and one for padding."""
        rows = max_num_seqs + 1
        return cls(
            block_tables=torch.zeros((rows, max_blocks), dtype=torch.int32, device=device),
            last_tokens=torch.zeros(rows, dtype=torch.int64, device=device),
            temperature=torch.zeros(rows, dtype=torch.float32, device=device),
            seeds=torch.zeros(rows, dtype=torch.int64, device=device),
        )

    @property
    def padding_row(self) -> int:
        """The row that belongs to no sequence."""
        return self.last_tokens.shape[0] - 1


@dataclass(frozen=True)
class DecodeOutput:
    """Of a decode step of n sequences. Both are overwritten by the next decode step on this stream.

    Attributes:
        tokens: [n] int64; -1: the logits were not finite.
        logits: [n, num_tokens] in the model's dtype; [n, columns] where the head is split.
        padding: sequences computed beyond the n.
    """

    tokens: Tensor
    logits: Tensor
    padding: int


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Batch sizes that graphs are made for, ascending; the last is `max_num_seqs` itself.

    Steps of 8 to 64, of 16 to 256 and of an eighth beyond keep padding under a fifth from 8 on.
    """
    sizes = [size for size in (1, 2, 4) if size < max_num_seqs]
    size = 8
    while size < max_num_seqs:
        sizes.append(size)
        size += 8 if size < 64 else 16 if size < 256 else size // 8
    return [*sizes, max_num_seqs]


class DecodeSteps:
    """Decode steps of up to `max_num_seqs` sequences, padded to the next of `sizes`.

    Args:
        model: on the device.
        kv_caches: pages of each layer; a graph keeps their addresses.
        rows: the running batch on the device.
        block_size: tokens in a page.
        vocab_size: width of the logits.
        num_tokens: ids at or above it are never sampled.
        sizes: from `graph_sizes`.
        metadata: describes a batch to attention: (block_tables, rows, context_lens) -> metadata. Called while a graph
            is captured, so it may not look at the tensors' contents there.
        split: where ranks share the vocabulary: logits then stay in parts, and tokens are sampled from those.
    """

    def __init__(
        self,
        model: DecodeModel,
        kv_caches: KVCaches,
        rows: DeviceRows,
        block_size: int,
        vocab_size: int,
        num_tokens: int,
        sizes: Sequence[int],
        metadata: Callable[[Tensor, Tensor, Tensor], AttentionMetadata],
        split: SplitHead | None = None,
    ) -> None:
        self.sizes = list(sizes)
        self._model = model
        self._kv_caches = kv_caches
        self._rows = rows
        self._block_size = block_size
        self._num_tokens = num_tokens
        self._metadata = metadata
        self._split = split
        self._device = rows.last_tokens.device
        self._control = torch.zeros((2, self.sizes[-1]), dtype=torch.int32, device=self._device)
        self._inputs = DecodeInputs.empty(self._control)
        self._index = torch.zeros(self.sizes[-1], dtype=torch.int64, device=self._device)
        # One buffer for all sizes: a captured step with logits of its own would keep them for good.
        width = vocab_size if split is None else split.columns
        self._logits = torch.empty((self.sizes[-1], width), dtype=kv_caches[0][0].dtype, device=self._device)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}

    @property
    def num_graphs(self) -> int:
        """Graphs captured so far."""
        return len(self._graphs)

    @torch.inference_mode()
    def capture(self) -> int:
        """Capture a graph for each size, the largest first, so that the others fit into its memory; nanoseconds."""
        began = time.monotonic_ns()
        self._send(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int32))
        pool = torch.cuda.graph_pool_handle()
        for size in reversed(self.sizes):
            self._compute(size)  # compiles what is not compiled yet, outside of the capture
            torch.cuda.synchronize(self._device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                tokens, logits = self._compute(size)
            self._graphs[size] = (graph, tokens, logits)
        torch.cuda.synchronize(self._device)
        return time.monotonic_ns() - began

    def run(self, rows: npt.NDArray[np.int32], starts: npt.NDArray[np.int32]) -> DecodeOutput:
        """Compute one token for each of n sequences; the host doesn't wait.

        Args:
            rows: [n] of the running batch, n at most the largest size.
            starts: [n] the position that each computes.
        """
        count = len(rows)
        size = next(size for size in self.sizes if size >= count)
        self._send(rows, starts)
        if size in self._graphs:
            graph, tokens, logits = self._graphs[size]
            graph.replay()
        else:
            tokens, logits = self._compute(size)
        return DecodeOutput(tokens[:count], logits[:count], size - count)

    def whole_logits(self, output: DecodeOutput) -> Tensor:
        """[n, num_tokens] of a step's output. Where the head is split they are joined now, on all ranks."""
        if self._split is None:
            return output.logits
        return self._split.join(output.logits)[:, : self._num_tokens]

    def take_back(self, count: int) -> None:
        """Make the tokens that the last step of `count` sequences computed from their last ones again.

        It allocates nothing, so that it works where memory is short.
        """
        index = self._index[:count].copy_(self._inputs.rows[:count])
        self._rows.last_tokens.index_copy_(0, index, self._inputs.input_ids[:count])

    def _send(self, rows: npt.NDArray[np.int32], starts: npt.NDArray[np.int32]) -> None:
        """Rows and starts, padded to the largest size, in one copy that isn't waited for."""
        pinned = torch.empty(self._control.shape, dtype=torch.int32, pin_memory=self._device.type == "cuda")
        host, count = pinned.numpy(), len(rows)
        host[0, :count], host[0, count:] = rows, self._rows.padding_row
        host[1, :count], host[1, count:] = starts, -1
        self._control.copy_(pinned, non_blocking=True)

    def _compute(self, size: int) -> tuple[Tensor, Tensor]:
        own, rows = self._inputs.head(size), self._rows
        fill_decode_inputs(own, rows.last_tokens, rows.block_tables, rows.temperature, rows.seeds, self._block_size)
        attention = self._metadata(rows.block_tables, own.rows, own.context_lens)
        hidden = self._model.forward(own.input_ids, own.positions, ForwardBatch(self._kv_caches, own.slots, attention))
        unused = own.temperature  # by the flags
        params = SamplingTensors(
            own.temperature, unused, unused, unused, own.seeds, own.sample_positions,
            any_random=True, any_top_k=False, any_top_p=False, any_min_p=False,
        )  # fmt: skip
        if self._split is None:
            logits = self._model.logits(hidden, self._logits[:size])[:, : self._num_tokens]
            tokens = sample_checked(logits, params)
        else:
            logits = self._split.logits(hidden, self._logits[:size])
            tokens = self._split.sample(logits, params)
        rows.last_tokens.index_copy_(0, own.rows.long(), tokens)
        return tokens, logits
