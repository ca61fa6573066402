"""Events in words, one line each. Knows the vocabulary of the journal, and neither terminals nor files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..telemetry.events import (
    AnyEvent,
    BlocksAllocated,
    BlocksCached,
    BlocksFreed,
    CallbackFailed,
    EngineError,
    EngineReady,
    EngineStarted,
    EngineStopped,
    JournalDropped,
    Keyframe,
    Mark,
    PrefixMatched,
    RequestArrived,
    RequestFinished,
    RequestRefused,
    SequencePreempted,
    StatusChanged,
    StepFinished,
    StepPlanned,
    TokensSampled,
    WaitReasonChanged,
)

SHOWN_BLOCKS = 8
SHOWN_CHUNKS = 4


def describe(event: AnyEvent) -> str:
    """What happened, in one line without time and step."""
    return _WORDS[event.__class__](event)


def sequences_of(event: AnyEvent) -> list[int]:
    """Sequences that an event names; a step's decodes are not named by it."""
    if isinstance(event, StepPlanned):
        return [chunk[0] for chunk in event.chunks] + event.idle
    if isinstance(event, StepFinished):
        return event.wasted
    if isinstance(event, RequestArrived | TokensSampled):
        return event.seqs
    seq = getattr(event, "seq", None)
    others = [event.by] if isinstance(event, SequencePreempted) else []
    return ([seq] if seq is not None else []) + others


def plural(count: int, noun: str) -> str:
    """`1 block`, `2 blocks`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _blocks(blocks: list[int]) -> str:
    shown = " ".join(map(str, blocks[:SHOWN_BLOCKS]))
    more = f" and {len(blocks) - SHOWN_BLOCKS} more" if len(blocks) > SHOWN_BLOCKS else ""
    return f"{plural(len(blocks), 'block')} ({shown}{more})"


def _started(e: EngineStarted) -> str:
    return (
        f"engine started: run {e.run_id}, model {e.model}, {plural(e.num_blocks, 'block')} of {e.block_size} tokens, "
        f"max_model_len {e.max_model_len}, nanolens {e.version}, pid {e.pid}"
    )


def _cost(name: str, value: int) -> str:
    """`capture_ns` in seconds, `pool_bytes` in MiB, counts as they are."""
    what, _, unit = name.rpartition("_")
    if unit == "ns":
        return f"{what.replace('_', ' ')} {value / 1e9:.2f} s"
    return f"{what.replace('_', ' ')} {value >> 20} MiB" if unit == "bytes" else f"{name.replace('_', ' ')} {value}"


def _arrived(e: RequestArrived) -> str:
    seqs = f"seq {e.seqs[0]}" if len(e.seqs) == 1 else f"seqs {', '.join(map(str, e.seqs))}"
    return f"request {e.request} arrived: {seqs}, {plural(e.num_prompt_tokens, 'prompt token')}, max {e.max_tokens}"


def _finished(e: RequestFinished) -> str:
    error = f": {e.error}" if e.error else ""
    return (
        f"request {e.request} finished ({e.finish_reason}): {plural(e.num_prompt_tokens, 'prompt token')} "
        f"({e.num_cached_tokens} cached), {plural(e.num_output_tokens, 'output token')}{error}"
    )


def _status(e: StatusChanged) -> str:
    return f"seq {e.seq} {e.old} -> {e.new} ({e.reason})" if e.old else f"seq {e.seq} {e.new} ({e.reason})"


def _matched(e: PrefixMatched) -> str:
    what = "own work found again" if e.recompute else "prefix hit"
    missed = ((e.never_seen, "never seen"), (e.evicted, "evicted"), (e.sub_block, "sub-block"))
    misses = ", ".join(f"{count} {name}" for count, name in missed if count)
    return f"seq {e.seq} {what}: {e.hit} of {plural(e.queried, 'token')}" + (f"; missed {misses}" if misses else "")


def _allocated(e: BlocksAllocated) -> str:
    parts = []
    if e.cached:
        parts.append(f"shares {_blocks(e.cached)}")
    if e.new:
        parts.append(f"takes {_blocks(e.new)}")
    evicted = f", evicting {len(e.evicted)} cached" if e.evicted else ""
    return f"seq {e.seq} {' and '.join(parts) or 'takes no blocks'}{evicted}; {e.free} free"


def _preempted(e: SequencePreempted) -> str:
    whom = "itself" if e.by == e.seq else f"seq {e.by}"
    lost = f"{plural(e.num_blocks, 'block')} and {plural(e.num_tokens, 'computed token')} lost"
    return f"seq {e.seq} preempted for {whom} ({e.cause}, {e.mode}): {lost}"


def _planned(e: StepPlanned) -> str:
    chunks = [f"seq {seq} {start}+{count}" for seq, start, count in e.chunks[:SHOWN_CHUNKS]]
    if len(e.chunks) > SHOWN_CHUNKS:
        chunks.append(f"{len(e.chunks) - SHOWN_CHUNKS} more")
    prefill = f", prefill {', '.join(chunks)}" if chunks else ""
    idle = f", {len(e.idle)} idle" if e.idle else ""
    return (
        f"{e.kind} step: {plural(e.decodes, 'decode')}{prefill}{idle}; "
        f"{e.running} running, {e.waiting} waiting, {e.free} blocks free"
    )


def _step_finished(e: StepFinished) -> str:
    host, device = (e.plan_ns + e.launch_ns + e.collect_ns - e.wait_ns) / 1e6, e.device_ns / 1e6
    wasted = f", {len(e.wasted)} wasted" if e.wasted else ""
    return (
        f"step done: {plural(e.num_tokens, 'token')} computed, {e.num_sampled} sampled{wasted}; "
        f"device {device:.2f} ms, host {host:.2f} ms"
    )


def _keyframe(e: Keyframe) -> str:
    return (
        f"keyframe: {len(e.running)} running, {len(e.waiting)} waiting, {len(e.free_blocks)} blocks free, "
        f"{len(e.cached_blocks)} cached"
    )


_WORDS: dict[type, Callable[[Any], str]] = {
    EngineStarted: _started,
    EngineReady: lambda e: "engine ready: " + ", ".join(_cost(name, value) for name, value in e.costs.items()),
    EngineStopped: lambda e: f"engine stopped ({e.reason})",
    EngineError: lambda e: f"engine error: {e.message}",
    RequestArrived: _arrived,
    RequestRefused: lambda e: f"request {e.request} refused: {e.reason}",
    RequestFinished: _finished,
    StatusChanged: _status,
    WaitReasonChanged: lambda e: f"seq {e.seq} waits: {e.reason}",
    PrefixMatched: _matched,
    BlocksAllocated: _allocated,
    BlocksCached: lambda e: f"seq {e.seq} enters {_blocks(e.blocks)} into the prefix cache",
    BlocksFreed: lambda e: f"seq {e.seq} gives up {_blocks(e.blocks)}; {e.free} free",
    SequencePreempted: _preempted,
    StepPlanned: _planned,
    StepFinished: _step_finished,
    TokensSampled: lambda e: f"sampled {', '.join(f'seq {s}: {t}' for s, t in zip(e.seqs, e.tokens, strict=True))}",
    CallbackFailed: lambda e: f"a callback of request {e.request} failed: {e.message}",
    JournalDropped: lambda e: f"journal lost {plural(e.events, 'event')} in {plural(e.frames, 'frame')}: {e.reason}",
    Mark: lambda e: f"mark by {e.origin}: {e.text}",
    Keyframe: _keyframe,
}
