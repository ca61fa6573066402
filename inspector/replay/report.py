"""A replay's outcome in words: that all was the same, or a report of the first decision that was not."""

from __future__ import annotations

import textwrap
from typing import Any

from ... import __version__
from ...telemetry.event_json import event_as_dict
from ...telemetry.events import AnyEvent, Keyframe, SequenceSnapshot
from ..describe import describe, plural
from .recording import Recording
from .replay import Result
from .script import Divergence

SHOWN_BEFORE = 8  # events before the divergence
SHOWN_SEQUENCES = 12
SETTINGS = (
    "policy", "batching", "preemption_mode", "max_num_seqs", "max_num_batched_tokens", "max_prefill_chunk",
    "host_blocks", "disk_blocks", "prefix_cache",
)  # fmt: skip


def report(recording: Recording, result: Result, width: int) -> list[str]:
    """Lines for a terminal of this width."""
    if result.divergence is None:
        return _wrapped(_same(recording, result), width)
    return _wrapped(_diverged(recording, result.divergence), width)


def as_json(recording: Recording, result: Result) -> dict[str, Any]:
    """The same for programs."""
    found, told = result.divergence, None
    if found is not None:
        told = {
            "index": found.index, "step": found.step, "expected": _as_dict(found.expected),
            "got": _as_dict(found.got), "differences": found.details,
            "state": None if found.state is None else _as_dict(found.state),
        }  # fmt: skip
    return {
        "run": recording.run, "recorded_by": recording.started.version, "replayed_by": __version__,
        "decisions": len(recording.events), "same": result.decisions, "steps": result.steps,
        "recording_ends": recording.ended, "divergence": told,
    }  # fmt: skip


def _same(recording: Recording, result: Result) -> list[str]:
    all_of_it = f"all {result.decisions:,} decisions" if result.decisions != 1 else "its one decision"
    counted = f"{all_of_it} came out the same"
    line = f"run {recording.run}: {counted}: {plural(result.steps, 'step')}, " + plural(
        len(recording.arrivals), "request"
    )
    return [line + _notes(recording)]


def _notes(recording: Recording) -> str:
    notes = [f"; replayed up to where {recording.ended}"] if recording.ended else []
    if recording.started.version != __version__:
        notes.append(f"; recorded by nanolens {recording.started.version}, replayed by {__version__}")
    return "".join(notes)


def _diverged(recording: Recording, found: Divergence) -> list[str]:
    events, index = recording.events, found.index
    lines = [
        f"run {recording.run}: decision {index + 1:,} of {len(events):,} came out otherwise, in step {found.step}"
        + _notes(recording),
        f"  recorded: {_words(found.expected, 'nothing more')}",
        f"  now:      {_words(found.got, 'nothing')}",
        *(f"  differs:  {each}" for each in found.details),
        "",
        "before it, as recorded and as now:",
    ]
    start = recording.started.t
    for event in events[max(0, index - SHOWN_BEFORE) : index]:
        t, step = getattr(event, "t", start), getattr(event, "step", None)
        lines.append(f"  {(t - start) / 1e9:+.6f}s {'' if step is None else f'step {step} '} {describe(event)}")
    if found.state is not None:
        lines += ["", *_state(found.state)]
    config = recording.started.config
    settings = ", ".join(f"{name}={config[name]}" for name in SETTINGS if name in config)
    overlap = "overlapped steps" if recording.overlap else "one step at a time"
    lines += ["", f"settings: {settings}, num_blocks={recording.started.num_blocks}, "
              f"block_size={recording.started.block_size}; {overlap}"]  # fmt: skip
    return lines


def _state(state: Keyframe) -> list[str]:
    by_id = {seq.seq: seq for seq in state.sequences}
    paused = [seq for seq in state.sequences if seq.status == "PAUSED"]
    queues = {
        "running": [by_id[seq] for seq in state.running if seq in by_id],
        "waiting": [by_id[seq] for seq in state.waiting if seq in by_id],
        "paused": paused,
    }
    engine = f"; the engine is paused ({state.engine_paused})" if state.engine_paused else ""
    lines = [f"queues now: {plural(len(state.free_blocks), 'block')} free, next {state.free_blocks[:8]}{engine}"]
    for name, sequences in queues.items():
        lines.append(f"  {name}: {plural(len(sequences), 'sequence')}")
        lines += [f"    {_sequence(seq)}" for seq in sequences[:SHOWN_SEQUENCES]]
        if len(sequences) > SHOWN_SEQUENCES:
            lines.append(f"    and {len(sequences) - SHOWN_SEQUENCES} more")
    return lines


def _sequence(seq: SequenceSnapshot) -> str:
    total = seq.num_prompt_tokens + seq.num_output_tokens + seq.num_appended_tokens
    waits = f", waits: {seq.wait_reason}" if seq.wait_reason else ""
    blocks = f"blocks {' '.join(map(str, seq.block_table))}" if seq.block_table else "no blocks"
    return (
        f"seq {seq.seq} of {seq.request}: {seq.phase} ({seq.reason}{waits}), {seq.num_computed_tokens} of {total} "
        f"tokens computed, priority {seq.priority}, {blocks}"
    )


def _words(event: AnyEvent | None, none: str) -> str:
    return none if event is None else describe(event)


def _as_dict(event: AnyEvent | None) -> dict[str, Any] | None:
    return None if event is None else event_as_dict(event)


def _wrapped(lines: list[str], width: int) -> list[str]:
    found: list[str] = []
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        found += textwrap.wrap(line, max(width, 40), subsequent_indent=indent) or [""]
    return found
