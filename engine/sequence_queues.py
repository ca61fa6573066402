"""The queues of sequences that wait, run or are paused, and how a sequence gets from one to another. Plans nothing."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..telemetry.clock import Clock
from ..telemetry.events import AnyEvent, EngineContinued, EnginePaused, PriorityChanged, WaitReasonChanged
from .block_manager import BlockManager
from .config import EngineConfig
from .plan import StepPlan
from .queue_order import QueueKey, queue_order
from .residency import Residency
from .sequence import Sequence, SequenceStatus


def _key(seq: Sequence) -> QueueKey:
    return seq.queue_key


@dataclass(slots=True)
class InFlight:
    """A step that was launched and not read; or is being launched, until `is_launched`. A handle may be None."""

    plan: StepPlan
    handle: Any = None
    launch_ns: int = 0
    is_launched: bool = False


class SequenceQueues:
    """Waiting and running sequences, both in the order of the policy, and the paused ones (`residency`).

    Attributes:
        step: of the last plan.
        released: ids that left RUNNING since the last plan.
        paused: why nothing is planned; "" while planning goes on.
        in_flight: steps launched and not read, the oldest first; the step loop's to fill and empty.
    """

    def __init__(
        self, config: EngineConfig, blocks: BlockManager, record: Callable[[AnyEvent], None], clock: Clock
    ) -> None:
        self.blocks = blocks
        self.residency = Residency(config, blocks, record, clock)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.step = 0
        self.released: list[int] = []
        self.in_flight: deque[InFlight] = deque()
        self.paused = ""
        self._steps_granted = 0  # steps until the engine pauses again; 0: no end is set
        self._order = queue_order(config)
        self._max_num_seqs = config.max_num_seqs
        self._reserve = blocks.num_blocks // 100  # blocks that an admission leaves free, so that decoding can go on
        self._unexplained: list[Sequence] = []  # whose wait reason may have to change in the next plan
        self._passed: dict[Sequence, str] = {}  # passed over by this plan's admissions, and why
        self._head: Sequence | None = None
        self._record = record
        self._clock = clock

    def add(self, seq: Sequence) -> None:
        """Take in a new sequence."""
        seq.transition(SequenceStatus.WAITING, "arrived", self.step)
        self._enqueue(seq)

    def remove(self, seq: Sequence, to: SequenceStatus, reason: str, cause: Sequence | None = None) -> None:
        """End a live sequence: its blocks go back, and work of it that is in flight becomes void.

        Blocks that a move is filling must have arrived: the core sees to that.
        """
        if seq.status is SequenceStatus.PAUSED:
            self.residency.unpark(seq)
        else:
            self._leave_queue(seq)
        seq.transition(to, reason, self.step, cause=cause)
        seq.epoch += 1
        seq.num_pending = 0
        self.blocks.release(seq, self.step)

    def pause(self, seq: Sequence, reason: str) -> None:
        """Take a running or waiting sequence out of its queue; it keeps its KV. Work in flight becomes void.

        One that waits is paused as "operator", whoever asked for it.
        """
        if seq.status is SequenceStatus.RUNNING:
            kept = self._kept_tokens(seq)
            self._leave_queue(seq)
            seq.transition(SequenceStatus.PAUSED, reason, self.step, kept=kept)
            seq.epoch += 1
            seq.num_pending = 0
            seq.num_computed_tokens = kept
        else:
            self._leave_queue(seq)
            seq.transition(SequenceStatus.PAUSED, "operator", self.step)
        self.residency.park(seq)

    def resume(self, seq: Sequence) -> None:
        """Put a paused sequence to work: at once where its KV, a slot and blocks are at hand, else in the queue."""
        self.residency.unpark(seq)
        seq.queue_key = self._order(seq)
        is_next = not self.waiting or seq.queue_key < self.waiting[0].queue_key
        if seq.block_table and seq.is_resident and is_next and len(self.running) < self._max_num_seqs:
            want = self._needed_blocks(seq) + (self._reserve if self.running else 0)
            if want <= len(self.blocks.free):
                self._run_resident(seq)
                return
        seq.transition(SequenceStatus.WAITING, "resumed", self.step)
        if seq.block_table:
            self.residency.noticed()
        self._enqueue(seq)

    def set_priority(self, seq: Sequence, priority: int) -> None:
        """Change a live sequence's priority, and its place in its queue."""
        seq.priority = priority
        self._record(PriorityChanged(self._clock(), self.step, seq.seq_id, priority))
        if seq.status is SequenceStatus.PAUSED:
            return
        queue = self.running if seq.status is SequenceStatus.RUNNING else self.waiting
        queue.remove(seq)
        seq.queue_key = self._order(seq)
        insort(queue, seq, key=_key)
        self._unexplained.append(seq)

    def pause_engine(self, cause: str) -> None:
        """Plan nothing from here on."""
        if self.paused != cause:
            self._record(EnginePaused(self._clock(), self.step, cause))
        self.paused, self._steps_granted = cause, 0

    def continue_engine(self, num_steps: int) -> None:
        """Plan on: `num_steps` steps, or until it is paused again where that is 0."""
        if self.paused or num_steps != self._steps_granted:
            self._record(EngineContinued(self._clock(), self.step, num_steps))
        self.paused, self._steps_granted = "", num_steps

    def _run_resident(self, seq: Sequence) -> None:
        """Let a sequence run that has its KV on the device, with blocks for all its tokens."""
        self._start(seq)
        self.blocks.grow(seq, self.step, self.blocks.blocks_for(seq.num_tokens) - len(seq.block_table))

    def _needed_blocks(self, seq: Sequence) -> int:
        """Free blocks that a sequence takes to run, its next token included."""
        if not seq.block_table:
            return self.blocks.free_needed(seq, self.blocks.match(seq))
        return self.blocks.blocks_for(seq.num_tokens + 1) - sum(1 for entry in seq.block_table if entry >= 0)

    def _start(self, seq: Sequence) -> None:
        reason = {"arrived": "admitted", "preempted": "readmitted"}.get(seq.reason, "resumed")
        seq.transition(SequenceStatus.RUNNING, reason, self.step)
        seq.prefill_target = len(seq.token_ids)
        seq.first_scheduled_t = seq.first_scheduled_t or seq.status_t
        insort(self.running, seq, key=_key)

    def _kept_tokens(self, seq: Sequence) -> int:
        """Computed tokens of a running sequence that stand when its work in flight is void."""
        kept = min(seq.num_computed_tokens, len(seq.token_ids) - 1)
        for flight in self.in_flight:
            plan = flight.plan
            if seq in plan.sequences:
                index = plan.sequences.index(seq)
                if plan.epochs[index] == seq.epoch:
                    kept = min(kept, plan.starts[index])
        return kept

    def _leave_queue(self, seq: Sequence) -> None:
        if seq.status is SequenceStatus.RUNNING:
            self.running.remove(seq)
            self.released.append(seq.seq_id)
        else:
            self.waiting.remove(seq)

    def _enqueue(self, seq: Sequence) -> None:
        seq.queue_key = self._order(seq)
        insort(self.waiting, seq, key=_key)
        self._unexplained.append(seq)

    def _explain(self, head: Sequence | None, reason: str) -> None:
        """Record why the head of the queue waits; whoever stands behind it waits for the head."""
        passed = self._passed
        head = None if head in passed else head
        if self._head is not head and self._head is not None:
            self._unexplained.append(self._head)
        self._unexplained.sort(key=_key)  # whoever looked in vain before, and how often, leaves no trace
        for seq in self._unexplained:
            if seq.status is SequenceStatus.WAITING and seq is not head and seq not in passed:
                self._set_wait_reason(seq, "head_of_line")
        for seq, own in passed.items():
            if seq.status is SequenceStatus.WAITING:
                self._set_wait_reason(seq, own)
        self._unexplained = list(passed)
        self._passed = {}
        self._head = head
        if head is not None:
            self._set_wait_reason(head, reason)

    def _set_wait_reason(self, seq: Sequence, reason: str) -> None:
        if seq.wait_reason != reason:
            seq.wait_reason = reason
            self._record(WaitReasonChanged(self._clock(), self.step, seq.seq_id, reason))
