"""Decides what each step computes: who runs, who waits and why, who is preempted. Knows no device.

A sequence simply has `num_computed_tokens` to bring up to `num_tokens`; decoding is the case where one is missing.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable

from ..telemetry.clock import Clock
from ..telemetry.events import AnyEvent, SequencePreempted, StepPlanned, WaitReasonChanged
from .block_manager import BlockManager
from .config import EngineConfig
from .plan import StepPlan
from .sequence import Sequence, SequenceStatus


def remaining_tokens(seq: Sequence) -> int:
    """Tokens that a sequence has still to compute at most: the rest of its prompt and of its output."""
    return seq.num_tokens - seq.num_computed_tokens + seq.max_tokens - seq.num_output_tokens


ORDER: dict[str, Callable[[Sequence], tuple[int, ...]]] = {
    "fcfs": lambda seq: (seq.seq_id,),
    "priority": lambda seq: (seq.priority, seq.seq_id),
    "sjf": lambda seq: (remaining_tokens(seq), seq.seq_id),
}


class Scheduler:
    """Two queues and the rules between them.

    Both are kept in the order of the policy. Blocks for all the tokens that a sequence has are taken when it is
    admitted, so that only decoding can run short; then the last of the running order is preempted. A preempted
    sequence keeps its place in that order: under fcfs it is ahead of all that arrived later.
    """

    def __init__(
        self, config: EngineConfig, blocks: BlockManager, record: Callable[[AnyEvent], None], clock: Clock
    ) -> None:
        self.blocks = blocks
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.step = 0  # of the last plan
        self.released: list[int] = []  # left RUNNING since the last plan
        self._order = ORDER[config.policy]
        self._max_num_seqs = config.max_num_seqs
        self._budget = config.max_num_batched_tokens
        self._chunk = config.max_prefill_chunk or config.max_num_batched_tokens
        self._prefill_first = config.batching == "prefill_first"
        self._reserve = blocks.num_blocks // 100  # blocks that an admission leaves free, so that decoding can go on
        self._unexplained: list[Sequence] = []  # whose wait reason may have to change in the next plan
        self._passed: list[Sequence] = []  # passed over by this plan's admissions
        self._head: Sequence | None = None
        self._record = record
        self._clock = clock

    def add(self, seq: Sequence) -> None:
        """Take in a new sequence."""
        seq.transition(SequenceStatus.WAITING, "arrived", self.step)
        self._enqueue(seq)

    def remove(self, seq: Sequence, to: SequenceStatus, reason: str) -> None:
        """End a live sequence: its blocks go back, and work of it that is in flight becomes void."""
        if seq.status is SequenceStatus.RUNNING:
            self.running.remove(seq)
            self.released.append(seq.seq_id)
        elif seq.status is SequenceStatus.WAITING:
            self.waiting.remove(seq)
        seq.transition(to, reason, self.step)
        seq.epoch += 1
        seq.num_pending = 0
        self.blocks.release(seq, self.step)

    def plan(self) -> StepPlan | None:
        """Plan the next step, or None when nothing can be computed now.

        The planned tokens count as computed from here on.
        """
        began = self._clock()
        self.step += 1
        plan = StepPlan(self.step, "decode", [], [], [], [], [], [], began)
        preempted = not self._prefill_first and self._plan_decodes(plan)
        num_decodes = len(plan.sequences)
        self._plan_prefills(plan, self._budget - num_decodes)
        head, reason = self._admit(plan, self._budget - plan.num_tokens) if not preempted else self._lost_blocks()
        if self._prefill_first and not plan.sequences:
            if self._plan_decodes(plan):
                head, reason = self._lost_blocks()
            num_decodes = len(plan.sequences)
        self._explain(head, reason)
        if not plan.sequences:
            self.step -= 1
            return None
        self._record_plan(plan, num_decodes, began)
        return plan

    def _plan_decodes(self, plan: StepPlan) -> bool:
        """One token for each running sequence in its decode phase; True if one had to be preempted."""
        running, blocks, size = self.running, self.blocks, self.blocks.block_size
        sequences, starts, epochs = plan.sequences, plan.starts, plan.epochs
        room, preempted, index = self._budget, False, 0
        while index < len(running) and room:
            seq = running[index]
            index += 1
            start = seq.num_computed_tokens
            total = len(seq.token_ids) + seq.num_pending
            if start < seq.prefill_target or start >= total:
                continue
            if seq.num_pending and self._is_last(seq, total):
                continue
            if start >= len(seq.block_table) * size:
                preempted = preempted or not blocks.free
                if not self._make_room(seq):
                    continue
                blocks.grow(seq, self.step)
            sequences.append(seq)
            starts.append(start)
            epochs.append(seq.epoch)
            seq.num_computed_tokens = start + 1
            seq.num_pending += 1
            room -= 1
        count = len(sequences)
        plan.counts.extend([1] * count)
        plan.samples.extend([True] * count)
        return preempted

    def _plan_prefills(self, plan: StepPlan, budget: int) -> None:
        """The next chunk of each running sequence that is still in its prefill phase."""
        for seq in self.running:
            if budget <= 0:
                return
            if seq.num_computed_tokens < seq.prefill_target:
                budget -= self._add_chunk(plan, seq, budget)

    def _admit(self, plan: StepPlan, budget: int) -> tuple[Sequence | None, str]:
        """Admit from the waiting queue in its order; the first one that must wait, and why."""
        waiting, index = self.waiting, 0
        while index < len(waiting):
            seq = waiting[index]
            if seq.leader is not None and self._shares_unready_prompt(seq.leader):
                self._passed.append(seq)
                index += 1
                continue
            if len(self.running) >= self._max_num_seqs:
                return seq, "sequence_cap"
            if budget <= 0:
                return seq, "token_budget"
            match = self.blocks.match(seq)
            if not self.blocks.can_admit(seq, match, self._reserve if self.running else 0):
                return seq, "no_blocks"
            del waiting[index]
            self._start(seq)
            self.blocks.admit(seq, match, self.step)
            seq.num_computed_tokens = match.hit
            if seq.num_cached_tokens is None:
                seq.num_cached_tokens = match.hit
            budget -= self._add_chunk(plan, seq, budget)
        return None, ""

    def _lost_blocks(self) -> tuple[Sequence, str]:
        """The wait of a step that preempted: it admits nothing, or what it freed would be taken again at once."""
        return self.waiting[0], "no_blocks"

    def _start(self, seq: Sequence) -> None:
        reason = "readmitted" if seq.num_preemptions else "admitted"
        seq.transition(SequenceStatus.RUNNING, reason, self.step)
        seq.prefill_target = len(seq.token_ids)
        seq.first_scheduled_t = seq.first_scheduled_t or seq.status_t
        insort(self.running, seq, key=self._order)

    def _add_chunk(self, plan: StepPlan, seq: Sequence, budget: int) -> int:
        start = seq.num_computed_tokens
        count = min(seq.num_tokens - start, budget, self._chunk)
        samples = start + count == seq.num_tokens
        plan.sequences.append(seq)
        plan.starts.append(start)
        plan.counts.append(count)
        plan.samples.append(samples)
        plan.epochs.append(seq.epoch)
        seq.num_computed_tokens = start + count
        seq.num_pending += samples
        return count

    def _make_room(self, seq: Sequence) -> bool:
        """Preempt from the end of the running order until a block is free; False if `seq` itself had to go."""
        while not self.blocks.free:
            victim = self.running[-1]
            self._preempt(victim, seq)
            if victim is seq:
                return False
        return True

    def _preempt(self, victim: Sequence, by: Sequence) -> None:
        """Send a running sequence back to the queue; its blocks go to `by`, its computed tokens are lost."""
        self._record(
            SequencePreempted(
                self._clock(), self.step, victim.seq_id, by.seq_id, "no_blocks", "recompute",
                len(victim.block_table), victim.num_computed_tokens,
            )
        )  # fmt: skip
        self.running.remove(victim)
        self.released.append(victim.seq_id)
        victim.transition(SequenceStatus.WAITING, "preempted", self.step)
        self.blocks.release(victim, self.step)
        victim.num_preemptions += 1
        victim.num_computed_tokens = 0
        victim.num_pending = 0
        victim.epoch += 1
        self._enqueue(victim)

    def _enqueue(self, seq: Sequence) -> None:
        insort(self.waiting, seq, key=self._order)
        self._unexplained.append(seq)

    def _explain(self, head: Sequence | None, reason: str) -> None:
        """Record why the head of the queue waits; whoever stands behind it waits for the head."""
        head = None if head in self._passed else head
        if self._head is not head and self._head is not None:
            self._unexplained.append(self._head)
        for seq in self._unexplained:
            if seq.status is SequenceStatus.WAITING and seq is not head and seq not in self._passed:
                self._set_wait_reason(seq, "head_of_line")
        for seq in self._passed:
            self._set_wait_reason(seq, "sibling_prefill")
        self._unexplained = self._passed
        self._passed = []
        self._head = head
        if head is not None:
            self._set_wait_reason(head, reason)

    def _set_wait_reason(self, seq: Sequence, reason: str) -> None:
        if seq.wait_reason != reason:
            seq.wait_reason = reason
            self._record(WaitReasonChanged(self._clock(), self.step, seq.seq_id, reason))

    def _record_plan(self, plan: StepPlan, num_decodes: int, began: int) -> None:
        num_chunks = len(plan.sequences) - num_decodes
        plan.kind = "decode" if not num_chunks else "mixed" if num_decodes else "prefill"
        plan.released, self.released = self.released, []
        chunks = [
            (plan.sequences[i].seq_id, plan.starts[i], plan.counts[i])
            for i in range(num_decodes, len(plan.sequences))
        ]
        idle: list[int] = []
        if num_decodes and num_decodes + num_chunks < len(self.running):
            planned = {seq.seq_id for seq in plan.sequences}
            idle = [s.seq_id for s in self.running if s.seq_id not in planned and s.phase == "decode"]
        self._record(
            StepPlanned(
                self._clock(), plan.step, plan.kind, chunks, num_decodes, idle, len(self.waiting), len(self.running),
                len(self.blocks.free),
            )
        )  # fmt: skip
        plan.plan_ns = self._clock() - began

    @staticmethod
    def _is_last(seq: Sequence, total: int) -> bool:
        """Whether the token that is still on the device is the last one that the sequence may have."""
        return total - seq.num_prompt_tokens >= seq.max_tokens or total >= seq.max_total_tokens

    @staticmethod
    def _shares_unready_prompt(leader: Sequence) -> bool:
        """Whether a sibling had better wait: the leader's prompt blocks are not in the cache yet."""
        return leader.status is SequenceStatus.WAITING or (
            leader.status is SequenceStatus.RUNNING and leader.num_output_tokens - leader.num_pending <= 0
        )
