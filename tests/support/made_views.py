"""Views made by hand, for tests of what is worked out of them: every figure in them is one that a test gave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nanolens.inspector.view import EventRow, Moment, SourceStatus, StepRow, Tick, View
from nanolens.telemetry.events import AnyEvent, EngineStarted, Keyframe, SequenceSnapshot, StepFinished, StepPlanned
from nanolens.telemetry.totals import Totals

SECOND = 1_000_000_000
NOW = 1000 * SECOND


def sequence(seq: int, table: Sequence[int] = (), status: str = "RUNNING", **fields: Any) -> SequenceSnapshot:
    """A live sequence of request `r<seq>`, of 8 prompt tokens, all computed, that arrived 5 s ago."""
    values: dict[str, Any] = {
        "request": f"r{seq}", "phase": "decode", "reason": "admitted", "wait_reason": "", "residency": "device",
        "priority": 0, "arrived_t": NOW - 5 * SECOND, "status_t": NOW - 2 * SECOND, "num_prompt_tokens": 8,
        "num_output_tokens": 0, "num_computed_tokens": 8, "num_cached_tokens": 0, "prefill_target": 8,
        "max_tokens": 16, "num_preemptions": 0,
    }  # fmt: skip
    return SequenceSnapshot(seq=seq, status=status, block_table=list(table), **(values | fields))


def waiting(seq: int, reason: str, table: Sequence[int] = (), **fields: Any) -> SequenceSnapshot:
    """A sequence that waits, none of its tokens computed."""
    values = {"phase": "prefill", "reason": "arrived", "wait_reason": reason, "num_computed_tokens": 0}
    return sequence(seq, table, "WAITING", **(values | fields))


def keyframe(
    sequences: Sequence[SequenceSnapshot],
    *,
    num_blocks: int = 16,
    free: Sequence[int] | None = None,
    cached: dict[int, int] | None = None,
    step: int = 7,
    engine_paused: str = "",
    **config: Any,
) -> Keyframe:
    """A state of `num_blocks` blocks of 4 tokens; `cached` gives blocks and who filled each.

    Free is what no table names, in the order of the ids, unless it is given.
    """
    held = {entry for seq in sequences for entry in seq.block_table}
    content = cached or {}
    started = EngineStarted(0, "run", 0, 1, "0", "fake", config, num_blocks, 4, 100, 64)
    return Keyframe(
        t=NOW, step=step, started=started, sequences=list(sequences),
        waiting=[seq.seq for seq in sequences if seq.status == "WAITING"],
        running=sorted(seq.seq for seq in sequences if seq.status == "RUNNING"),
        cached_blocks=sorted(content),
        cached_hashes=b"".join(block.to_bytes(8, "big") for block in sorted(content)),
        cached_by=[content[block] for block in sorted(content)],
        free_blocks=[block for block in range(num_blocks) if block not in held] if free is None else list(free),
        totals=Totals().snapshot(), engine_paused=engine_paused,
    )  # fmt: skip


def step_row(
    step: int, chunks: Sequence[tuple[int, int, int]] = (), decodes: int = 0, idle: Sequence[int] = (),
    finished: StepFinished | None = None, **fields: Any,
) -> StepRow:  # fmt: skip
    """A step; its kind is that of what it computes."""
    kind = ("mixed" if decodes else "prefill") if chunks else "decode" if decodes else "moves"
    running = decodes + len(chunks) + len(idle)
    planned = StepPlanned(NOW + step, step, kind, list(chunks), decodes, list(idle), 1, running, 5)
    return StepRow(planned, finished, **fields)


def event_rows(events: Sequence[AnyEvent], segment: int = 1) -> list[EventRow]:
    """One frame that holds these events, each at its own time."""
    rows, step, t = [], 0, 0
    for count, event in enumerate(events, 1):
        step, t = getattr(event, "step", step), getattr(event, "t", t)
        rows.append(EventRow(Moment(segment, 100, count), step, t, event))
    return rows


def made_view(
    state: Keyframe, steps: Sequence[StepRow] = (), events: Sequence[EventRow] = (), is_live: bool = True,
    is_order_sure: bool = True,
) -> View:  # fmt: skip
    """A view of a state."""
    tick = Tick(state.step, state.t)
    moment = events[-1].moment if events else Moment(1, 100, 0)
    status = SourceStatus("live", 0.0)
    return View(moment, is_live, state, steps, events, is_order_sure, None, Tick(0, 0), tick, status)
