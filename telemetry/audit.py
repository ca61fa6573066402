"""The `audit` projection: does every transition, block and count of a journal add up? Stops at the first contradiction.

It has its own table of transitions and its own state, so that it shares no mistake with the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..errors import AuditError
from .audit_blocks import check_allocated, check_cached, check_copied, check_freed, check_pool
from .audit_sequences import LEGAL, SequenceAudit
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
from .state import EngineState

__all__ = ["LEGAL", "Audit"]

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
        self._join(from_start=False)

    def _join(self, from_start: bool) -> None:
        """Begin with the rules that span events, where the state begins to hold."""
        self._sequences = SequenceAudit()
        self._steps = StepAudit()
        self._swaps = SwapAudit(from_start)
        self._checks: dict[type, Callable[[EngineState, Any], None]] = {
            EngineStarted: self._check_started,
            EngineStopped: self._check_stopped,
            EngineContinued: self._steps.check_continued,
            RequestArrived: self._check_arrived,
            RequestFinished: self._check_request_finished,
            StatusChanged: self._check_status,
            WaitReasonChanged: self._sequences.check_waits,
            SequenceResumed: self._sequences.check_resumed,
            PriorityChanged: self._sequences.check_priority,
            PrefixMatched: self._sequences.check_matched,
            SequencePreempted: self._sequences.check_preempted,
            BlocksAllocated: check_allocated,
            BlocksCached: check_cached,
            BlocksFreed: self._check_freed,
            BlocksSwapped: self._swaps.check_swapped,
            SwapFinished: self._swaps.check_finished,
            BlockCopied: check_copied,
            StepPlanned: self._check_planned,
            StepFinished: self._steps.check_finished,
            Keyframe: self._check_keyframe,
        }

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
                check = self._checks.get(event.__class__)
                if check is not None:
                    check(state, event)
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

    def _check_started(self, state: EngineState, e: EngineStarted) -> None:
        raise AuditError("a second engine.started in one run")

    def _check_arrived(self, state: EngineState, e: RequestArrived) -> None:
        if e.request in state.requests:
            raise AuditError(f"request {e.request!r} arrived while one of that id is open")
        if not e.seqs:
            raise AuditError(f"request {e.request!r} has no sequences")
        for seq in e.seqs:
            if seq in state.sequences:
                raise AuditError(f"request {e.request!r} claims sequence {seq}, which is live already")

    def _check_request_finished(self, state: EngineState, e: RequestFinished) -> None:
        request = state.requests.get(e.request)
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

    def _check_keyframe(self, state: EngineState, e: Keyframe) -> None:
        self._check_settled()
        expected = state.to_keyframe()
        if not state.is_order_sure and sorted(e.waiting) == sorted(expected.waiting):
            expected.waiting = e.waiting
        differences = keyframe_differences(e, expected)
        if differences:
            raise AuditError(f"the keyframe is not what the events before it say: {differences[0]}")

    def _check_stopped(self, state: EngineState, e: EngineStopped) -> None:
        self._check_settled()
        if state.sequences:
            raise AuditError(f"sequences {sorted(state.sequences)} never ended")
        if state.requests:
            raise AuditError(f"requests {sorted(state.requests)} never finished")
        if state.pool.referenced:
            raise AuditError(f"{state.pool.referenced} blocks were never freed")
        if state.pool.slots:
            raise AuditError(f"slots {sorted(state.pool.slots)} of the swap space were never freed")

    def _check_settled(self) -> None:
        """At a step's plan, a keyframe and the end, nothing is left half done."""
        self._sequences.check_settled(self.state)
        self._swaps.check_settled(self.state)

    def _check_planned(self, state: EngineState, e: StepPlanned) -> None:
        self._check_settled()
        self._steps.check_planned(state, e)

    def _check_status(self, state: EngineState, e: StatusChanged) -> None:
        self._sequences.check_status(state, e)
        self._swaps.check_status(state, e)

    def _check_freed(self, state: EngineState, e: BlocksFreed) -> None:
        check_freed(state, e)
        self._sequences.freed(e.seq)
        self._swaps.freed(e.seq)
