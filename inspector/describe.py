"""Events in words, one line each. Knows the vocabulary of the journal, and neither terminals nor files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..telemetry.block_table import slot_of
from ..telemetry.events import (
    AnyEvent,
    BlockCopied,
    BlocksAllocated,
    BlocksCached,
    BlocksDuplicate,
    BlocksFreed,
    BlocksSwapped,
    BreakpointHit,
    CallbackFailed,
    EngineContinued,
    EngineError,
    EnginePaused,
    EngineReady,
    EngineStarted,
    EngineStopped,
    JournalDropped,
    Keyframe,
    Mark,
    PrefixMatched,
    PriorityChanged,
    RequestArrived,
    RequestFinished,
    RequestRefused,
    SequencePreempted,
    SequenceResumed,
    StatusChanged,
    StepFinished,
    StepPlanned,
    StepRanks,
    StepRetried,
    StreamStalled,
    SwapFinished,
    TokensSampled,
    WaitReasonChanged,
)
from .route_words import route_words
from .units import printable

SHOWN_BLOCKS = 8
SHOWN_CHUNKS = 4


def describe(event: AnyEvent) -> str:
    """What happened, in one line without time and step, and without what a terminal would act on: ids are clients'."""
    return printable(_WORDS[event.__class__](event))


def sequences_of(event: AnyEvent) -> list[int]:
    """Sequences that an event names; a step's decodes are not named by it."""
    if isinstance(event, StepPlanned):
        return [chunk[0] for chunk in event.chunks] + event.idle
    if isinstance(event, StepFinished):
        return event.wasted
    if isinstance(event, RequestArrived | TokensSampled):
        return event.seqs
    named = [getattr(event, "seq", -1)]
    if isinstance(event, SequencePreempted):
        named.append(event.by)
    elif isinstance(event, BlockCopied):
        named.append(event.source_seq)
    elif isinstance(event, StatusChanged):
        named.append(event.cause)
    return [seq for seq in named if seq >= 0]


def plural(count: int, noun: str) -> str:
    """`1 block`, `2 blocks`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _numbers(numbers: list[int], noun: str) -> str:
    shown = " ".join(map(str, numbers[:SHOWN_BLOCKS]))
    more = f" and {len(numbers) - SHOWN_BLOCKS} more" if len(numbers) > SHOWN_BLOCKS else ""
    return f"{plural(len(numbers), noun)} ({shown}{more})"


def _blocks(blocks: list[int]) -> str:
    return _numbers(blocks, "block")


def _entries(table: list[int]) -> str:
    """The entries of a block table: blocks, and slots of the swap space."""
    blocks, slots = [entry for entry in table if entry >= 0], [slot_of(entry) for entry in table if entry < 0]
    if not slots:
        return _blocks(blocks)
    return f"{_blocks(blocks)} and {_numbers(slots, 'slot')}" if blocks else _numbers(slots, "slot")


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
    routed = f"; {route_words(e.route)}" if e.route else ""
    tokens = f"{plural(e.num_prompt_tokens, 'prompt token')}, max {e.max_tokens}"
    return f"request {e.request} arrived: {seqs}, {tokens}{routed}"


def _finished(e: RequestFinished) -> str:
    error = f": {e.error}" if e.error else ""
    return (
        f"request {e.request} finished ({e.finish_reason}): {plural(e.num_prompt_tokens, 'prompt token')} "
        f"({e.num_cached_tokens} cached), {plural(e.num_output_tokens, 'output token')}{error}"
    )


def _status(e: StatusChanged) -> str:
    kept = f", keeping {plural(e.kept, 'computed token')}" if e.kept else ""
    cause = f", drawn in by seq {e.cause}" if e.cause >= 0 else ""
    return f"seq {e.seq} {e.old + ' -> ' if e.old else ''}{e.new} ({e.reason}){kept}{cause}"


def _resumed(e: SequenceResumed) -> str:
    appended = f" with {plural(e.num_appended, 'token')} appended" if e.num_appended else ""
    return f"seq {e.seq} resumed{appended}, max {e.max_tokens}"


def _breakpoint(e: BreakpointHit) -> str:
    whom = f" of seq {e.seq}" if e.seq >= 0 else ""
    paused = "the engine pauses" if e.action == "engine" else "the sequence pauses"
    return f"breakpoint {e.breakpoint} ({e.predicate}) met by {e.event}{whom}: {paused}"


def _continued(e: EngineContinued) -> str:
    return "engine continues" + (f" for {plural(e.num_steps, 'step')}" if e.num_steps else "")


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


def _freed(e: BlocksFreed) -> str:
    lost = f", losing {plural(e.lost, 'computed token')}" if e.lost else ""
    return f"seq {e.seq} gives up {_entries(e.blocks)}{lost}; {e.free} free"


def _swapped(e: BlocksSwapped) -> str:
    move = f"move {e.move}" if e.move else "nothing to move"
    still = f", {len(e.cached)} of them still there" if e.cached else ""
    evicted = f", evicting {len(e.evicted)} cached" if e.evicted else ""
    places = f"{_entries(e.sources)} -> {_entries(e.targets)}{still}"
    return f"seq {e.seq} swaps {e.kind} {places}{evicted} ({move}); {e.free} free"


def _swap_finished(e: SwapFinished) -> str:
    if e.error:
        return f"seq {e.seq} move {e.move} failed: {e.error}"
    return f"seq {e.seq} move {e.move} done: {e.num_bytes / (1 << 20):.2f} MiB in {e.duration_ns / 1e6:.2f} ms"


def _copied(e: BlockCopied) -> str:
    tokens = plural(e.num_tokens, "token")
    return f"seq {e.seq} copies {tokens} of block {e.source} of seq {e.source_seq} into block {e.target}"


def _preempted(e: SequencePreempted) -> str:
    whom = "itself" if e.by == e.seq else f"seq {e.by}"
    lost = f"{plural(e.num_tokens, 'computed token')} lost" + (f", {e.kept} kept" if e.mode == "swap" else "")
    return f"seq {e.seq} preempted for {whom} ({e.cause}, {e.mode}): {plural(e.num_blocks, 'block')} and {lost}"


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


def _each_ms(values: list[int]) -> str:
    return ", ".join(f"{value / 1e6:.2f}" for value in values)


def _step_finished(e: StepFinished) -> str:
    host, device = (e.plan_ns + e.launch_ns + e.collect_ns - e.wait_ns) / 1e6, e.device_ns / 1e6
    wasted = f", {len(e.wasted)} wasted" if e.wasted else ""
    return (
        f"step done: {plural(e.num_tokens, 'token')} computed, {e.num_sampled} sampled{wasted}; "
        f"device {device:.2f} ms, host {host:.2f} ms"
    )


def _keyframe(e: Keyframe) -> str:
    num_paused = sum(1 for seq in e.sequences if seq.status == "PAUSED")
    paused = f", {num_paused} paused" if num_paused else ""
    engine = f"; engine paused ({e.engine_paused})" if e.engine_paused else ""
    return (
        f"keyframe: {len(e.running)} running, {len(e.waiting)} waiting{paused}, {len(e.free_blocks)} blocks free, "
        f"{len(e.cached_blocks)} cached{engine}"
    )


_WORDS: dict[type, Callable[[Any], str]] = {
    EngineStarted: _started,
    EngineReady: lambda e: "engine ready: " + ", ".join(_cost(name, value) for name, value in e.costs.items()),
    EngineStopped: lambda e: f"engine stopped ({e.reason})",
    EngineError: lambda e: f"engine error: {e.message}",
    EnginePaused: lambda e: f"engine paused ({e.cause})",
    EngineContinued: _continued,
    BreakpointHit: _breakpoint,
    RequestArrived: _arrived,
    RequestRefused: lambda e: f"request {e.request} refused: {e.reason}",
    RequestFinished: _finished,
    StatusChanged: _status,
    WaitReasonChanged: lambda e: f"seq {e.seq} waits: {e.reason}",
    SequenceResumed: _resumed,
    PriorityChanged: lambda e: f"seq {e.seq} has priority {e.priority}",
    PrefixMatched: _matched,
    BlocksAllocated: _allocated,
    BlocksCached: lambda e: f"seq {e.seq} enters {_blocks(e.blocks)} into the prefix cache",
    BlocksDuplicate: lambda e: f"seq {e.seq} has {_blocks(e.blocks)} with content that is cached elsewhere",
    BlocksFreed: _freed,
    BlocksSwapped: _swapped,
    SwapFinished: _swap_finished,
    BlockCopied: _copied,
    SequencePreempted: _preempted,
    StepPlanned: _planned,
    StepFinished: _step_finished,
    StepRanks: lambda e: (
        f"on each rank {_each_ms(e.device_ns)} ms, of it {_each_ms(e.collective_ns)} in collectives"
        + (f", late to them by {_each_ms(e.late_ns)}" if e.late_ns else "")
    ),
    StepRetried: lambda e: f"step does not fit ({e.error}): launched again in {plural(e.parts, 'part')}",
    TokensSampled: lambda e: f"sampled {', '.join(f'seq {s}: {t}' for s, t in zip(e.seqs, e.tokens, strict=True))}",
    CallbackFailed: lambda e: f"a callback of request {e.request} failed: {e.message}",
    JournalDropped: lambda e: f"journal lost {plural(e.events, 'event')} in {plural(e.frames, 'frame')}: {e.reason}",
    StreamStalled: lambda e: (
        f"stream of request {e.request} was held up by its reader for {e.stalled_ns / 1e9:.2f} s; "
        f"{plural(e.pieces, 'piece')} waited"
    ),
    Mark: lambda e: f"mark by {e.origin}: {e.text}",
    Keyframe: _keyframe,
}
