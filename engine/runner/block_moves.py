"""What a plan does to blocks before its step: moves to and from the swap space, and copies within the pool."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from ..config import EngineConfig
from ..plan import MoveResult, StepPlan
from .swap_space import SwapSpace
from .swap_transfers import Transfers


class BlockMoves:
    """Moves and copies blocks of a pool; there may be no swap space.

    Args:
        pool: [num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim], contiguous.
        config: the engine's settings.

    Attributes:
        ns_per_block: nanoseconds to move a block between the device and the swap space; 0 without one.

    Raises:
        InvalidConfig: the swap space can't be had.
    """

    def __init__(self, pool: torch.Tensor, config: EngineConfig) -> None:
        self._block_size = config.block_size
        self._transfers = Transfers(pool, 0)
        self._swap: SwapSpace | None = None
        self.ns_per_block = 0
        if config.host_blocks or config.disk_blocks:
            self._swap = SwapSpace(pool, config.host_blocks, config.disk_blocks, config.swap_path)
            self.ns_per_block = self._swap.ns_per_block

    def start(self, plan: StepPlan) -> None:
        """Start a plan's moves, then copy its blocks; call `go` when the step is launched.

        The host rarely waits, see `SwapSpace`.

        Raises:
            RuntimeError: the plan has moves, but there is no swap space.
        """
        if plan.moves and self._swap is None:
            raise RuntimeError("a plan has moves, but there is no swap space: host_blocks and disk_blocks are 0")
        if self._swap is not None:
            self._swap.launch(plan.moves)
            self._swap.settle(self._touched(plan))
        if plan.copies:
            self._transfers.copy(plan.copies)

    def go(self) -> None:
        """Let the worker of the swap space begin."""
        if self._swap is not None:
            self._swap.go()

    def settle(self, blocks: Iterable[int]) -> None:
        """Wait until no move is filling any of these blocks."""
        if self._swap is not None:
            self._swap.settle(blocks)

    def finished(self) -> list[MoveResult]:
        """Results of the moves that ended since the last call; doesn't wait."""
        return self._swap.finished() if self._swap is not None else []

    def wait(self) -> list[MoveResult]:
        """Likewise, once all moves started so far have ended."""
        return self._swap.wait() if self._swap is not None else []

    def num_filed(self) -> int:
        """Blocks written to the swap file or read from it so far. Any thread may ask."""
        return self._swap.num_filed() if self._swap is not None else 0

    def close(self) -> None:
        """Stop moving, and let go of the pool and the swap space."""
        if self._swap is not None:
            self._swap.close()
        self._transfers.close()

    def _touched(self, plan: StepPlan) -> Iterator[int]:
        """The blocks that a plan's copies read or write, and those that its tokens are written to."""
        for pair in plan.copies:
            yield from pair
        size = self._block_size
        for seq, start, count in zip(plan.sequences, plan.starts, plan.counts, strict=True):
            yield from seq.block_table[start // size : (start + count - 1) // size + 1]
