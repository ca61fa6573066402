"""Counters of a run, folded from its events. Knows nothing of where the events come from.

The recorder keeps one set off the hot path for its keyframes; the state projection keeps another from the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .events import (
    AnyEvent,
    BlockCopied,
    BlocksAllocated,
    BlocksCached,
    BlocksFreed,
    BlocksSwapped,
    BreakpointHit,
    CallbackFailed,
    EngineError,
    JournalDropped,
    PrefixMatched,
    RequestArrived,
    RequestFinished,
    RequestRefused,
    SequencePreempted,
    SequenceResumed,
    StatusChanged,
    StepFinished,
    StepPlanned,
    StepRetried,
    SwapFinished,
)

Counts = dict[str, int]

FINISH_REASONS = ("stop", "length", "abort", "error")
# What was wrong with a refused request; every other field is one of its sampling parameters.
REFUSALS = ("prompt", "prompt_too_long", "messages", "model", "request_id", "max_tokens", "params")
PREEMPTION_CAUSES = ("no_blocks", "priority", "swap_failed")
PREEMPTION_MODES = ("recompute", "swap")
STEP_KINDS = ("decode", "prefill", "mixed", "moves")
SWAP_DIRECTIONS = ("out", "in", "down")

TOTAL_NAMES: tuple[str, ...] = (
    "requests_arrived",
    "prompt_tokens",  # over all sequences of a request
    "requests_refused",
    *(f"requests_finished_{reason}" for reason in FINISH_REASONS),
    "cached_tokens",  # of the prompts of finished requests, at first admission
    "preemptions",
    "recomputed_tokens",  # computed tokens lost to preemption; refound_tokens of them came back from the cache
    "prefix_queried_tokens",  # first admissions only, as are the next four
    "prefix_hit_tokens",
    "prefix_never_seen_tokens",
    "prefix_evicted_tokens",
    "prefix_sub_block_tokens",
    "refound_tokens",  # cache hits of readmissions
    "blocks_allocated",
    "blocks_shared",
    "blocks_evicted",  # cached content lost, to an allocation or to blocks that come back from the swap space
    "blocks_cached",
    "blocks_freed",  # on the device: allocated + shared + swapped in - swapped out, once nothing lives
    "steps",
    "steps_finished",
    "computed_tokens",
    "generated_tokens",  # sampled and kept
    "wasted_tokens",
    "callback_failures",
    "engine_errors",
    "dropped_events",
    "dropped_frames",
    "pauses",
    "resumes",
    "appended_tokens",
    "swapped_out_blocks",
    "swapped_in_blocks",  # those that were still on the device included
    "demoted_blocks",  # from host memory to the swap file
    "swap_failures",
    "dropped_tokens",  # computed tokens lost while paused or waiting; preemptions lose recomputed_tokens
    "copied_blocks",
    "steps_retried",
    "breakpoint_hits",
    *(f"requests_refused_{reason}" for reason in REFUSALS),
    *(f"preemptions_{cause}_{mode}" for cause in PREEMPTION_CAUSES for mode in PREEMPTION_MODES),
    *(f"steps_{kind}" for kind in STEP_KINDS),
)


def refusal_of(e: RequestRefused) -> str:
    """What was wrong with a refused request: one of REFUSALS."""
    if e.reason == "PromptTooLong":
        return "prompt_too_long"
    if e.field == "prompts":
        return "prompt"
    return e.field if e.field in REFUSALS else "params"


def _add(c: Counts, name: str) -> None:
    """Count what TOTAL_NAMES may not name: a value that is newer than this reader."""
    c[name] = c.get(name, 0) + 1


def _arrived(c: Counts, e: RequestArrived) -> None:
    c["requests_arrived"] += 1
    c["prompt_tokens"] += e.num_prompt_tokens * len(e.seqs)


def _refused(c: Counts, e: RequestRefused) -> None:
    c["requests_refused"] += 1
    _add(c, "requests_refused_" + refusal_of(e))


def _finished(c: Counts, e: RequestFinished) -> None:
    _add(c, "requests_finished_" + e.finish_reason)
    c["cached_tokens"] += e.num_cached_tokens


def _preempted(c: Counts, e: SequencePreempted) -> None:
    c["preemptions"] += 1
    _add(c, f"preemptions_{e.cause}_{e.mode}")
    c["recomputed_tokens"] += e.num_tokens


def _matched(c: Counts, e: PrefixMatched) -> None:
    if e.recompute:
        c["refound_tokens"] += e.hit
        return
    c["prefix_queried_tokens"] += e.queried
    c["prefix_hit_tokens"] += e.hit
    c["prefix_never_seen_tokens"] += e.never_seen
    c["prefix_evicted_tokens"] += e.evicted
    c["prefix_sub_block_tokens"] += e.sub_block


def _allocated(c: Counts, e: BlocksAllocated) -> None:
    c["blocks_allocated"] += len(e.new)
    c["blocks_shared"] += len(e.cached)
    c["blocks_evicted"] += len(e.evicted)


def _cached(c: Counts, e: BlocksCached) -> None:
    c["blocks_cached"] += len(e.blocks)


def _freed(c: Counts, e: BlocksFreed) -> None:
    slots = sum(1 for entry in e.blocks if entry < 0) if e.blocks and min(e.blocks) < 0 else 0
    c["blocks_freed"] += len(e.blocks) - slots
    c["dropped_tokens"] += e.lost


def _status(c: Counts, e: StatusChanged) -> None:
    if e.new == "PAUSED":
        c["pauses"] += 1


def _resumed(c: Counts, e: SequenceResumed) -> None:
    c["resumes"] += 1
    c["appended_tokens"] += e.num_appended


_SWAPS = {"out": "swapped_out_blocks", "in": "swapped_in_blocks", "down": "demoted_blocks"}


def _swapped(c: Counts, e: BlocksSwapped) -> None:
    name = _SWAPS.get(e.kind)
    if name is not None:
        c[name] += len(e.sources)
    c["blocks_evicted"] += len(e.evicted)


def _swap_finished(c: Counts, e: SwapFinished) -> None:
    if e.error:
        c["swap_failures"] += 1


def _copied(c: Counts, e: BlockCopied) -> None:
    c["copied_blocks"] += 1


def _retried(c: Counts, e: StepRetried) -> None:
    c["steps_retried"] += 1


def _breakpoint(c: Counts, e: BreakpointHit) -> None:
    c["breakpoint_hits"] += 1


def _planned(c: Counts, e: StepPlanned) -> None:
    c["steps"] += 1
    _add(c, "steps_" + e.kind)


def _step_finished(c: Counts, e: StepFinished) -> None:
    wasted = len(e.wasted)
    c["steps_finished"] += 1
    c["computed_tokens"] += e.num_tokens
    c["generated_tokens"] += e.num_sampled - wasted
    c["wasted_tokens"] += wasted


def _callback(c: Counts, e: CallbackFailed) -> None:
    c["callback_failures"] += 1


def _engine_error(c: Counts, e: EngineError) -> None:
    c["engine_errors"] += 1


def _dropped(c: Counts, e: JournalDropped) -> None:
    c["dropped_events"] += e.events
    c["dropped_frames"] += e.frames


_APPLY: dict[type, Callable[[Counts, Any], None]] = {
    RequestArrived: _arrived,
    RequestRefused: _refused,
    RequestFinished: _finished,
    SequencePreempted: _preempted,
    PrefixMatched: _matched,
    BlocksAllocated: _allocated,
    BlocksCached: _cached,
    BlocksFreed: _freed,
    StepPlanned: _planned,
    StepFinished: _step_finished,
    CallbackFailed: _callback,
    EngineError: _engine_error,
    JournalDropped: _dropped,
    StatusChanged: _status,
    SequenceResumed: _resumed,
    BlocksSwapped: _swapped,
    SwapFinished: _swap_finished,
    BlockCopied: _copied,
    StepRetried: _retried,
    BreakpointHit: _breakpoint,
}


class Totals:
    """The counters named in TOTAL_NAMES, folded from events.

    Args:
        counts: values to start from (a keyframe's `totals`); names that are missing start at 0.
    """

    __slots__ = ("counts",)

    def __init__(self, counts: Counts | None = None) -> None:
        self.counts: Counts = dict.fromkeys(TOTAL_NAMES, 0) | (counts or {})

    def apply(self, event: AnyEvent) -> None:
        """Count one event; most types cost one dictionary look-up."""
        handler = _APPLY.get(event.__class__)
        if handler is not None:
            handler(self.counts, event)

    def apply_all(self, events: Iterable[AnyEvent]) -> None:
        """Count a batch of events."""
        counts, handlers = self.counts, _APPLY
        for event in events:
            handler = handlers.get(event.__class__)
            if handler is not None:
                handler(counts, event)

    def snapshot(self) -> Counts:
        """A copy, as a keyframe holds it."""
        return dict(self.counts)
