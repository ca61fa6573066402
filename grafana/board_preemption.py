"""Preemption and recompute: who loses its place, why, and what the lost work costs."""

from __future__ import annotations

from .board_overview import quantiles
from .dashboard import Dashboard, Row
from .panels import BAD, GOOD, WARN, Panel, Query
from .promql import RANGE, buckets, gauge, increase, mean, rate, ratio, share_within
from .trace_links import PAUSED, PREEMPTED

PREEMPTIONS = "nanolens_preemptions_total"
LOST = "nanolens_recomputed_tokens_total"
COMPUTED = "nanolens_computed_tokens_total"
OF_REQUESTS = "nanolens_request_preemptions"

NOW = Row(
    "Over the time shown",
    (
        Panel(
            "stat", "Preemptions",
            "Sequences that lost their place to another.",
            "none", (Query(increase(PREEMPTIONS), "preemptions", high=1e6),),
            traces=PREEMPTED, width=6,
        ),
        Panel(
            "stat", "Requests preempted",
            "Share of ended requests that were preempted at least once.",
            "percentunit",
            (Query("1 - " + share_within(OF_REQUESTS, "0.0", over=RANGE), "preempted", high=1),),
            traces=PREEMPTED, steps=((None, GOOD), (0.05, WARN), (0.25, BAD)), highest=1, width=6,
        ),
        Panel(
            "stat", "Work thrown away",
            "Tokens lost to preemptions for each token computed.",
            "percentunit",
            (Query(ratio(rate(LOST, over=RANGE), rate(COMPUTED, over=RANGE)), "lost", high=1),),
            traces=PREEMPTED, steps=((None, GOOD), (0.05, WARN), (0.2, BAD)), width=6,
        ),
        Panel(
            "stat", "Preempted and waiting",
            "Sequences that lost their place and wait to be readmitted.",
            "none", (Query(gauge("nanolens_preempted_waiting_sequences"), "waiting", high=1e4),),
            traces=PREEMPTED, width=6,
        ),
    ),
)  # fmt: skip

VICTIMS = Row(
    "Preemption",
    (
        Panel(
            "timeseries", "Preemptions, by cause",
            "no_blocks: the pool is too small for what runs; priority: a more urgent request came; swap_failed: KV "
            "did not come back.",
            "ops", (Query(rate(PREEMPTIONS, by=("reason",)), "{{reason}}", high=1e5),), traces=PREEMPTED, stack=True,
        ),
        Panel(
            "timeseries", "Preemptions, by what becomes of the KV",
            "recompute: it is dropped and computed again; swap: it is kept in the swap space.",
            "ops", (Query(rate(PREEMPTIONS, by=("mode",)), "{{mode}}", high=1e5),), traces=PREEMPTED, stack=True,
        ),
        Panel(
            "timeseries", "Time lost to preemption",
            "How long a request's sequences waited after preemptions.",
            "s", quantiles("nanolens_preempted_seconds"), traces=PREEMPTED,
        ),
        Panel(
            "heatmap", "Preemptions of a request",
            "Ended requests per second by how often they were preempted. Much above 2 is a pool that thrashes.",
            "none", (Query(buckets(OF_REQUESTS), "{{le}}", high=1e5),), traces=PREEMPTED,
        ),
        Panel(
            "timeseries", "Mean preemptions of a request",
            "How often a request that ended had been preempted.",
            "none", (Query(mean(OF_REQUESTS), "preemptions", high=100),), traces=PREEMPTED,
        ),
        Panel(
            "timeseries", "Time paused",
            "How long requests that ended had been PAUSED: by their callers, or by breakpoints.",
            "s", quantiles("nanolens_paused_seconds"), traces=PAUSED,
        ),
    ),
)  # fmt: skip

RECOMPUTE = Row(
    "Recompute",
    (
        Panel(
            "timeseries", "Tokens lost and found again",
            "Computed tokens per second that preemptions lost, that sequences lost while paused or waiting, and those "
            "that a readmission found in the cache after all.",
            "short",
            (
                Query(rate(LOST), "lost to preemption", high=1e7),
                Query(rate("nanolens_dropped_tokens_total"), "lost while paused or waiting", high=1e7),
                Query(rate("nanolens_refound_tokens_total"), "found again", high=1e7),
            ),
            traces=PREEMPTED,
        ),
        Panel(
            "timeseries", "Share of work thrown away",
            "Tokens lost to preemptions for each token computed.",
            "percentunit", (Query(ratio(rate(LOST), rate(COMPUTED)), "lost", high=1),), traces=PREEMPTED,
            steps=((None, GOOD), (0.2, BAD)),
        ),
        Panel(
            "timeseries", "Tokens sampled in vain",
            "Tokens per second that were sampled and thrown away, because their sequence had ended or lost its place "
            "meanwhile.",
            "short", (Query(rate("nanolens_wasted_tokens_total"), "wasted", high=1e6),),
        ),
    ),
)  # fmt: skip

BOARD = Dashboard(
    "preemption", "Preemption and recompute", "Who loses its place, and what does the lost work cost?",
    (NOW, VICTIMS, RECOMPUTE),
)  # fmt: skip
