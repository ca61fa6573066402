"""The swap space: moves KV blocks between the pool and slots in main memory and in a file.

It moves what it is told to, strictly in order, and reports; it knows nothing of sequences or of why a block moves.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ...errors import InvalidConfig
from .. import faults
from ..plan import BlockMove, MoveResult
from ..request import describe
from .swap_slots import SwapSlots
from .swap_transfers import Mark, Transfers, staging_rows

MEASURED_BLOCKS = 32  # moved out and in to learn what a block's move costs


@dataclass(slots=True)
class _Part:
    """A piece of a move, as the worker gets it."""

    move: BlockMove
    sources: Sequence[int]
    targets: Sequence[int]
    is_last: bool
    mark: Mark = None  # what the steps must have done before
    first_row: int = 0  # of staging, where a part of a move out lies
    num_rows: int = 0  # of staging, that are free again afterwards
    error: str = ""  # it failed before it came to the worker


class SwapSpace:
    """Slots for blocks beside the pool: [0, host_blocks) in main memory, then `disk_blocks` in a file.

    Blocks that move out are gathered into staging by `launch`, in the order of the steps, so that the next step may
    write them; the rest of every move is done by one worker thread, in the order of launches. `launch` waits only
    where staging is full, or where a move takes blocks that an earlier one is still filling. On a CPU without a file
    there is no thread: moves are done when launched.

    All methods belong to the thread that launches steps.

    Args:
        pages: the pool, [num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim], contiguous.
        host_blocks: slots in main memory, pinned on a GPU.
        disk_blocks: slots in the file.
        swap_path: the file's path; None exactly when `disk_blocks` is 0.
        rows: blocks that staging holds each way; None: by size.

    Attributes:
        ns_per_block: nanoseconds to move a block between the device and main memory (the file, where there is no
            slot in memory), as measured here.

    Raises:
        InvalidConfig: the memory or the file can't be had, or doesn't work.
    """

    def __init__(
        self, pages: Tensor, host_blocks: int, disk_blocks: int, swap_path: str | None, rows: int | None = None
    ) -> None:
        num_blocks = pages.shape[2]
        size = pages.nbytes // num_blocks
        self._transfers = Transfers(pages, rows or staging_rows(size, num_blocks, host_blocks + disk_blocks))
        self._slots = SwapSlots(self._transfers, host_blocks, disk_blocks, swap_path)
        self._changed = threading.Condition()  # guards the next six
        self._parts: deque[_Part] = deque()
        self._done: list[MoveResult] = []
        self._num_launched = self._num_done = 0
        self._rows_taken = self._rows_freed = 0  # of staging, ever; it is a ring
        self._closing = False
        self._landing: dict[int, list[int]] = {}  # move -> blocks that it fills; until its result is handed out
        self._error = ""  # of the move that is being done
        self._spent = 0  # nanoseconds on it
        self._worker: threading.Thread | None = None
        if pages.device.type != "cpu" or disk_blocks:
            self._worker = threading.Thread(target=self._work, name="nanolens-swap", daemon=True)
            self._worker.start()
        try:
            self.ns_per_block = self._measure(min(MEASURED_BLOCKS, num_blocks, host_blocks or disk_blocks))
        except BaseException:
            self.close()
            raise

    def launch(self, moves: Iterable[BlockMove]) -> None:
        """Begin moves; `go` wakes the worker for them. What goes wrong with one is in its result."""
        for move in moves:
            if move.kind == "out":
                self.settle(move.sources)
                self._num_launched += 1
                self._launch_out(move)
                continue
            self._num_launched += 1
            if move.kind == "in":
                self._landing[move.move] = move.targets
            self._hand_over(_Part(move, move.sources, move.targets, True, self._transfers.mark()))

    def go(self) -> None:
        """Wake the worker. Best done when the step is launched: the two threads hinder each other in Python."""
        with self._changed:
            self._changed.notify_all()

    def settle(self, blocks: Iterable[int]) -> None:
        """Wait until no move is filling any of these blocks, before somebody else writes them.

        A move may have been given up with its sequence while it is under way: its blocks then have a new owner.
        """
        if self._landing:
            wanted = set(blocks)
            if any(not wanted.isdisjoint(targets) for targets in self._landing.values()):
                self._wait()

    def finished(self) -> list[MoveResult]:
        """Results of the moves that ended since the last call, in their order. Doesn't wait."""
        with self._changed:
            done, self._done = self._done, []
        for result in done:
            self._landing.pop(result.move, None)
        return done

    def wait(self) -> list[MoveResult]:
        """Like `finished`, once all moves launched so far have ended."""
        self._wait()
        return self.finished()

    def num_filed(self) -> int:
        """Blocks written to the file or read from it so far. Any thread may ask."""
        return self._slots.num_filed

    def close(self) -> None:
        """Stop after the move that is being done, whatever is queued; give back memory and file. Twice is once."""
        with self._changed:
            self._closing = True
            self._parts.clear()
            self._changed.notify_all()
        if self._worker is not None:
            self._worker.join()
            self._worker = None
        self._slots.close()
        self._transfers.close()

    def _launch_out(self, move: BlockMove) -> None:
        """Gather a move's blocks into staging, in as many parts as it takes."""
        done, total = 0, len(move.sources)
        try:
            faults.reach("swap_out")
        except Exception as error:
            self._hand_over(_Part(move, [], [], True, error=describe(error)))
            return
        if not total:
            self._hand_over(_Part(move, [], [], True))
        while done < total:
            first, count = self._take_rows(total - done)
            sources, targets = move.sources[done : done + count], move.targets[done : done + count]
            done += count
            part = _Part(move, sources, targets, done == total, None, first, count)
            try:
                self._transfers.gather(sources, first)
                part.mark = self._transfers.mark()
            except Exception as error:
                part.error = describe(error)
            self._hand_over(part)

    def _take_rows(self, wanted: int) -> tuple[int, int]:
        """Take up to `wanted` neighbouring rows of staging; waits until one is free. (first, count)"""
        size = self._transfers.num_rows
        with self._changed:
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._rows_taken - self._rows_freed < size)
            first = self._rows_taken % size
            count = min(wanted, size - first, size - (self._rows_taken - self._rows_freed))
            self._rows_taken += count
        return first, count

    def _hand_over(self, part: _Part) -> None:
        if self._worker is None:
            self._do(part)
            return
        with self._changed:
            self._parts.append(part)

    def _wait(self) -> None:
        with self._changed:
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._num_done == self._num_launched or self._closing)

    def _work(self) -> None:
        """The worker thread: do parts until the end."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._parts) or self._closing)
                if self._closing:
                    return
                part = self._parts.popleft()
            self._do(part)

    def _do(self, part: _Part) -> None:
        """Do a part of a move, unless an earlier part failed; report after the last."""
        began = time.monotonic_ns()
        self._error = self._error or part.error
        try:
            if not self._error:
                self._transfer(part)
        except Exception as error:
            self._error = describe(error)
        if self._error and part.move.kind != "in":
            self._slots.spoil(part.move.targets)
        self._spent += time.monotonic_ns() - began
        with self._changed:
            self._rows_freed += part.num_rows
            if part.is_last:
                self._report(part.move)
            self._changed.notify_all()

    def _transfer(self, part: _Part) -> None:
        if part.move.kind == "out":
            self._slots.take_out(part.first_row, part.targets, part.mark)
        elif part.move.kind == "in":
            faults.reach("swap_in")
            self._slots.bring_in(part.sources, part.targets, part.mark)
        else:
            self._slots.move_down(part.sources, part.targets)

    def _report(self, move: BlockMove) -> None:
        num_bytes = 0 if self._error else len(move.sources) * self._transfers.block_bytes
        self._done.append(MoveResult(move.move, num_bytes, self._spent, self._error))
        self._num_done += 1
        self._error, self._spent = "", 0

    def _measure(self, count: int) -> int:
        """Nanoseconds of a block's move: the mean of out and in, the second time, when nothing is done for the first.

        The blocks get back what they held.
        """
        blocks, slots = list(range(count)), [-1 - number for number in range(count)]
        spent = 0
        for _ in range(2):
            began = time.monotonic_ns()
            self.launch([BlockMove(0, 0, "out", blocks, slots), BlockMove(0, 0, "in", slots, blocks)])
            failed = [result.error for result in self.wait() if result.error]
            if failed:
                raise InvalidConfig(f"the swap space can't be used: {failed[0]}")
            spent = time.monotonic_ns() - began
        self._slots.spoil(slots)
        return max(1, spent // (2 * count))
