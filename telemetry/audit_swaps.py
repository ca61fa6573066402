"""The audit's rules for the swap space: who moves what where, which moves are open, and what a failed one leaves."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import AuditError
from .block_table import slot_of
from .events import BlocksSwapped, StatusChanged, SwapFinished
from .pool_state import PoolState
from .sequence_state import SequenceState
from .state import EngineState


@dataclass(slots=True)
class _OpenMove:
    """A move whose end has not been told."""

    seq: int
    kind: str
    targets: set[int]  # those that still stand in its sequence's table on account of this move


class SwapAudit:
    """Moves of blocks, and the sequences that wait for them.

    Args:
        from_start: whether every move of the run is seen. Otherwise those before the first one seen may end unknown.
    """

    def __init__(self, from_start: bool) -> None:
        self._open: dict[int, _OpenMove] = {}
        self._last_move = 0
        self._first_move = 1 if from_start else 0  # 0: none seen yet
        self._failed: set[int] = set()  # sequences whose table holds what a failed move left, and not yet freed

    def check_swapped(self, state: EngineState, e: BlocksSwapped) -> None:
        """Blocks move out of a table that no step reads, to places that nobody has.

        Raises:
            AuditError: otherwise.
        """
        seq = state.sequences.get(e.seq)
        if seq is None or seq.status == "RUNNING":
            raise AuditError(f"blocks of sequence {e.seq} move {e.kind}, but it is {seq.status if seq else 'not live'}")
        if not e.sources or len(e.sources) != len(e.targets):
            raise AuditError(f"sequence {e.seq}: {len(e.sources)} places move to {len(e.targets)}")
        _check_sources(seq, e)
        _check_kind(state, e)
        _check_slots(state, e)
        _check_blocks(state.pool, e)
        self._open_move(e)

    def _open_move(self, e: BlocksSwapped) -> None:
        moved = set(e.targets).difference(e.cached)
        if (e.move > 0) != bool(moved) or e.move < 0:
            raise AuditError(f"move {e.move} has {len(moved)} blocks to move")
        for earlier in self._open.values():
            if earlier.seq == e.seq:
                earlier.targets.difference_update(e.sources)
        if not e.move:
            return
        if e.move <= self._last_move:
            raise AuditError(f"move {e.move} begins after move {self._last_move}")
        self._last_move = e.move
        self._first_move = self._first_move or e.move
        self._open[e.move] = _OpenMove(e.seq, e.kind, moved)

    def check_finished(self, state: EngineState, e: SwapFinished) -> None:
        """A move ends once, and is its sequence's.

        Raises:
            AuditError: otherwise.
        """
        move = self._open.pop(e.move, None)
        if move is None:
            if self._first_move and e.move >= self._first_move:
                raise AuditError(f"move {e.move} ended but is not open: never begun, or ended before")
            return
        if move.seq != e.seq:
            raise AuditError(f"move {e.move} of sequence {move.seq} ended as one of sequence {e.seq}")
        if e.error and move.targets:
            self._failed.add(e.seq)

    def freed(self, seq_id: int) -> None:
        """A sequence gave up its table: nothing that is under way for it matters any more."""
        self._failed.discard(seq_id)
        for move in self._open.values():
            if move.seq == seq_id:
                move.targets.clear()

    def check_status(self, state: EngineState, e: StatusChanged) -> None:
        """Whoever begins to run has its KV on the device.

        Raises:
            AuditError: part of it is in the swap space, or still on its way.
        """
        seq = state.sequences.get(e.seq)
        if seq is None or e.new != "RUNNING":
            return
        slots = [slot_of(entry) for entry in seq.block_table if entry < 0]
        if slots:
            raise AuditError(f"sequence {e.seq} runs with slots {slots} of the swap space in its table")
        for number, move in self._open.items():
            if move.seq == e.seq and move.kind == "in" and move.targets:
                raise AuditError(f"sequence {e.seq} runs while move {number} still brings its blocks in")

    def check_settled(self, state: EngineState) -> None:
        """What a failed move left has been given up.

        Raises:
            AuditError: a live sequence still holds it.
        """
        for seq_id in sorted(self._failed & state.sequences.keys()):
            raise AuditError(f"sequence {seq_id} kept the blocks that a failed move left it")
        self._failed.clear()


def _check_sources(seq: SequenceState, e: BlocksSwapped) -> None:
    """Sources stand in the table, in its order, and each place has a target of its own."""
    at = 0
    for entry in e.sources:
        try:
            at = seq.block_table.index(entry, at) + 1
        except ValueError as error:
            raise AuditError(f"{_place(entry)} moves but is not sequence {e.seq}'s next in order") from error
    if len(set(e.targets)) != len(e.targets):
        raise AuditError(f"sequence {e.seq} gets a place twice: {e.targets}")


def _check_kind(state: EngineState, e: BlocksSwapped) -> None:
    """Out leaves the device, in comes to it, down goes from host memory to the swap file."""
    host, _ = _swap_space(state)
    sources, targets = ({_where(entry, host) for entry in entries} for entries in (e.sources, e.targets))
    allowed = {
        "out": sources == {"device"} and "device" not in targets,
        "in": "device" not in sources and targets == {"device"},
        "down": sources == {"host"} and targets == {"disk"},
    }
    if not allowed.get(e.kind, False):
        raise AuditError(f"sequence {e.seq}: blocks move {e.kind} from {sorted(sources)} to {sorted(targets)}")


def _check_slots(state: EngineState, e: BlocksSwapped) -> None:
    """Targets in the swap space exist and hold nothing."""
    num_slots = sum(_swap_space(state))
    for slot in (slot_of(entry) for entry in e.targets if entry < 0):
        if slot >= num_slots:
            raise AuditError(f"sequence {e.seq} gets slot {slot}, the swap space has {num_slots}")
        if slot in state.pool.slots:
            raise AuditError(f"sequence {e.seq} gets slot {slot}, which is in use")


def _check_blocks(pool: PoolState, e: BlocksSwapped) -> None:
    """Targets on the device hold the content already or are free, and what they lose is named."""
    still_there = set(e.cached)
    for block in e.cached:
        if block not in e.targets:
            raise AuditError(f"block {block} is found in the cache for sequence {e.seq} but is no target")
        if block not in pool.cached:
            raise AuditError(f"block {block} comes back to sequence {e.seq} but holds no cached content")
    new = [entry for entry in e.targets if entry >= 0 and entry not in still_there]
    for block in new:
        if block not in pool.free:
            raise AuditError(f"block {block} goes to sequence {e.seq} but is not free")
    lost = [block for block in new if block in pool.cached]
    if sorted(lost) != sorted(e.evicted):
        raise AuditError(f"evicted={e.evicted}, but the new blocks with cached content are {lost}")


def _swap_space(state: EngineState) -> tuple[int, int]:
    """(slots in host memory, slots in the swap file) by the settings of the run."""
    config = state.started.config if state.started else {}
    host, disk = config.get("host_blocks"), config.get("disk_blocks")
    return host if isinstance(host, int) else 0, disk if isinstance(disk, int) else 0


def _where(entry: int, host_blocks: int) -> str:
    if entry >= 0:
        return "device"
    return "host" if slot_of(entry) < host_blocks else "disk"


def _place(entry: int) -> str:
    return f"block {entry}" if entry >= 0 else f"slot {slot_of(entry)}"
