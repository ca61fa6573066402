"""What gauges and counters say, read from projections when someone asks. Keeps nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

from .events import EngineStarted, EngineStopped
from .metric_families import (
    COUNTERS,
    ENDS,
    LIVE_STATUSES,
    MAX_LABEL,
    NOT_CONSIDERED,
    OTHER,
    PREFIX,
    SPAN_OUTCOMES,
    WAIT_REASONS,
)
from .state import EngineState

Series = Mapping[tuple[str, ...], float]  # values of the labels -> value

# Counter -> the total that it shows, with the names of its labels to be filled in.
_TOTALS = {
    "requests_arrived": "requests_arrived",
    "requests": "requests_finished_{finish_reason}",
    "refused_requests": "requests_refused_{reason}",
    "preemptions": "preemptions_{reason}_{mode}",
    "recomputed_tokens": "recomputed_tokens",
    "refound_tokens": "refound_tokens",
    "dropped_tokens": "dropped_tokens",
    "prompt_tokens": "prompt_tokens",
    "cached_prompt_tokens": "cached_tokens",
    "generated_tokens": "generated_tokens",
    "wasted_tokens": "wasted_tokens",
    "computed_tokens": "computed_tokens",
    "prefix_cache_queried_tokens": "prefix_queried_tokens",
    "prefix_cache_hit_tokens": "prefix_hit_tokens",
    "prefix_cache_misses": "prefix_{reason}_tokens",
    "block_allocations": "blocks_allocated",
    "block_shares": "blocks_shared",
    "block_evictions": "blocks_evicted",
    "swap_failures": "swap_failures",
    "pauses": "pauses",
    "resumes": "resumes",
    "steps": "steps_{kind}",
    "step_retries": "steps_retried",
    "engine_errors": "engine_errors",
    "callback_failures": "callback_failures",
    "journal_dropped_events": "dropped_events",
}
_SWAPPED = {"out": "swapped_out_blocks", "in": "swapped_in_blocks", "down": "demoted_blocks"}


@dataclass
class ExporterCounts:
    """What the process around the projections counts: it writes here, and scrapes read it. None of it ever falls.

    Attributes:
        journal_bytes: bytes of the journal that it read.
        journal_gaps: times that it found segments deleted which it had not read.
        spans: number of spans by outcome, see SPAN_OUTCOMES; other keys are not shown.
    """

    journal_bytes: int = 0
    journal_gaps: int = 0
    spans: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPAN_OUTCOMES, 0))


def label_text(value: str) -> str:
    """A value from outside as a label: of bounded length, and in UTF-8 whatever it was."""
    return value[:MAX_LABEL].encode("utf-8", "replace").decode("utf-8")


def counters(totals: Mapping[str, int], exporter: ExporterCounts) -> Iterator[tuple[str, Series]]:
    """(family's name, its series) of every counter."""
    for family in COUNTERS:
        name = family.name.removeprefix(PREFIX).removesuffix("_total")
        series: dict[tuple[str, ...], float] = {}
        for values in product(*family.labels.values()):
            if name == "spans":
                series[values] = exporter.spans.get(values[0], 0)
            elif name == "journal_bytes":
                series[values] = exporter.journal_bytes
            elif name == "journal_gaps":
                series[values] = exporter.journal_gaps
            elif name == "swapped_blocks":
                series[values] = totals.get(_SWAPPED[values[0]], 0)
            else:
                key = _TOTALS[name].format_map(dict(zip(family.labels, values, strict=True)))
                series[values] = totals.get(key, 0)
        yield family.name, series


def info(started: EngineStarted | None) -> Series:
    """The run's id, model and version; nothing before it is known."""
    if started is None:
        return {}
    return {(label_text(started.run_id), label_text(started.model), label_text(started.version)): 1.0}


def ended(stopped: EngineStopped | None, gone: bool) -> Series:
    """How the engine ended: all 0 while it runs, and before it started."""
    how = "gone" if gone else "" if stopped is None else "failed" if stopped.reason == "error" else "stopped"
    return {(each,): float(each == how) for each in ENDS}


def sequence_gauges(state: EngineState, now: int) -> dict[str, Series]:
    """Gauges of the sequences and their queue.

    Args:
        state: the engine's state.
        now: clock nanoseconds.
    """
    waiting = [state.sequences[seq] for seq in state.waiting]
    num_paused = len(state.sequences) - len(waiting) - len(state.running)
    unexplained = "engine_paused" if state.engine_paused else NOT_CONSIDERED
    reasons = Counter(seq.wait_reason or unexplained for seq in waiting)
    shown = {reason: reasons.pop(reason, 0) for reason in WAIT_REASONS}
    shown[OTHER] += reasons.total()
    since = min((seq.status_t for seq in waiting), default=now)
    return {
        "sequences": dict(zip(_keys(LIVE_STATUSES), (len(waiting), len(state.running), num_paused), strict=True)),
        "waiting_sequences": {(reason,): count for reason, count in shown.items()},
        "preempted_waiting_sequences": {(): sum(seq.reason == "preempted" for seq in waiting)},
        "oldest_wait_seconds": {(): max(0, now - since) / 1e9},
    }


def block_gauges(state: EngineState) -> dict[str, Series]:
    """Gauges of the pool and the swap space."""
    pool, started = state.pool, state.started
    used = pool.referenced
    cached = sum(1 for block in pool.cached if not pool.refs[block])
    num_host, num_disk = _size(started, "host_blocks"), _size(started, "disk_blocks")
    host = sum(1 for slot in pool.slots if slot < num_host)
    disk = len(pool.slots) - host
    return {
        "kv_blocks": {("free",): len(pool.free) - cached, ("used",): used, ("cached",): cached},
        "kv_blocks_capacity": {(): pool.num_blocks},
        "kv_token_fill_ratio": {(): _fill(state)},
        "host_kv_blocks": {("free",): num_host - host, ("used",): host},
        "disk_kv_blocks": {("free",): num_disk - disk, ("used",): disk},
    }


def idle_gauges() -> dict[str, Series]:
    """The gauges of sequences and blocks where no engine is up: all 0, the capacity too."""
    nothing = EngineState()
    return sequence_gauges(nothing, 0) | block_gauges(nothing)


def _keys(values: tuple[str, ...]) -> list[tuple[str]]:
    return [(value,) for value in values]


def _size(started: EngineStarted | None, name: str) -> int:
    size = started.config.get(name) if started is not None else None
    return size if isinstance(size, int) else 0


def _fill(state: EngineState) -> float:
    """Computed tokens in used blocks, over the tokens that these blocks can hold; 0 where none is used.

    A shared block is full and counts once; what is empty lies at the ends of tables, in blocks that one sequence holds.
    """
    if state.started is None or not state.pool.referenced:
        return 0.0
    size, empty = state.started.block_size, 0
    for seq in (*state.sequences.values(), *state.ended.values()):
        table = seq.block_table
        computed = state.num_computed_tokens(seq)
        for index in range(computed // size, len(table)):
            if table[index] >= 0:
                empty += size - max(0, min(size, computed - index * size))
    slots = state.pool.referenced * size
    return max(0.0, (slots - empty) / slots)
