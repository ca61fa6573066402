"""The live sequences of a view as rows. Pure functions of the view; knows no terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..telemetry.event_fields import FINAL, STATUSES
from ..telemetry.events import SequenceSnapshot
from .export import Table, in_seconds
from .filters import Field
from .view import StepRow, View

STATES = tuple(status for status in STATUSES if status not in FINAL)
RESIDENCIES = ("none", "device", "host", "disk")


class SequenceRow(NamedTuple):
    """One live sequence.

    Attributes:
        reason: why it waits, or that of the transition into its state.
        age_ns: how long it has been in its state.
        prompt, cached, computed, output: tokens, as of `SequenceSnapshot`.
        blocks: entries of its block table, wherever they lie.
        ttft_ns: from its arrival to its first token; None before that.
        itl_ns: between its last two tokens; None where it does not run, or where that is not known.
    """

    seq: int
    request: str
    state: str
    phase: str
    reason: str
    age_ns: int
    priority: int
    prompt: int
    cached: int
    computed: int
    output: int
    blocks: int
    residency: str
    preemptions: int
    ttft_ns: int | None
    itl_ns: int | None


FIELDS: dict[str, Field[SequenceRow]] = {
    "id": Field("number", lambda row: row.seq),
    "request": Field("text", lambda row: row.request),
    "state": Field("text", lambda row: row.state, STATES),
    "phase": Field("text", lambda row: row.phase, ("prefill", "decode")),
    "reason": Field("text", lambda row: row.reason),
    "age": Field("duration", lambda row: row.age_ns),
    "priority": Field("number", lambda row: row.priority),
    "prompt": Field("number", lambda row: row.prompt),
    "cached": Field("number", lambda row: row.cached),
    "computed": Field("number", lambda row: row.computed),
    "output": Field("number", lambda row: row.output),
    "blocks": Field("number", lambda row: row.blocks),
    "residency": Field("text", lambda row: row.residency, RESIDENCIES),
    "preemptions": Field("number", lambda row: row.preemptions),
    "ttft": Field("duration", lambda row: row.ttft_ns),
    "itl": Field("duration", lambda row: row.itl_ns),
}


def sequence_rows(view: View) -> list[SequenceRow]:
    """All live sequences, in the order of their ids."""
    intervals = Intervals(view.steps)
    return [_row(each, view.now_t, intervals) for each in view.keyframe.sequences]


def sequence_table(rows: Sequence[SequenceRow]) -> Table:
    """Rows for an export; durations in seconds."""
    return in_seconds("sequences", SequenceRow._fields, rows)


class Intervals:
    """The time between the last two tokens of sequences that run, from the steps of a view."""

    def __init__(self, steps: Sequence[StepRow]) -> None:
        self._done = [step for step in steps if step.finished is not None]
        self._place = {step.finished.t: i for i, step in enumerate(self._done) if step.finished is not None}

    def last(self, seq: SequenceSnapshot) -> int | None:
        """Nanoseconds; None unless both tokens came since it was admitted last."""
        place = self._place.get(seq.last_token_t)
        if place is None or seq.status != "RUNNING" or seq.first_token_t == seq.last_token_t:
            return None
        if _has_chunk(self._done[place], seq.seq):
            return None  # the token before came before its admission
        for before in range(place - 1, -1, -1):
            step = self._done[before]
            if step.planned.t < seq.status_t:
                return None
            if _has_chunk(step, seq.seq) or _decodes(step, seq.seq):
                return seq.last_token_t - step.finished.t if step.finished is not None else None
        return None


def _has_chunk(step: StepRow, seq: int) -> bool:
    return any(chunk[0] == seq for chunk in step.planned.chunks)


def _decodes(step: StepRow, seq: int) -> bool:
    """Whether a sequence in its decode phase got a token in a step."""
    wasted = step.finished.wasted if step.finished is not None else ()
    return step.planned.decodes > 0 and seq not in step.planned.idle and seq not in wasted


def _row(s: SequenceSnapshot, t: int, intervals: Intervals) -> SequenceRow:
    return SequenceRow(
        s.seq, s.request, s.status, s.phase, s.wait_reason or s.reason, max(0, t - s.status_t), s.priority,
        s.num_prompt_tokens, s.num_cached_tokens, s.num_computed_tokens, s.num_output_tokens, len(s.block_table),
        s.residency, s.num_preemptions, s.first_token_t - s.arrived_t if s.first_token_t else None, intervals.last(s),
    )  # fmt: skip
