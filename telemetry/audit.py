"""The `audit` projection: does every transition, block and count of a journal add up? Stops at the first contradiction.

It has its own table of transitions and its own state, so that it shares no mistake with the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..errors import AuditError
from .audit_blocks import check_allocated, check_cached, check_freed, check_pool
from .differences import keyframe_differences
from .events import (
    AnyEvent,
    BlocksAllocated,
    BlocksCached,
    BlocksFreed,
    EngineStarted,
    EngineStopped,
    JournalDropped,
    Keyframe,
    PrefixMatched,
    RequestArrived,
    RequestFinished,
    SequencePreempted,
    StatusChanged,
    StepFinished,
    StepPlanned,
    WaitReasonChanged,
)
from .state import EngineState

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


class Audit:
    """Checks events one by one against the state that the events before them give.

    Attributes:
        state: the state after the last event.
        events: events seen, those before the first keyframe included.
    """

    def __init__(self) -> None:
        self.state = EngineState()
        self.events = 0
        self._finished_step = -1
        self._lost: set[int] = set()  # preempted or dropped to WAITING, and not yet freed

    def apply(self, event: AnyEvent) -> None:
        """Check one event, then fold it.

        Raises:
            AuditError: the first contradiction: which event, in which step, and what is wrong.
        """
        self.events += 1
        state = self.state
        try:
            if state.joined:
                if state.stopped is not None:
                    raise AuditError("comes after engine.stopped, the last event of a run")
                check = _CHECKS.get(event.__class__)
                if check is not None:
                    check(self, event)
            state.apply(event)
            if state.joined and isinstance(event, BlocksAllocated | BlocksFreed):
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
        if e.old in ("RUNNING", "PAUSED") and e.new == "WAITING" and seq is not None and seq.block_table:
            self._lost.add(e.seq)

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

    def _check_preempted(self, e: SequencePreempted) -> None:
        seq = self.state.sequences.get(e.seq)
        if seq is None or seq.status != "RUNNING":
            raise AuditError(f"sequence {e.seq} is preempted but is {seq.status if seq else 'not live'}")
        if e.num_blocks != len(seq.block_table):
            raise AuditError(f"sequence {e.seq} loses {e.num_blocks} blocks, its table has {len(seq.block_table)}")
        computed = self.state.num_computed_tokens(seq)
        if e.num_tokens != computed:
            raise AuditError(f"sequence {e.seq} loses {e.num_tokens} computed tokens of {computed}")

    def _check_planned(self, e: StepPlanned) -> None:
        state = self.state
        self._check_settled()
        if e.step <= state.step:
            raise AuditError(f"step {e.step} is planned after step {state.step}")
        counts = (
            ("waiting", e.waiting, len(state.waiting)),
            ("running", e.running, len(state.running)),
            ("free", e.free, len(state.pool.free)),
        )
        for name, given, known in counts:
            if given != known:
                raise AuditError(f"{name}={given}, the events before it say {known}")
        size = state.started.block_size if state.started else 1
        for seq_id, start, count in e.chunks:
            seq = state.sequences.get(seq_id)
            if seq is None or seq.status != "RUNNING":
                raise AuditError(f"sequence {seq_id} is computed but is {seq.status if seq else 'not live'}")
            if start != seq.num_computed_tokens or seq.phase != "prefill":
                raise AuditError(
                    f"sequence {seq_id}: a chunk from position {start}, in {seq.phase} with "
                    f"{state.num_computed_tokens(seq)} tokens computed"
                )
            if count < 1 or start + count > len(seq.block_table) * size:
                raise AuditError(
                    f"sequence {seq_id}: tokens {start} to {start + count} in {len(seq.block_table)} blocks of {size}"
                )
        decoding = len(state.steps.decoding) - sum(1 for seq_id in e.idle if seq_id in state.steps.decoding)
        if e.decodes and e.decodes != decoding:
            raise AuditError(f"{e.decodes} decodes planned, {decoding} sequences decode and are not idle")

    def _check_step_finished(self, e: StepFinished) -> None:
        if e.step <= self._finished_step:
            raise AuditError(f"step {e.step} finished after step {self._finished_step}")
        if e.step > self.state.step:
            raise AuditError(f"step {e.step} finished but was never planned")
        self._finished_step = e.step
        given, planned = (e.num_tokens, e.num_sampled), self.state.steps.planned(e.step)
        if planned is not None and planned != given:
            raise AuditError(
                f"{given[0]} tokens computed and {given[1]} sampled, planned were {planned[0]} and {planned[1]}"
            )
        if len(e.wasted) > e.num_sampled:
            raise AuditError(f"{len(e.wasted)} tokens wasted of {e.num_sampled} sampled")

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

    def _check_settled(self) -> None:
        """At a step's plan, a keyframe and the end, whoever ended or lost its place has given back its blocks."""
        state = self.state
        if state.ended:
            seq = next(iter(state.ended.values()))
            raise AuditError(f"sequence {seq.seq} ended ({seq.status}) and kept its {len(seq.block_table)} blocks")
        for seq_id in self._lost:
            left = state.sequences.get(seq_id)
            if left is not None and left.status == "WAITING" and left.block_table:
                raise AuditError(f"sequence {seq_id} is back in the queue and kept its {len(left.block_table)} blocks")
        self._lost.clear()

    def _check_dropped(self, e: JournalDropped) -> None:
        self._lost.clear()

    def _check_allocated(self, e: BlocksAllocated) -> None:
        check_allocated(self.state, e)

    def _check_cached(self, e: BlocksCached) -> None:
        check_cached(self.state, e)

    def _check_freed(self, e: BlocksFreed) -> None:
        check_freed(self.state, e)


_CHECKS: dict[type, Callable[[Audit, Any], None]] = {
    EngineStarted: Audit._check_started,
    EngineStopped: Audit._check_stopped,
    RequestArrived: Audit._check_arrived,
    RequestFinished: Audit._check_request_finished,
    StatusChanged: Audit._check_status,
    WaitReasonChanged: Audit._check_waits,
    PrefixMatched: Audit._check_matched,
    BlocksAllocated: Audit._check_allocated,
    BlocksCached: Audit._check_cached,
    BlocksFreed: Audit._check_freed,
    SequencePreempted: Audit._check_preempted,
    StepPlanned: Audit._check_planned,
    StepFinished: Audit._check_step_finished,
    JournalDropped: Audit._check_dropped,
    Keyframe: Audit._check_keyframe,
}
