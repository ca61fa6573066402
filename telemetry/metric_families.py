"""Every metric family: its name, type, help, unit, labels with the values that they can have, and buckets.

Declarations only: dashboards, alerts and docs/telemetry.md are made from this list, and metrics.py fills it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .totals import FINISH_REASONS, PREEMPTION_CAUSES, PREEMPTION_MODES, REFUSALS, STEP_KINDS, SWAP_DIRECTIONS

PREFIX = "nanolens_"

# Seconds. The first is below the time of one step of a small model on a GPU.
LATENCY_BUCKETS = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0,
)  # fmt: skip
PREEMPTION_BUCKETS = (0.0, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0)
BATCH_BUCKETS = tuple(float(1 << power) for power in range(15))  # 1 to 16,384 tokens
# Buckets that OpenTelemetry's semantic conventions for generative AI give for these three metrics, in seconds.
GEN_AI_DURATION_BUCKETS = tuple(round(0.01 * (1 << power), 2) for power in range(14))
GEN_AI_FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
GEN_AI_PER_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)

RANK_BUCKETS = (0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)

OTHER = "other"  # what a label says for a value that is not in its list
LIVE_STATUSES = ("WAITING", "RUNNING", "PAUSED")
NOT_CONSIDERED = "not_considered"  # it came after the last plan was made
WAIT_REASONS = (
    "no_blocks", "sequence_cap", "token_budget", "head_of_line", "engine_paused", "sibling_prefill", "swap_in",
    NOT_CONSIDERED, OTHER,
)  # fmt: skip
MISS_REASONS = ("never_seen", "evicted", "sub_block")
ENDS = ("stopped", "failed", "gone")
SPAN_OUTCOMES = ("recorded", "exported", "not_kept", "dropped")
ANY = ()  # a label whose values are those of the run: one, or for `rank` one a rank; none where there is one rank
MAX_LABEL = 200  # characters of a label's value that comes from outside

Labels = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Family:
    """One metric family.

    Attributes:
        name: as it is queried, without `_bucket`, `_sum` and `_count`.
        kind: gauge, counter, histogram or info.
        help: what it tells, in a sentence or two.
        labels: label -> the values that it can have; ANY: those of the run.
        unit: the unit at the end of the name; "" where there is none.
        buckets: upper bounds of a histogram, without +Inf.
        has_exemplars: whether OpenMetrics scrapes carry trace ids.
    """

    name: str
    kind: str
    help: str
    labels: Labels = field(default_factory=dict)
    unit: str = ""
    buckets: tuple[float, ...] = ()
    has_exemplars: bool = False


def _gauge(name: str, help: str, unit: str = "", **labels: tuple[str, ...]) -> Family:
    return Family(PREFIX + name, "gauge", help, labels, unit)


def _counter(name: str, help: str, **labels: tuple[str, ...]) -> Family:
    return Family(PREFIX + name + "_total", "counter", help, labels)


def _latency(name: str, help: str, has_exemplars: bool = True, **labels: tuple[str, ...]) -> Family:
    return Family(PREFIX + name, "histogram", help, labels, "seconds", LATENCY_BUCKETS, has_exemplars)


def _gen_ai(name: str, help: str, buckets: tuple[float, ...]) -> Family:
    return Family("gen_ai_server_" + name, "histogram", help, {"model": ANY}, "seconds", buckets, True)


GAUGES = (
    Family(PREFIX + "engine_info", "info", "The run that is looked at.", {"run_id": ANY, "model": ANY, "version": ANY}),
    _gauge("engine_up", "1 while the engine runs; 0 before it started, once it stopped and when its process is gone."),
    _gauge(
        "engine_ended",
        "1 for how the engine ended. stopped: in order; failed: after a fault of its own; gone: its process died.",
        reason=ENDS,
    ),
    _gauge("engine_paused", "1 while the engine plans nothing because an operator or a breakpoint paused it."),
    _gauge("last_step_timestamp_seconds", "Unix time at which the tokens of the newest step were read.", "seconds"),
    _gauge("journal_lag_seconds", "How far reading is behind the journal; 0 at its end.", "seconds"),
    _gauge("sequences", "Live sequences.", status=LIVE_STATUSES),
    _gauge(
        "waiting_sequences",
        "WAITING sequences by why they wait; not_considered: they came after the last plan was made.",
        reason=WAIT_REASONS,
    ),
    _gauge("preempted_waiting_sequences", "WAITING sequences that were preempted and not readmitted yet."),
    _gauge("oldest_wait_seconds", "The longest time that a sequence which is WAITING now has been so.", "seconds"),
    _gauge(
        "kv_blocks",
        "KV blocks on the device. used: in a block table; cached: in none, but holding cached content that can be hit "
        "or evicted; free: holding nothing. An allocation can take what is free or cached.",
        state=("free", "used", "cached"),
    ),
    _gauge("kv_blocks_capacity", "KV blocks of the pool; 0 while no engine is up."),
    _gauge("kv_token_fill_ratio", "Share of the token slots in used blocks that hold a computed token.", "ratio"),
    _gauge("host_kv_blocks", "Slots of the swap space in host memory.", state=("free", "used")),
    _gauge("disk_kv_blocks", "Slots of the swap space in the swap file.", state=("free", "used")),
)

COUNTERS = (
    _counter("requests_arrived", "Requests accepted."),
    _counter("requests", "Requests that ended.", finish_reason=FINISH_REASONS),
    _counter("refused_requests", "Requests turned away, by what was wrong with them.", reason=REFUSALS),
    _counter(
        "preemptions", "Sequences that lost their place to another.", reason=PREEMPTION_CAUSES, mode=PREEMPTION_MODES
    ),
    _counter("recomputed_tokens", "Computed tokens lost to preemptions: computed again, or found in the cache again."),
    _counter("refound_tokens", "Tokens that a readmitted sequence found in the cache: never counted as prefix hits."),
    _counter("dropped_tokens", "Computed tokens lost while their sequence was paused or waiting."),
    _counter("prompt_tokens", "Prompt tokens of accepted requests, over all their sequences."),
    _counter("cached_prompt_tokens", "Prompt tokens of ended requests that their first admission found in the cache."),
    _counter("generated_tokens", "Tokens sampled, read and kept."),
    _counter("wasted_tokens", "Tokens sampled and thrown away, because their sequence had ended or left meanwhile."),
    _counter("computed_tokens", "Tokens computed by steps, prefill and decode."),
    _counter("prefix_cache_queried_tokens", "Prompt tokens looked up at first admissions."),
    _counter("prefix_cache_hit_tokens", "Of those looked up, tokens found."),
    _counter(
        "prefix_cache_misses",
        "Of those looked up, tokens not found. sub_block: they fill no whole block, or are the last one, which is "
        "always computed.",
        reason=MISS_REASONS,
    ),
    _counter("block_allocations", "Blocks taken for new content."),
    _counter("block_shares", "Blocks found in the cache and shared by reference."),
    _counter("block_evictions", "Blocks whose cached content was lost to an allocation."),
    _counter("swapped_blocks", "Blocks moved: out of the device, in to it, down to disk.", direction=SWAP_DIRECTIONS),
    _counter("swap_failures", "Moves of blocks that failed; the KV is computed again."),
    _counter("pauses", "Times that a sequence entered PAUSED."),
    _counter("resumes", "Times that a paused sequence was told to go on."),
    _counter("steps", "Steps planned, by what they compute; moves: none, they move blocks alone.", kind=STEP_KINDS),
    _counter("step_retries", "Steps that did not fit into memory and were launched again in parts."),
    _counter("engine_errors", "Faults of the engine itself, not of one request."),
    _counter("callback_failures", "Callbacks of users that raised."),
    _counter(
        "spans",
        "Spans. recorded: built from the journal; exported: the endpoint or the file took them; not_kept: of requests "
        "that the tail rules let go; dropped: lost. What is in none of the last three is still on its way.",
        outcome=SPAN_OUTCOMES,
    ),
    _counter("journal_bytes", "Bytes of the journal that were read here."),
    _counter("journal_gaps", "Times that segments of the journal were deleted before they were read here."),
    _counter("journal_dropped_events", "Events that the journal lost: the disk refused them, or they had no encoding."),
)

HISTOGRAMS = (
    _latency("time_to_first_token_seconds", "From a request's arrival to its first token, whichever sequence has it."),
    _latency(
        "inter_token_seconds", "Time between two tokens of a sequence, preemptions included; none across a pause."
    ),
    _latency("request_seconds", "From a request's arrival to the end of its last sequence: the sum of the next five."),
    _latency("queue_seconds", "Of a request: WAITING, for the first admission or after a pause."),
    _latency("prefill_seconds", "Of a request: RUNNING, from an admission to the next token; recomputation included."),
    _latency("decode_seconds", "Of a request: RUNNING, after that."),
    _latency("preempted_seconds", "Of a request: WAITING after a preemption."),
    _latency("paused_seconds", "Of a request: PAUSED."),
    Family(
        PREFIX + "request_preemptions", "histogram", "How often a request's sequences were preempted.",
        buckets=PREEMPTION_BUCKETS,
    ),
    _latency("step_seconds", "From the start of a step's planning to its tokens read.", False, kind=STEP_KINDS),
    _latency("step_host_seconds", "What a step took of the host: planning, launching and reading, not waiting.", False),
    Family(
        PREFIX + "rank_skew_seconds", "histogram",
        "By the slowest rank: how much longer it computed in a step than the fastest one, its collectives aside, or, "
        "on CPUs, how much later it came to them. Several ranks only.",
        {"rank": ANY}, "seconds", RANK_BUCKETS,
    ),
    Family(
        PREFIX + "rank_collective_seconds", "histogram",
        "What a rank spent of a step in collectives: waiting for other ranks, and exchanging. Several ranks only.",
        {"rank": ANY}, "seconds", RANK_BUCKETS,
    ),
    Family(PREFIX + "batch_tokens", "histogram", "Tokens that a step computed.", buckets=BATCH_BUCKETS),
    _latency("block_lifetime_seconds", "From a block being taken to its last reference given up.", False),
    _latency("block_idle_before_eviction_seconds", "From a cached block's release to its content being lost.", False),
    _latency("block_reuse_gap_seconds", "Between two sequences taking the same cached block.", False),
    _gen_ai("request_duration_seconds", "As request_seconds, by OpenTelemetry's name.", GEN_AI_DURATION_BUCKETS),
    _gen_ai(
        "time_to_first_token_seconds", "Of requests that ended with stop or length, by OpenTelemetry's name.",
        GEN_AI_FIRST_TOKEN_BUCKETS,
    ),
    _gen_ai(
        "time_per_output_token_seconds",
        "Of requests that ended with stop or length: the mean time between tokens after the first, of the sequence "
        "that ended last, without its pauses.",
        GEN_AI_PER_TOKEN_BUCKETS,
    ),
)  # fmt: skip

FAMILIES: tuple[Family, ...] = GAUGES + COUNTERS + HISTOGRAMS
BY_NAME: Mapping[str, Family] = {family.name: family for family in FAMILIES}
