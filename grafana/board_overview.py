"""The overview: rate, errors and duration of requests, and whether they keep to the objectives."""

from __future__ import annotations

from .dashboard import ENGINE_INFO, Dashboard, Row
from .panels import BAD, GOOD, WARN, Panel, Query
from .promql import ENGINE, RANGE, gauge, quantile, rate, ratio, series, share_within, total
from .trace_links import FAILED, LATE_FIRST, LATE_NEXT, QUEUED, REUSING

ERRORS = 'finish_reason="error"'
TTFT = "nanolens_time_to_first_token_seconds"
ITL = "nanolens_inter_token_seconds"
REQUEST = "nanolens_request_seconds"
SHARE_STEPS = ((None, BAD), (0.95, WARN), (0.99, GOOD))
LATENCIES = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))


def quantiles(histogram: str, high: float = 60.0, exemplars: bool = True) -> tuple[Query, ...]:
    """Median and tail of a latency histogram; its exemplars once, where it has some."""
    return tuple(
        Query(quantile(q, histogram), name, high=high, exemplars=exemplars and q == 0.95) for q, name in LATENCIES
    )


NOW = Row(
    "Now",
    (
        Panel(
            "stat", "Engines up",
            "Engines whose journal shows a run that has not ended. Compare with how many you run.",
            "none", (Query(gauge("nanolens_engine_up"), "up", low=1, high=1),),
            steps=((None, BAD), (1, GOOD)), width=4,
        ),
        Panel(
            "stat", "Running",
            "Sequences in RUNNING: each has a place in the batch.",
            "none", (Query(gauge("nanolens_sequences", 'status="RUNNING"'), "running", high=1e4),), width=4,
        ),
        Panel(
            "stat", "Waiting",
            "Sequences in WAITING: queued for the first time, preempted, or resumed and without a slot.",
            "none", (Query(gauge("nanolens_sequences", 'status="WAITING"'), "waiting", high=1e4),),
            steps=((None, GOOD), (32, WARN), (256, BAD)), width=4,
        ),
        Panel(
            "stat", "Oldest wait",
            "How long the sequence that has waited the longest has been waiting.",
            "s", (Query(f"max({series('nanolens_oldest_wait_seconds')})", "oldest", high=60),),
            traces=QUEUED, steps=((None, GOOD), (5, WARN), (30, BAD)), width=4,
        ),
        Panel(
            "stat", "KV in use",
            "Share of the device's KV blocks that sequences hold. Near 100% sequences wait or are preempted; cached "
            "blocks that nobody holds count as free.",
            "percentunit",
            (
                Query(
                    ratio(gauge("nanolens_kv_blocks", 'state="used"'), gauge("nanolens_kv_blocks_capacity")),
                    "used", high=1,
                ),
            ),
            steps=((None, GOOD), (0.85, WARN), (0.95, BAD)), highest=1, width=4,
        ),
        Panel(
            "stat", "Requests ended",
            "Requests that ended per second, in whatever way.",
            "reqps", (Query(rate("nanolens_requests_total"), "ended", high=1e4),), width=4,
        ),
    ),
)  # fmt: skip

OBJECTIVES = Row(
    "Objectives, over the time shown",
    (
        Panel(
            "stat", "First token in time",
            "Share of requests whose first token came within the chosen TTFT objective, counted from arrival. Empty "
            "if the exporter's buckets have no such bound.",
            "percentunit", (Query(share_within(TTFT, "$ttft_slo", over=RANGE), "in time", high=1),),
            traces=LATE_FIRST, steps=SHARE_STEPS, highest=1, width=6,
        ),
        Panel(
            "stat", "Tokens in time",
            "Share of the gaps between two tokens of a sequence within the chosen ITL objective. Empty if the "
            "exporter's buckets have no such bound.",
            "percentunit", (Query(share_within(ITL, "$itl_slo", over=RANGE), "in time", high=1),),
            traces=LATE_NEXT, steps=SHARE_STEPS, highest=1, width=6,
        ),
        Panel(
            "stat", "Requests without an error",
            "Share of ended requests that did not end in an error. Aborts are the caller's and don't count as errors.",
            "percentunit",
            (
                Query(
                    "1 - " + ratio(rate("nanolens_requests_total", ERRORS, over=RANGE),
                                   rate("nanolens_requests_total", over=RANGE)),
                    "without an error", high=1,
                ),
            ),
            traces=FAILED, steps=SHARE_STEPS, highest=1, width=6,
        ),
        Panel(
            "stat", "Cached prompt tokens",
            "Share of prompt tokens that the prefix cache saved, at first admissions.",
            "percentunit",
            (
                Query(
                    ratio(rate("nanolens_prefix_cache_hit_tokens_total", over=RANGE),
                          rate("nanolens_prefix_cache_queried_tokens_total", over=RANGE)),
                    "cached", high=1,
                ),
            ),
            traces=REUSING, highest=1, width=6,
        ),
    ),
)  # fmt: skip

RED = Row(
    "Rate, errors, duration",
    (
        Panel(
            "timeseries", "Requests",
            "Requests per second that arrived, and that ended by finish reason: stop and length are answers, abort is "
            "the caller's, error is ours.",
            "reqps",
            (
                Query(rate("nanolens_requests_arrived_total"), "arrived", high=1e4),
                Query(rate("nanolens_requests_total", by=("finish_reason",)), "{{finish_reason}}", high=1e4),
            ),
        ),
        Panel(
            "timeseries", "Requests refused",
            "Requests per second that were turned away before any state changed, by the kind of refusal. A client "
            "that is wrong shows here.",
            "reqps", (Query(rate("nanolens_refused_requests_total", by=("reason",)), "{{reason}}", high=1e4),),
            traces=FAILED, stack=True,
        ),
        Panel(
            "timeseries", "Error ratio",
            "Share of ended requests that ended in an error.",
            "percentunit",
            (
                Query(
                    ratio(rate("nanolens_requests_total", ERRORS), rate("nanolens_requests_total")), "errors", high=1
                ),
            ),
            traces=FAILED, steps=((None, GOOD), (0.01, BAD)),
        ),
        Panel(
            "timeseries", "Time to first token",
            "From a request's arrival to its first token, counted once, also when it was preempted in between. "
            "Diamonds are exemplars: each leads to its trace.",
            "s", quantiles(TTFT), traces=LATE_FIRST,
        ),
        Panel(
            "timeseries", "Time between tokens",
            "Gaps between two tokens of a sequence. A preemption shows as one long gap; a pause does not count.",
            "s", quantiles(ITL), traces=LATE_NEXT,
        ),
        Panel(
            "timeseries", "Request duration",
            "From arrival to the end of a request.",
            "s", quantiles(REQUEST),
        ),
        Panel(
            "timeseries", "Tokens",
            "Tokens per second: prompts that arrived, the part of them found in the prefix cache, and generated ones.",
            "short",
            (
                Query(rate("nanolens_prompt_tokens_total"), "prompt", high=1e7),
                Query(rate("nanolens_cached_prompt_tokens_total"), "cached prompt", high=1e7),
                Query(rate("nanolens_generated_tokens_total"), "generated", high=1e7),
            ),
        ),
        Panel(
            "timeseries", "Requests and tokens by the OpenTelemetry names",
            "The 95th percentile of the durations that the GenAI conventions define, for boards that compare engines.",
            "s",
            (
                Query(quantile(0.95, "gen_ai_server_request_duration_seconds"), "request", high=120, exemplars=True),
                Query(quantile(0.95, "gen_ai_server_time_to_first_token_seconds"), "first token", high=60),
                Query(quantile(0.95, "gen_ai_server_time_per_output_token_seconds"), "per output token", high=60),
            ),
        ),
        Panel(
            "table", "Engines",
            "The runs that are exported now: model, version and run id of each.",
            "none", (Query(total(series(ENGINE_INFO), *ENGINE, "model", "version", "run_id"), "", low=1, high=1),),
            columns=(*ENGINE, "model", "version", "run_id"),
        ),
    ),
)  # fmt: skip

BOARD = Dashboard(
    "overview", "Overview", "Are requests answered, fast enough, and without errors?", (NOW, OBJECTIVES, RED)
)
