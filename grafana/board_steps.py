"""Steps and host time: how long a step takes, and how much of it the device waits for the host."""

from __future__ import annotations

from .dashboard import Dashboard, Row
from .panels import BAD, GOOD, WARN, Panel, Query
from .promql import ENGINE_NAME, buckets, mean, quantile, rate, ratio, series
from .trace_links import FAILED

STEP, HOST, BATCH = "nanolens_step_seconds", "nanolens_step_host_seconds", "nanolens_batch_tokens"
LAST = "nanolens_last_step_timestamp_seconds"
SKEW, COLLECTIVE = "nanolens_rank_skew_seconds", "nanolens_rank_collective_seconds"

STEPS = Row(
    "Steps",
    (
        Panel(
            "timeseries", "Steps, by kind",
            "Steps per second by what they compute.",
            "ops", (Query(rate("nanolens_steps_total", by=("kind",)), "{{kind}}", high=1e5),), stack=True,
        ),
        Panel(
            "timeseries", "Step time, by kind",
            "Mean time from the start of a step's planning to its tokens read. Decode steps set the pace of tokens; "
            "mixed ones are longer by their prefill.",
            "s", (Query(mean(STEP, by=("kind",)), "{{kind}}", high=60),),
        ),
        Panel(
            "timeseries", "Step time, tail",
            "95th percentile of a step's time by kind.",
            "s", (Query(quantile(0.95, STEP, by=("kind",)), "{{kind}} p95", high=60),),
        ),
        Panel(
            "heatmap", "Step time, all of it",
            "Steps per second by how long they took.",
            "s", (Query(buckets(STEP), "{{le}}", high=1e5),), width=12,
        ),
        Panel(
            "timeseries", "Since the last step",
            "Seconds since the newest step was read. It grows while an engine is idle or paused; with sequences "
            "waiting it must not.",
            "s", (Query(f"time() - max by (instance, replica) ({series(LAST)} > 0)", ENGINE_NAME, low=-1, high=600),),
            width=12,
        ),
    ),
)  # fmt: skip

HOST_TIME = Row(
    "Host time",
    (
        Panel(
            "timeseries", "Host time of a step",
            "What a step took of the host: planning, launching and reading, without waiting for the device.",
            "s",
            (
                Query(quantile(0.5, HOST), "p50", high=60),
                Query(quantile(0.95, HOST), "p95", high=60),
                Query(mean(HOST), "mean", high=60),
            ),
        ),
        Panel(
            "timeseries", "Host time's share",
            "Host time for each second of steps. On a GPU the host's work hides behind the device, so this is how "
            "much there is to hide; near 100% the host is what limits.",
            "percentunit", (Query(ratio(rate(HOST + "_sum"), rate(STEP + "_sum")), "host", high=1.5),),
            steps=((None, GOOD), (0.9, WARN)),
        ),
        Panel(
            "timeseries", "Time inside steps",
            "Seconds of steps for each second of time: above 100% they overlap, far below it engines are idle.",
            "percentunit", (Query(rate(STEP + "_sum"), "in steps", high=4),),
        ),
    ),
)  # fmt: skip

WORK = Row(
    "Work",
    (
        Panel(
            "timeseries", "Tokens computed and kept",
            "Tokens per second that steps compute, prefill and decode, and those that they generate.",
            "short",
            (
                Query(rate("nanolens_computed_tokens_total"), "computed", high=1e7),
                Query(rate("nanolens_generated_tokens_total"), "generated", high=1e7),
            ),
        ),
        Panel(
            "heatmap", "Tokens in a step",
            "Steps per second by how many tokens they computed.",
            "none", (Query(buckets(BATCH), "{{le}}", high=1e5),),
        ),
        Panel(
            "timeseries", "Mean tokens in a step",
            "How many tokens a step computes.",
            "none", (Query(mean(BATCH), "tokens", high=1e6),),
        ),
        Panel(
            "timeseries", "Faults",
            "Per second: faults of the engine itself, steps that did not fit into memory and were launched again in "
            "parts, and users' callbacks that raised.",
            "ops",
            (
                Query(rate("nanolens_engine_errors_total"), "engine errors", high=1e4),
                Query(rate("nanolens_step_retries_total"), "steps retried", high=1e4),
                Query(rate("nanolens_callback_failures_total"), "callbacks failed", high=1e4),
            ),
            traces=FAILED, steps=((None, GOOD), (1e-9, BAD)), width=24,
        ),
    ),
)  # fmt: skip

RANKS = Row(
    "Ranks, where several share a model",
    (
        Panel(
            "timeseries", "Skew between ranks",
            "How much longer the slowest rank of a step computed than the fastest one, its collectives aside: all "
            "ranks wait for it. No data from a model on one rank.",
            "s",
            (
                Query(quantile(0.5, SKEW), "p50", high=60),
                Query(quantile(0.95, SKEW), "p95", high=60),
                Query(mean(SKEW), "mean", high=60),
            ),
        ),
        Panel(
            "timeseries", "The slowest rank",
            "Steps per second in which a rank was the slowest. Ranks that take turns are well; one that always is the "
            "slowest has a slower GPU, or shares it.",
            "ops", (Query(rate(SKEW + "_count", by=("rank",)), "rank {{rank}}", high=1e5),), stack=True,
        ),
        Panel(
            "timeseries", "In collectives, by rank",
            "Mean time of a step that a rank spends in collectives: exchanging, and waiting for slower ranks. The one "
            "that spends least is the one that the others wait for.",
            "s", (Query(mean(COLLECTIVE, by=("rank",)), "rank {{rank}}", high=60),),
        ),
    ),
)  # fmt: skip

BOARD = Dashboard(
    "steps", "Steps and host time", "How long does a step take, and does the host keep up?",
    (STEPS, HOST_TIME, WORK, RANKS),
)  # fmt: skip
