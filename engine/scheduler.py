"""Decides what each step computes: who runs, who waits and why, who is preempted. Knows no device.

A sequence simply has `num_computed_tokens` to bring up to `num_tokens`; decoding is the case where one is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ..telemetry.clock import Clock
from ..telemetry.events import (
    AnyEvent,
    SequencePreempted,
    StepPlanned,
)
from .block_manager import BlockManager
from .config import EngineConfig
from .plan import StepPlan
from .sequence import Sequence, SequenceStatus
from .sequence_queues import SequenceQueues


class Scheduler(SequenceQueues):
    """Two queues and the rules between them.

    Both are kept in the order of the policy. Blocks for all the tokens that a sequence has are taken when it is
    admitted, so that only decoding can run short. Then what sequences hold that don't run moves out (residency.py);
    where that does not do, the last of the running order is preempted. A preempted sequence keeps its place in that
    order: under fcfs it is ahead of all that arrived later. Under "priority" a more urgent sequence that can't be
    admitted preempts from the end of the running order too.
    """

    def __init__(
        self, config: EngineConfig, blocks: BlockManager, record: Callable[[AnyEvent], None], clock: Clock
    ) -> None:
        super().__init__(config, blocks, record, clock)
        self._urgent_refused = (-1, -1, -1, -1)
        self._preempts_for_urgent = config.policy == "priority"
        self._budget = config.max_num_batched_tokens
        self._chunk = config.max_prefill_chunk or config.max_num_batched_tokens
        self._prefill_first = config.batching == "prefill_first"

    def plan(self) -> StepPlan | None:
        """Plan the next step, or None when nothing can be computed now.

        The planned tokens count as computed from here on.
        """
        if self.paused:
            self._explain(self.waiting[0] if self.waiting else None, "engine_paused")
            return None
        began = self._clock()
        self.step += 1
        plan = StepPlan(self.step, "decode", [], [], [], [], [], [], began)
        lost = self._admit_urgent(plan) if self._preempts_for_urgent and self.waiting and self.running else ""
        if not self._prefill_first and self._plan_decodes(plan):
            lost = "no_blocks"
        num_decodes = len(plan.sequences)
        self._plan_prefills(plan, self._budget - num_decodes)
        head, reason = self._lost_place(lost) if lost else self._admit(plan, self._budget - plan.num_tokens)
        if self._prefill_first and not plan.sequences:
            if self._plan_decodes(plan):
                head, reason = self._lost_place("no_blocks")
            num_decodes = len(plan.sequences)
        self._explain(head, reason)
        plan.moves = self.residency.take_moves()
        if not plan.sequences and not plan.moves:
            self.step -= 1
            return None
        self._record_plan(plan, num_decodes, began)
        if self._steps_granted:
            self._steps_granted -= 1
            if not self._steps_granted:
                self.pause_engine("steps")
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
                if not blocks.free:
                    num_left = len(self.released)
                    has_room = self._make_room(seq)
                    preempted = preempted or len(self.released) > num_left
                    if not has_room:
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
            if wait := self._why_pass(seq, plan):
                self._passed[seq] = wait
                index += 1
                continue
            if len(self.running) >= self._max_num_seqs:
                return seq, "sequence_cap"
            if budget <= 0:
                return seq, "token_budget"
            if not self._take_place(seq, plan):
                return seq, "no_blocks"
            budget -= self._add_chunk(plan, seq, budget) if seq.status is SequenceStatus.RUNNING else 0
        return None, ""

    def _admit_urgent(self, plan: StepPlan) -> str:
        """Admit the head of the queue in the place of less urgent sequences that run; why they lost it, or "".

        Who is less urgent has a higher priority value and comes later in the order: one that has waited for long is
        not sent back by the next one that is more urgent by name.
        """
        lost = ""
        while self.waiting:
            head = self.waiting[0]
            victims = [
                seq for seq in reversed(self.running)
                if seq.priority > head.priority and seq.queue_key > head.queue_key
            ]  # fmt: skip
            if not victims or self._why_pass(head, plan) or not self._would_fit(head, victims):
                break
            full = len(self.running) >= self._max_num_seqs
            if self._fits(head):
                if not full:
                    break  # admitted in its turn
                if not head.is_resident:
                    # Its KV comes back first: the slot stays in use until it is here.
                    if self._begin_return(head, self._reserve) and not head.move_in:
                        continue
                    break
            reason = "sequence_cap" if full else "no_blocks"
            for victim in victims:
                self._preempt(victim, head, "priority")
                lost = reason
                if self._fits(head):  # and there is a slot now
                    break
            if not self._take_place(head, None):
                break
        return lost

    def _fits(self, head: Sequence, victims: Iterable[Sequence] = ()) -> bool:
        """Whether there are blocks for a waiting sequence once others move out, and once these are preempted."""
        matched = [] if head.block_table else self.blocks.match(head).blocks
        holders = [*self.residency.holders(self._parked(head)), *victims]
        # Matched blocks are not counted: given up, they are free, but then they are needed.
        room = len(self.blocks.free) + self.residency.freeable(holders, but=set(matched))
        return self._needed_blocks(head) + self._reserve <= room

    def _would_fit(self, head: Sequence, victims: list[Sequence]) -> bool:
        """Whether it would fit if all these were preempted; a "no" stands until someone gives up blocks."""
        state = (head.seq_id, len(victims), self.blocks.num_releases, self.residency.num_parked)
        if state == self._urgent_refused:
            return False
        if self._fits(head, victims):
            return True
        self._urgent_refused = state
        return False

    def _why_pass(self, seq: Sequence, plan: StepPlan) -> str:
        """Why those behind a waiting sequence need not wait for it; "" if they must.

        Nothing begins to move in where the plan copies blocks: moves come first, and could write what is to be copied.
        """
        if seq.move_in or (plan.copies and not seq.is_resident):
            return "swap_in"
        if seq.leader is not None and not seq.block_table and self._shares_unready_prompt(seq.leader):
            return "sibling_prefill"
        return ""

    def _take_place(self, seq: Sequence, plan: StepPlan | None) -> bool:
        """Admit a waiting sequence, or begin to bring its KV back to the device; False where blocks are short.

        Without a plan nothing is copied for it: it may lose its place in the same step, or get no tokens in it.
        """
        blocks, reserve = self.blocks, self._reserve if self.running else 0
        if not seq.is_resident:
            if not self._begin_return(seq, reserve):
                return False
            if not seq.is_resident:
                return True
        if seq.block_table:
            if not self.residency.vacate(self._needed_blocks(seq) + reserve, self.step, self._parked(seq)):
                return False
            self.waiting.remove(seq)
            self._run_resident(seq)
            return True
        match = blocks.match(seq)
        while (want := blocks.free_needed(seq, match) + reserve) > len(blocks.free):
            # What moves out may have held matched blocks: they stay cached, but are free now and count as needed.
            if not self.residency.vacate(want, self.step, self._parked(seq)):
                return False
        self.waiting.remove(seq)
        self._start(seq)
        blocks.admit(seq, match, self.step)
        seq.num_computed_tokens = match.hit
        if seq.num_cached_tokens is None:
            seq.num_cached_tokens = match.hit
        if plan and seq.leader is not None and (pair := blocks.copy_tail(seq, seq.leader, self.step)):
            plan.copies.append(pair)
        return True

    def _begin_return(self, seq: Sequence, reserve: int) -> bool:
        """Begin to bring a waiting sequence's KV back to the device; False where blocks are short."""
        return self.residency.bring_back(seq, self.step, lambda: self._parked(seq), reserve)

    def _parked(self, but: Sequence) -> Iterator[Sequence]:
        """The waiting sequences behind one that may have to give up blocks for it, the last first."""
        for seq in reversed(self.waiting):
            if seq is but:
                return
            yield seq

    def _lost_place(self, reason: str) -> tuple[Sequence | None, str]:
        """The wait of a step that preempted: it admits nothing, or what it freed would be taken again at once."""
        head = self.waiting[0] if self.waiting else None
        return head, "swap_in" if head and head.move_in else reason

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
        """Have a block free for a running sequence, by what others hold that don't run, then by preempting from the end
        of the running order; False if `seq` itself had to go, or has to wait for blocks that are being filled.
        """
        if self.residency.vacate(1, self.step, reversed(self.waiting)):
            return True
        while not self.blocks.free:
            victim = self.running[-1]
            if victim is seq and any(other.move_in for other in self.waiting):
                return False  # they can be had when the move has ended: it would come back to the same state otherwise
            self._preempt(victim, seq, "no_blocks")
            if victim is seq:
                return False
        return True

    def _preempt(self, victim: Sequence, by: Sequence, cause: str) -> None:
        """Send a running sequence back to the queue; its blocks go to `by`, its KV to the swap space or nowhere."""
        kept = self._kept_tokens(victim)
        room = self.residency.slots_to_preempt(victim, kept, self.step)
        kept = kept if room else 0
        self._record(
            SequencePreempted(
                self._clock(), self.step, victim.seq_id, by.seq_id, cause, "swap" if room else "recompute",
                len(victim.block_table), victim.num_computed_tokens - kept, kept,
            )
        )  # fmt: skip
        self._leave_queue(victim)
        victim.transition(SequenceStatus.WAITING, "preempted", self.step)
        victim.num_preemptions += 1
        victim.num_computed_tokens = kept
        victim.num_pending = 0
        victim.epoch += 1
        if room:
            self.residency.swap_out(victim, *room, self.step)
        else:
            self.blocks.release(victim, self.step)
        self._enqueue(victim)

    def _record_plan(self, plan: StepPlan, num_decodes: int, began: int) -> None:
        num_chunks = len(plan.sequences) - num_decodes
        plan.kind = "decode" if not num_chunks else "mixed" if num_decodes else "prefill"
        if not plan.sequences:
            plan.kind = "moves"
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
        given = seq.num_prompt_tokens + seq.num_appended_tokens
        return total - given >= seq.max_tokens or total >= seq.max_total_tokens

    @staticmethod
    def _shares_unready_prompt(leader: Sequence) -> bool:
        """Whether a sibling had better wait: the leader's prompt blocks are not in the cache yet."""
        return leader.status is SequenceStatus.WAITING or (
            leader.status is SequenceStatus.RUNNING and leader.num_read_output_tokens <= 0
        )
