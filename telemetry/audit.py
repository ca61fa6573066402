"""The `audit` projection: does every transition, block and count of a journal add up? Stops at the first contradiction.

It has its own table of transitions and its own state, so that it shares no mistake with the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..errors import AuditError
from .audit_blocks import check_allocated, check_cached, check_copied, check_freed, check_pool
from .audit_steps import StepAudit
from .audit_swaps import SwapAudit
from .differences import keyframe_differences
from .events import (
    AnyEvent,
    BlockCopied,
    BlocksAllocated,
    BlocksCached,
    BlocksFreed,
    BlocksSwapped,
    EngineContinued,
    EngineStarted,
    EngineStopped,
    Keyframe,
    PrefixMatched,
    PriorityChanged,
    RequestArrived,
    RequestFinished,
    SequencePreempted,
    SequenceResumed,
    StatusChanged,
    StepFinished,
    StepPlanned,
    SwapFinished,
    WaitReasonChanged,
)
from .sequence_state import SequenceState
from .state import FINAL, EngineState

LEGAL: dict[tuple[str, str], frozenset[str]] = {
    ("", "WAITING"): frozenset({"arrived"}),
    ("WAITING", "RUNNING"): frozenset({"admitted", "readmitted", "resumed"}),
    ("WAITING", "PAUSED"): frozenset({"operator"}),
    ("WAITING", "FINISHED"): frozenset({"aborted"}),
    ("WAITING", "ERROR"): frozenset({"error"}),
    ("RUNNING", "WAITING"): frozenset({"preempted"}),
    ("RUNNING", "PAUSED"): frozenset({"prefill_complete", "stop", "length", "await_input", "operator", "breakpoint"}),
    ("RUNNING", "FINISHED"): frozenset({"stop", "length", "aborted"}),
    ("RUNNING", "ERROR"): frozenset({"error"}),
    ("PAUSED", "RUNNING"): frozenset({"resumed"}),
    ("PAUSED", "WAITING"): frozenset({"resumed"}),
    ("PAUSED", "FINISHED"): frozenset({"delivered", "aborted", "expired"}),
    ("PAUSED", "ERROR"): frozenset({"error"}),
}
FINISH_REASONS = ("stop", "length", "abort", "error")
PREEMPTION_MODES = ("recompute", "swap")


class Audit:
    """Checks events one by one against the state that the events before them give.

    Attributes:
        state: the state after the last event.
        events: events seen, those before the first keyframe included.
    """

    def __init__(self) -> None:
        self.state = EngineState()
        self.events = 0
        self._join(from_start=False)

    def _join(self, from_start: bool) -> None:
        """Begin with the rules that span events, where the state begins to hold."""
        self._steps = StepAudit()
        self._swaps = SwapAudit(from_start)
        self._lost: set[int] = set()  # preempted to be recomputed, and not yet freed
        self._resumed: set[int] = set()  # their transition out of PAUSED is still to follow
        self._matched: set[int] = set()  # they had a look-up of the prefix cache

    def apply(self, event: AnyEvent) -> None:
        """Check one event, then fold it.

        Raises:
            AuditError: the first contradiction: which event, in which step, and what is wrong.
        """
        self.events += 1
        state = self.state
        try:
            joined = state.joined
            if joined:
                if state.stopped is not None:
                    raise AuditError("comes after engine.stopped, the last event of a run")
                check = _CHECKS.get(event.__class__)
                if check is not None:
                    check(self, event)
            state.apply(event)
            if not state.joined:
                return
            if not joined:
                self._join(isinstance(event, EngineStarted))
            elif isinstance(event, BlocksAllocated | BlocksFreed | BlocksSwapped):
                check_pool(state.pool, event)
        except AuditError as error:
            step = getattr(event, "step", state.step)
            tag = event.__struct_config__.tag
            raise AuditError(f"step {step}, event {self.events} ({tag}): {error}") from error

    def apply_all(self, events: Iterable[AnyEvent]) -> None:
        """Check and fold a batch."""
        for event in events:
            self.apply(event)

    def lose(self) -> None:
        """Say that events were missed: the audit goes on at the next keyframe."""
        self.state.lose()

    def _check_started(self, e: EngineStarted) -> None:
        raise AuditError("a second engine.started in one run")

    def _check_arrived(self, e: RequestArrived) -> None:
        if e.request in self.state.requests:
            raise AuditError(f"request {e.request!r} arrived while one of that id is open")
        if not e.seqs:
            raise AuditError(f"request {e.request!r} has no sequences")
        for seq in e.seqs:
            if seq in self.state.sequences:
                raise AuditError(f"request {e.request!r} claims sequence {seq}, which is live already")

    def _check_status(self, e: StatusChanged) -> None:
        state = self.state
        seq = state.sequences.get(e.seq)
        status = seq.status if seq else ""
        if e.old != status:
            raise AuditError(f"sequence {e.seq} leaves {e.old or '(new)'} but is {status or 'not live'}")
        if e.reason not in LEGAL.get((e.old, e.new), frozenset()):
            raise AuditError(f"sequence {e.seq}: {e.old or '(new)'} -> {e.new} ({e.reason}) is not legal")
        if not e.old:
            request = state.requests.get(e.request)
            if request is None or e.seq not in request.seqs:
                raise AuditError(f"sequence {e.seq} arrived without its request ({e.request!r})")
        if seq is not None:
            self._check_leaving(seq, e)
            if e.new == "RUNNING":
                self._check_runnable(seq)

    def _check_leaving(self, seq: SequenceState, e: StatusChanged) -> None:
        """What a transition says beside the two states: KV that is kept, a sibling's error, a resumption before it."""
        if e.old == "RUNNING" and e.new == "PAUSED":
            computed = self.state.num_computed_tokens(seq)
            if not 0 <= e.kept <= computed or e.kept >= seq.num_tokens:
                raise AuditError(f"sequence {e.seq} keeps {e.kept} of {computed} computed tokens, of {seq.num_tokens}")
        elif e.kept:
            raise AuditError(f"sequence {e.seq} keeps {e.kept} tokens where it does not leave RUNNING for PAUSED")
        if e.old == "PAUSED" and e.new in ("RUNNING", "WAITING") and e.seq not in self._resumed:
            raise AuditError(f"sequence {e.seq} leaves PAUSED for {e.new} without sequence.resumed")
        self._resumed.discard(e.seq)
        if e.new in FINAL:
            self._matched.discard(e.seq)
        if e.cause >= 0:
            request = self.state.requests.get(seq.request)
            siblings = request.seqs if request is not None and request.whole else [e.cause]
            if e.new not in FINAL or e.cause == e.seq or e.cause not in siblings:
                raise AuditError(f"sequence {e.seq} is {e.new} on account of sequence {e.cause}, which is no sibling")

    def _check_runnable(self, seq: SequenceState) -> None:
        self._swaps.check_runnable(seq)
        if seq.num_computed_tokens >= seq.num_tokens:
            raise AuditError(
                f"sequence {seq.seq} runs and has computed {seq.num_computed_tokens} of {seq.num_tokens} tokens"
            )

    def _check_resumed(self, e: SequenceResumed) -> None:
        seq = self.state.sequences.get(e.seq)
        if seq is None or seq.status != "PAUSED":
            raise AuditError(f"sequence {e.seq} is resumed but is {seq.status if seq else 'not live'}")
        if e.seq in self._resumed:
            raise AuditError(f"sequence {e.seq} is resumed twice")
        if e.num_appended < 0 or e.max_tokens < seq.num_output_tokens:
            raise AuditError(
                f"sequence {e.seq} is resumed with {e.num_appended} tokens appended and max_tokens={e.max_tokens}, "
                f"it has {seq.num_output_tokens} output tokens"
            )
        self._resumed.add(e.seq)

    def _check_priority(self, e: PriorityChanged) -> None:
        if e.seq not in self.state.sequences:
            raise AuditError(f"sequence {e.seq} gets priority {e.priority}, which is not live")

    def _check_waits(self, e: WaitReasonChanged) -> None:
        seq = self.state.sequences.get(e.seq)
        if seq is None or seq.status != "WAITING":
            raise AuditError(f"sequence {e.seq} waits ({e.reason}) but is {seq.status if seq else 'not live'}")

    def _check_matched(self, e: PrefixMatched) -> None:
        parts = (e.hit, e.never_seen, e.evicted, e.sub_block)
        if min(parts) < 0 or e.hit > e.queried or (not e.recompute and sum(parts) != e.queried):
            raise AuditError(
                f"sequence {e.seq}: hit {e.hit} + never seen {e.never_seen} + evicted {e.evicted} + "
                f"sub-block {e.sub_block} is not the {e.queried} tokens queried"
            )
        if e.seq in self._matched and not e.recompute:
            raise AuditError(f"sequence {e.seq} is admitted for the first time twice")
        self._matched.add(e.seq)

    def _check_preempted(self, e: SequencePreempted) -> None:
        seq = self.state.sequences.get(e.seq)
        if seq is None or seq.status != "RUNNING":
            raise AuditError(f"sequence {e.seq} is preempted but is {seq.status if seq else 'not live'}")
        if e.num_blocks != len(seq.block_table):
            raise AuditError(f"sequence {e.seq} loses {e.num_blocks} blocks, its table has {len(seq.block_table)}")
        computed = self.state.num_computed_tokens(seq)
        if e.num_tokens + e.kept != computed or min(e.num_tokens, e.kept) < 0:
            raise AuditError(f"sequence {e.seq} loses {e.num_tokens} and keeps {e.kept} computed tokens of {computed}")
        if e.mode not in PREEMPTION_MODES or (e.kept and (e.mode == "recompute" or e.kept >= seq.num_tokens)):
            raise AuditError(f"sequence {e.seq} keeps {e.kept} of {seq.num_tokens} tokens, mode={e.mode!r}")
        if e.mode == "recompute" and seq.block_table:
            self._lost.add(e.seq)

    def _check_planned(self, e: StepPlanned) -> None:
        self._check_settled()
        self._steps.check_planned(self.state, e)

    def _check_step_finished(self, e: StepFinished) -> None:
        self._steps.check_finished(self.state, e)

    def _check_continued(self, e: EngineContinued) -> None:
        self._steps.check_continued(e)

    def _check_request_finished(self, e: RequestFinished) -> None:
        request = self.state.requests.get(e.request)
        if request is None:
            raise AuditError(f"request {e.request!r} finished but is not open: never arrived, or finished before")
        if request.live:
            raise AuditError(f"request {e.request!r} finished while {request.live} of its sequences have not ended")
        if e.finish_reason not in FINISH_REASONS:
            raise AuditError(f"request {e.request!r}: finish_reason={e.finish_reason!r}")
        if e.num_prompt_tokens != request.num_prompt_tokens:
            raise AuditError(
                f"request {e.request!r}: {e.num_prompt_tokens} prompt tokens, {request.num_prompt_tokens} at arrival"
            )
        if request.whole and e.finish_reason != "error" and e.num_output_tokens != request.num_output_tokens:
            raise AuditError(
                f"request {e.request!r}: {e.num_output_tokens} output tokens, but its steps gave "
                f"{request.num_output_tokens}"
            )

    def _check_keyframe(self, e: Keyframe) -> None:
        self._check_settled()
        differences = keyframe_differences(e, self.state.to_keyframe())
        if differences:
            raise AuditError(f"the keyframe is not what the events before it say: {differences[0]}")

    def _check_stopped(self, e: EngineStopped) -> None:
        self._check_settled()
        state = self.state
        if state.sequences:
            raise AuditError(f"sequences {sorted(state.sequences)} never ended")
        if state.requests:
            raise AuditError(f"requests {sorted(state.requests)} never finished")
        if state.pool.referenced:
            raise AuditError(f"{state.pool.referenced} blocks were never freed")
        if state.pool.slots:
            raise AuditError(f"slots {sorted(state.pool.slots)} of the swap space were never freed")

    def _check_settled(self) -> None:
        """At a step's plan, a keyframe and the end, whoever ended or lost its place has given back its blocks."""
        state = self.state
        if state.ended:
            seq = next(iter(state.ended.values()))
            raise AuditError(f"sequence {seq.seq} ended ({seq.status}) and kept its {len(seq.block_table)} blocks")
        for seq_id in self._lost:
            left = state.sequences.get(seq_id)
            if left is not None and left.block_table:
                raise AuditError(f"sequence {seq_id} is back in the queue and kept its {len(left.block_table)} blocks")
        self._lost.clear()
        for seq_id in self._resumed:
            raise AuditError(f"sequence {seq_id} was resumed and is still PAUSED")
        self._swaps.check_settled(state)

    def _check_allocated(self, e: BlocksAllocated) -> None:
        check_allocated(self.state, e)

    def _check_cached(self, e: BlocksCached) -> None:
        check_cached(self.state, e)

    def _check_freed(self, e: BlocksFreed) -> None:
        check_freed(self.state, e)
        self._lost.discard(e.seq)
        self._swaps.freed(e.seq)

    def _check_copied(self, e: BlockCopied) -> None:
        check_copied(self.state, e)

    def _check_swapped(self, e: BlocksSwapped) -> None:
        self._swaps.check_swapped(self.state, e)

    def _check_swap_finished(self, e: SwapFinished) -> None:
        self._swaps.check_finished(e)


_CHECKS: dict[type, Callable[[Audit, Any], None]] = {
    EngineStarted: Audit._check_started,
    EngineStopped: Audit._check_stopped,
    EngineContinued: Audit._check_continued,
    RequestArrived: Audit._check_arrived,
    RequestFinished: Audit._check_request_finished,
    StatusChanged: Audit._check_status,
    WaitReasonChanged: Audit._check_waits,
    SequenceResumed: Audit._check_resumed,
    PriorityChanged: Audit._check_priority,
    PrefixMatched: Audit._check_matched,
    BlocksAllocated: Audit._check_allocated,
    BlocksCached: Audit._check_cached,
    BlocksFreed: Audit._check_freed,
    BlocksSwapped: Audit._check_swapped,
    SwapFinished: Audit._check_swap_finished,
    BlockCopied: Audit._check_copied,
    SequencePreempted: Audit._check_preempted,
    StepPlanned: Audit._check_planned,
    StepFinished: Audit._check_step_finished,
    Keyframe: Audit._check_keyframe,
}
