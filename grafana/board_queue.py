"""Queue and scheduling: who waits, why, how long, and what a step computes."""

from __future__ import annotations

from .board_overview import quantiles
from .dashboard import Dashboard, Row
from .panels import BAD, GOOD, WARN, Panel, Query
from .promql import ENGINE_NAME, buckets, gauge, mean, most, quantile, rate
from .trace_links import PAUSED, PREEMPTED, QUEUED

QUEUE = "nanolens_queue_seconds"

SEQUENCES = Row(
    "Sequences",
    (
        Panel(
            "timeseries", "Sequences by status",
            "Live sequences by status. PAUSED ones keep their KV and have no slot.",
            "none", (Query(gauge("nanolens_sequences", by=("status",)), "{{status}}", high=1e4),), stack=True, width=12,
        ),
        Panel(
            "timeseries", "Waiting, by reason",
            "Why waiting sequences wait: no_blocks wants KV memory, sequence_cap a slot, token_budget room in the "
            "step; head_of_line stands behind one that does.",
            "none", (Query(gauge("nanolens_waiting_sequences", by=("reason",)), "{{reason}}", high=1e4),),
            stack=True, width=12,
        ),
        Panel(
            "stat", "Engines paused",
            "Engines that plan nothing because an operator or a breakpoint paused them.",
            "none", (Query(gauge("nanolens_engine_paused"), "paused", high=1),), steps=((None, GOOD), (1, WARN)),
            width=6, height=8,
        ),
        Panel(
            "timeseries", "Pauses and resumes",
            "Sequences per second that entered PAUSED, and that were told to go on.",
            "ops",
            (
                Query(rate("nanolens_pauses_total"), "paused", high=1e4),
                Query(rate("nanolens_resumes_total"), "resumed", high=1e4),
            ),
            traces=PAUSED, width=18,
        ),
    ),
)  # fmt: skip

WAITS = Row(
    "Waiting",
    (
        Panel(
            "timeseries", "Oldest wait",
            "How long the one that has waited the longest has been waiting, for each engine.",
            "s", (Query(most("nanolens_oldest_wait_seconds"), ENGINE_NAME, high=60),),
            traces=QUEUED, steps=((None, GOOD), (5, WARN), (30, BAD)),
        ),
        Panel(
            "timeseries", "Time in the queue",
            "How long requests waited, for their first admission or after a pause. Waiting after a preemption is on "
            "the board for preemptions.",
            "s", quantiles(QUEUE), traces=QUEUED,
        ),
        Panel(
            "heatmap", "Time in the queue, all of it",
            "Ended requests per second by how long they had waited. A band that climbs is a queue that grows; two "
            "bands are two kinds of requests.",
            "s", (Query(buckets(QUEUE), "{{le}}", high=1e5, exemplars=True),), traces=QUEUED,
        ),
        Panel(
            "timeseries", "Preempted and waiting again",
            "Sequences that had run, lost their place and wait to be readmitted.",
            "none", (Query(gauge("nanolens_preempted_waiting_sequences"), "preempted", high=1e4),),
            traces=PREEMPTED,
        ),
        Panel(
            "timeseries", "Where a request's time goes",
            "Mean seconds of each phase for the requests that ended. The sum is their mean time from arrival to end.",
            "s",
            (
                Query(mean("nanolens_queue_seconds"), "queue", high=60),
                Query(mean("nanolens_prefill_seconds"), "prefill", high=60),
                Query(mean("nanolens_decode_seconds"), "decode", high=60),
                Query(mean("nanolens_preempted_seconds"), "preempted", high=60),
                Query(mean("nanolens_paused_seconds"), "paused", high=60),
            ),
            stack=True, width=16,
        ),
    ),
)  # fmt: skip

STEPS = Row(
    "What steps compute",
    (
        Panel(
            "timeseries", "Steps, by kind",
            "Steps per second: decode only, prefill only, mixed, or moves of blocks alone.",
            "ops", (Query(rate("nanolens_steps_total", by=("kind",)), "{{kind}}", high=1e5),), stack=True,
        ),
        Panel(
            "timeseries", "Tokens in a step",
            "How many tokens a step computes. Far below the token budget with a queue means that slots or blocks are "
            "short.",
            "none",
            (
                Query(quantile(0.5, "nanolens_batch_tokens"), "p50", high=1e6),
                Query(quantile(0.95, "nanolens_batch_tokens"), "p95", high=1e6),
            ),
        ),
        Panel(
            "timeseries", "Prefill and decode time",
            "95th percentile of the time that a request spent in prefill, chunks and recomputation included, and in "
            "decode.",
            "s",
            (
                Query(quantile(0.95, "nanolens_prefill_seconds"), "prefill p95", high=60, exemplars=True),
                Query(quantile(0.95, "nanolens_decode_seconds"), "decode p95", high=60, exemplars=True),
            ),
        ),
    ),
)  # fmt: skip

BOARD = Dashboard("queue", "Queue and scheduling", "Who waits, why, and how long?", (SEQUENCES, WAITS, STEPS))
