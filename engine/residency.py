"""Where the KV of sequences that don't run lies: on the device, in host memory, in the swap file, or nowhere.

Decides who moves out when blocks are short, and brings back what is needed. Knows no device; a runner does the moves.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Container, Iterable
from itertools import chain

from ..telemetry.block_table import slot_of
from ..telemetry.clock import Clock
from ..telemetry.events import AnyEvent, SwapFinished
from .block_manager import BlockManager
from .config import EngineConfig
from .plan import BlockMove, MoveResult
from .request import describe
from .sequence import Sequence

logger = logging.getLogger("nanolens.engine")


class Residency:
    """The sequences in PAUSED, in the order in which they paused, and the moves of blocks that are under way.

    Under pressure those paused the longest move first; what nobody else holds goes before what is shared. A block goes
    to host memory; where that is full, those paused the longest there move down to the swap file; where that is full
    or absent, the KV is dropped and computed again on resume.

    Attributes:
        paused: by id, the one paused the longest first.
        moves: of the plan that is being made.
        under_way: moves whose end has not been told yet, by number.
        num_parked: how often a sequence that does not run came to hold blocks.
        prefill_ns_per_token: what a prefill token costs, as measured lately; 0: not known.
        swap_ns_per_block: what moving a block costs one way; 0: not known.
    """

    def __init__(
        self, config: EngineConfig, blocks: BlockManager, record: Callable[[AnyEvent], None], clock: Clock
    ) -> None:
        self.paused: dict[int, Sequence] = {}
        self.moves: list[BlockMove] = []
        self.under_way: dict[int, tuple[BlockMove, Sequence]] = {}
        self.prefill_ns_per_token = 0.0
        self.swap_ns_per_block = 0.0
        self._mode = config.preemption_mode
        self._ttl_ns = None if config.paused_ttl_s is None else int(config.paused_ttl_s * 1e9)
        self._blocks = blocks
        self._slots = blocks.slots
        self._record = record
        self._clock = clock
        self._num_moves = 0
        self.num_parked = 0
        self._refused = (-1, -1, -1)  # (blocks wanted, releases, parked) of the last `vacate` that could not help

    @property
    def next_deadline(self) -> int | None:
        """When the sequence paused the longest expires, in clock nanoseconds; None while no time is set."""
        oldest = next(iter(self.paused.values()), None)
        return None if oldest is None or self._ttl_ns is None else oldest.status_t + self._ttl_ns

    def park(self, seq: Sequence) -> None:
        """Take in a sequence that has just paused."""
        self.paused[seq.seq_id] = seq
        self.num_parked += 1

    def unpark(self, seq: Sequence) -> None:
        """Let go of a sequence that leaves PAUSED."""
        self.paused.pop(seq.seq_id, None)

    def noticed(self) -> None:
        """A waiting sequence holds blocks now: what could not be vacated before may be."""
        self.num_parked += 1

    # Out

    def vacate(self, want: int, step: int, waiting: Iterable[Sequence]) -> bool:
        """Have at least `want` blocks free, by moving out what paused sequences hold, then what `waiting` ones do.

        False, and nothing has moved, where that would not be enough.
        """
        blocks = self._blocks
        if want <= len(blocks.free):
            return True
        state = (want, blocks.num_releases, self.num_parked)
        if state == self._refused:
            return False
        holders = self.holders(waiting)
        if want > len(blocks.free) + self.freeable(holders):
            self._refused = state
            return False
        for shared in (False, True):
            for seq in holders:
                places = blocks.device_blocks(seq, shared)
                if places:
                    self._move_out(seq, places, step)
                if want <= len(blocks.free):
                    return True
        return want <= len(blocks.free)

    def holders(self, waiting: Iterable[Sequence]) -> list[Sequence]:
        """Who can be made to give up blocks: paused sequences, then these that wait; not one that is being filled."""
        return [seq for seq in chain(self.paused.values(), waiting) if seq.block_table and not seq.move_in]

    def freeable(self, holders: Iterable[Sequence], but: Container[int] = ()) -> int:
        """Blocks on the device that none but these sequences hold, some left out of the count."""
        held = Counter(entry for seq in holders for entry in seq.block_table if entry >= 0)
        return sum(1 for block, count in held.items() if self._blocks.refs[block] == count and block not in but)

    def slots_to_preempt(self, victim: Sequence, kept: int, step: int) -> tuple[list[int], list[int]] | None:
        """(places in its table, slots for them) to swap a running sequence out to; None: it is to be recomputed.

        Under "auto" the cheaper way is taken: its blocks out and back, or its computed tokens once more.
        """
        if self._mode == "recompute" or not kept:
            return None
        places = self._blocks.device_blocks(victim, shared=False)
        if self._mode == "auto":
            swap_ns = 2 * len(places) * self.swap_ns_per_block
            if not swap_ns or swap_ns >= kept * self.prefill_ns_per_token:
                return None
        slots = self._slots_for(len(places), victim, step)
        return None if slots is None else (places, slots)

    def swap_out(self, seq: Sequence, places: list[int], slots: list[int], step: int) -> None:
        """Move blocks of a sequence to slots that were taken for them."""
        if places:
            self._launch(seq, self._blocks.move_out(seq, places, slots, self._next_move(), step, "out"))

    def _move_out(self, seq: Sequence, places: list[int], step: int) -> None:
        slots = self._slots_for(len(places), seq, step)
        if slots is None:
            self.drop(seq, step)
        else:
            self.swap_out(seq, places, slots, step)

    def drop(self, seq: Sequence, step: int) -> None:
        """Give up all KV of a sequence that does not run: it is computed again when it goes on."""
        lost, seq.num_computed_tokens = seq.num_computed_tokens, 0
        seq.epoch += 1
        self._blocks.release(seq, step, lost)

    def _slots_for(self, count: int, but: Sequence, step: int) -> list[int] | None:
        """Slots for that many blocks, in host memory if need be after others there have moved down."""
        slots = self._slots
        if count <= slots.host_blocks:
            for seq in self.paused.values():
                if len(slots.free_host) >= count:
                    break
                if seq is not but:
                    self._move_down(seq, step)
        return slots.take_host(count) or slots.take_disk(count)

    def _move_down(self, seq: Sequence, step: int) -> None:
        """Move what a sequence has in host memory to the swap file, if there is room."""
        host = self._slots.host_blocks
        places = [i for i, entry in enumerate(seq.block_table) if entry < 0 and slot_of(entry) < host]
        slots = self._slots.take_disk(len(places)) if places else None
        if slots:
            self._launch(seq, self._blocks.move_out(seq, places, slots, self._next_move(), step, "down"))

    # In

    def bring_back(self, seq: Sequence, step: int, waiting: Callable[[], Iterable[Sequence]], reserve: int) -> bool:
        """Begin to move what a waiting sequence has in the swap space to the device; False: no room there.

        Blocks for all its tokens are taken. Where everything is still cached on the device, it is resident at once.
        """
        blocks = self._blocks
        match = blocks.match(seq)
        while (want := blocks.blocks_to_return(seq, match) + reserve) > len(blocks.free):
            if not self.vacate(want, step, waiting()):
                return False
        move = blocks.move_in(seq, match, self._num_moves + 1, step)
        blocks.grow(seq, step, blocks.blocks_for(seq.num_tokens) - len(seq.block_table))
        self.noticed()
        if move is not None:
            self._num_moves += 1
            seq.move_in = move.move
            self._launch(seq, move)
        return True

    # Moves

    def take_moves(self) -> list[BlockMove]:
        """The moves of the plan that has been made."""
        moves, self.moves = self.moves, []
        return moves

    def finished(self, results: list[MoveResult], step: int) -> None:
        """Moves have ended; the KV of one that failed is dropped."""
        for result in results:
            known = self.under_way.pop(result.move, None)
            if known is None:
                continue
            move, seq = known
            self._record(
                SwapFinished(
                    self._clock(), step, move.seq_id, move.move, result.num_bytes, result.duration_ns, result.error
                )
            )
            if move.kind == "in":
                arrived = seq.move_in == move.move
                if arrived:
                    seq.move_in = 0
                    self.noticed()
            else:
                arrived = not set(move.targets).isdisjoint(seq.block_table)
            if result.error and arrived and seq.is_live:
                self.drop(seq, step)
            elif not result.error and move.kind != "down":
                self.swap_ns_per_block = _smoothed(self.swap_ns_per_block, result.duration_ns / len(move.sources))

    def failed(self, moves: list[int], error: str, step: int) -> None:
        """Moves have failed, as far as they are under way still."""
        self.finished([MoveResult(move, 0, 0, error) for move in moves], step)

    def settle(self, wait: Callable[[], list[MoveResult]], lost: str, step: int) -> None:
        """Wait for the moves that were launched; one that `wait` does not tell of has failed: `lost` says why."""
        try:
            self.finished(wait(), step)
        except Exception as error:  # with the device, say: the next step will tell
            logger.error("waiting for moves of blocks failed", exc_info=error)
            lost = describe(error)
        planned = {move.move for move in self.moves}
        self.failed([move for move in self.under_way if move not in planned], lost, step)

    def measure_prefill(self, ns_per_token: float) -> None:
        """Note what a token of a step with prefill cost."""
        self.prefill_ns_per_token = _smoothed(self.prefill_ns_per_token, ns_per_token)

    def _launch(self, seq: Sequence, move: BlockMove) -> None:
        self.moves.append(move)
        self.under_way[move.move] = (move, seq)

    def _next_move(self) -> int:
        self._num_moves += 1
        return self._num_moves


def _smoothed(old: float, new: float) -> float:
    return new if not old else 0.9 * old + 0.1 * new
