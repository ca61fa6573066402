"""What events about statuses, steps and places in the batch mean for spans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .events import (
    BreakpointHit,
    PrefixMatched,
    PriorityChanged,
    SequencePreempted,
    SequenceResumed,
    StatusChanged,
    StepFinished,
    StepPlanned,
    WaitReasonChanged,
)
from .span_draft import Value
from .span_open import DecodeRun, OpenTraces, PlannedStep

FINAL = ("FINISHED", "ERROR")
FINISH_REASONS = {"aborted": "abort", "expired": "abort", "delivered": "stop"}  # others keep their names
UNSUCCESSFUL = ("aborted", "expired", "error")  # reasons for which a final state's span has the status ERROR


def _on_status(traces: OpenTraces, e: StatusChanged) -> None:
    seq = traces.seqs.get(e.seq)
    if seq is None:
        return
    attributes: dict[str, Value] = {
        "nanolens.from": e.old, "nanolens.to": e.new, "nanolens.reason": e.reason, "nanolens.step": e.step,
    }  # fmt: skip
    if e.new == "PAUSED":
        attributes["nanolens.tokens.kept"] = e.kept
    if e.cause >= 0:
        attributes["nanolens.cause_seq"] = e.cause
    if seq.resumed is not None:
        attributes["nanolens.resume.appended_tokens"] = seq.resumed.num_appended
        attributes["nanolens.resume.max_tokens"] = seq.resumed.max_tokens
        seq.resumed = None
    state = traces.enter(seq, e.new, e.t, attributes)
    if e.new in FINAL:
        state.end_t = e.t
        seq.ended = "error" if e.new == "ERROR" else FINISH_REASONS.get(e.reason, e.reason)
        if e.reason in UNSUCCESSFUL:
            state.error = e.reason


def _on_waits(traces: OpenTraces, e: WaitReasonChanged) -> None:
    seq = traces.seqs.get(e.seq)
    if seq is not None:
        traces.end_wait(seq, e.t)
        seq.wait, seq.wait_t = e.reason, e.t


def _on_resumed(traces: OpenTraces, e: SequenceResumed) -> None:
    seq = traces.seqs.get(e.seq)
    if seq is not None:
        seq.resumed = e


def _on_priority(traces: OpenTraces, e: PriorityChanged) -> None:
    seq = traces.seqs.get(e.seq)
    if seq is not None:
        seq.state.event("sequence.priority", e.t, priority=e.priority)


def _on_breakpoint(traces: OpenTraces, e: BreakpointHit) -> None:
    seq = traces.seqs.get(e.seq)
    if seq is not None and seq.state.end_t < 0:
        seq.state.event("breakpoint.hit", e.t, breakpoint=e.breakpoint, predicate=e.predicate, action=e.action)


def _on_matched(traces: OpenTraces, e: PrefixMatched) -> None:
    seq = traces.seqs.get(e.seq)
    if seq is not None:
        seq.state.attributes.update(
            {
                "nanolens.prefix.queried": e.queried,
                "nanolens.prefix.hit": e.hit,
                "nanolens.prefix.never_seen": e.never_seen,
                "nanolens.prefix.evicted": e.evicted,
                "nanolens.prefix.sub_block": e.sub_block,
                "nanolens.prefix.recompute": e.recompute,
            }
        )


def _on_preempted(traces: OpenTraces, e: SequencePreempted) -> None:
    """A span of the victim, and two links: from it to the state of who gets the blocks, and from there back to it."""
    victim = traces.seqs.get(e.seq)
    if victim is None:
        return
    attributes: dict[str, Value] = {
        "nanolens.event": "sequence.preempted",
        "nanolens.step": e.step,
        "nanolens.preemption.by_seq": e.by,
        "nanolens.preemption.cause": e.cause,
        "nanolens.preemption.mode": e.mode,
        "nanolens.preemption.blocks": e.num_blocks,
        "nanolens.tokens.lost": e.num_tokens,
        "nanolens.tokens.kept": e.kept,
    }
    draft = traces.draft(victim, "preempted", "sequence.preempted", e.t, e.t, attributes)
    victim.request.preempts = True
    by = traces.seqs.get(e.by)
    if by is not None:
        attributes["nanolens.preemption.by_request"] = by.request.request
        if by is not victim:
            draft.link(by.place, "preemptor", request=by.request.request)
            by.state.link(victim.place._replace(span_id=draft.span_id), "victim", request=victim.request.request)
            by.request.preempts = True


def _on_planned(traces: OpenTraces, e: StepPlanned) -> None:
    planned = traces.steps[e.step] = PlannedStep(e.t, [])
    for seq_id, start, count in e.chunks:
        seq = traces.seqs.get(seq_id)
        if seq is None:
            continue
        attributes: dict[str, Value] = {
            "nanolens.step": e.step,
            "nanolens.step.kind": e.kind,
            "nanolens.prefill.start": start,
            "nanolens.prefill.tokens": count,
        }
        seq.chunks[e.step] = traces.draft(seq, "prefill", "prefill", e.t, -1, attributes)
        planned.chunks.append(seq)


def _on_finished(traces: OpenTraces, e: StepFinished) -> None:
    for failed in [step for step in traces.steps if step < e.step]:  # their tokens are never read
        del traces.steps[failed]
    planned = traces.steps.pop(e.step, None)
    if planned is None:
        return
    chunked = set()
    for seq in planned.chunks:
        chunked.add(seq.seq)
        if (chunk := seq.chunks.pop(e.step, None)) is not None:
            chunk.end_t = e.t
    seqs = traces.seqs
    for life in traces.lives.sampled:
        found = seqs.get(life.seq)
        if found is None:
            continue
        if life.seq not in chunked:
            if found.run is None:
                found.run = DecodeRun(e.step, planned.t, found.token_t)
            found.run.take(e.step, e.t)
        found.token_t = e.t


STATE_HANDLERS: dict[type, Callable[[OpenTraces, Any], None]] = {
    StatusChanged: _on_status,
    WaitReasonChanged: _on_waits,
    SequenceResumed: _on_resumed,
    PriorityChanged: _on_priority,
    BreakpointHit: _on_breakpoint,
    PrefixMatched: _on_matched,
    SequencePreempted: _on_preempted,
    StepPlanned: _on_planned,
    StepFinished: _on_finished,
}
