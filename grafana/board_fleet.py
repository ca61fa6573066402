"""A fleet: where its router sends requests, which replicas were lost, and which one is unlike the others."""

from __future__ import annotations

from .dashboard import Dashboard, Row
from .panels import BAD, GOOD, WARN, Panel, Query
from .promql import (
    ENGINE,
    ENGINE_NAME,
    INTERVAL,
    gauge,
    most,
    of_address,
    quantile,
    rate,
    ratio,
    total,
)  # fmt: skip
from .trace_links import FAILED, LATE_FIRST, LATE_NEXT, QUEUED

LOST = "nanolens_router_lost_replicas_total"
LOST_WHEN = "nanolens_router_lost_replica_timestamp_seconds"
ROUTED = "nanolens_router_requests_total"
TTFT = "nanolens_time_to_first_token_seconds"
ITL = "nanolens_inter_token_seconds"

REPLICAS = Row(
    "Replicas",
    (
        Panel(
            "stat", "Replicas that answer",
            "Replicas that the router knows and whose engines answer.",
            "none", (Query(total(of_address("nanolens_router_replicas")), "answer", low=1, high=1e3),),
            steps=((None, BAD), (1, GOOD)), width=4,
        ),
        Panel(
            "stat", "Replicas wanted",
            "Replicas that there should be, at least. Fewer that answer than that is a replica for which none has "
            "started in its place.",
            "none", (Query(total(of_address("nanolens_router_wanted_replicas")), "wanted", low=1, high=1e3),), width=4,
        ),
        Panel(
            "timeseries", "Replicas lost",
            "How many were lost over the time shown, by how: engine_gone failed or its process died, engine_silent "
            "gave no answers, process_gone died itself, process_silent stood still. Replicas that are replaced in "
            "order do not count.",
            "none",
            (Query(total(f"increase({of_address(LOST)}[{INTERVAL}])", "reason"), "{{reason}}", high=1e3),),
            steps=((None, GOOD), (1e-9, BAD)), traces=FAILED,
        ),
        Panel(
            "table", "Which ones",
            "The last replicas lost since the front began, how and when. Each one's journal is named like it.",
            "dateTimeAsIso",
            (Query(f"{most(LOST_WHEN, by=(*ENGINE, 'reason'))} * 1000", "", high=1e13),),
            traces=FAILED, columns=("instance", "replica", "reason", "Value"),
        ),
    ),
)  # fmt: skip

ROUTER = Row(
    "Router",
    (
        Panel(
            "timeseries", "Choices, by reason",
            "Requests per second by why their replica was chosen: prefix caches the most of the prompt; load, "
            "no_blocks and full are holders that were passed over; only means that no other one answers.",
            "reqps", (Query(rate(ROUTED, by=("reason",)), "{{reason}}", high=1e4),), stack=True,
        ),
        Panel(
            "timeseries", "Choices, by replica",
            "Requests per second that each replica got. One that gets far fewer than the others caches little or is "
            "passed over.",
            "reqps", (Query(rate(ROUTED, by=ENGINE), ENGINE_NAME, high=1e4),), stack=True,
        ),
        Panel(
            "timeseries", "In flight",
            "Requests that each replica is answering.",
            "none", (Query(gauge("nanolens_router_in_flight", by=ENGINE), ENGINE_NAME, high=1e4),), stack=True,
        ),
        Panel(
            "timeseries", "Queue age",
            "How long the sequence that waits longest has waited, as the router sees it. More replicas help if all "
            "climb; one that climbs alone is sick, or paused.",
            "s", (Query(most("nanolens_router_queue_age_seconds"), ENGINE_NAME, high=60),),
            traces=QUEUED, steps=((None, GOOD), (5, WARN), (30, BAD)),
        ),
        Panel(
            "timeseries", "Tried elsewhere",
            "Requests per second that a replica did not answer, and that went to another one: it was full, or gone.",
            "reqps", (Query(rate("nanolens_router_retries_total", by=ENGINE), ENGINE_NAME, high=1e4),), traces=FAILED,
        ),
        Panel(
            "timeseries", "Answers that broke off",
            "Answers per second that ended in an error, because their replica or its engine was gone.",
            "reqps", (Query(rate("nanolens_router_broken_total", by=ENGINE), ENGINE_NAME, high=1e4),), traces=FAILED,
            steps=((None, GOOD), (1e-9, BAD)),
        ),
    ),
)  # fmt: skip

SIDE_BY_SIDE = Row(
    "One replica beside the others",
    (
        Panel(
            "timeseries", "Steps, by replica",
            "Steps per second of each engine. One at 0 with a queue is stuck, or paused.",
            "ops", (Query(rate("nanolens_steps_total", by=ENGINE), ENGINE_NAME, high=1e5),),
        ),
        Panel(
            "timeseries", "Waiting, by replica",
            "Sequences in WAITING at each engine.",
            "none", (Query(gauge("nanolens_sequences", 'status="WAITING"', by=ENGINE), ENGINE_NAME, high=1e4),),
            traces=QUEUED,
        ),
        Panel(
            "timeseries", "KV in use, by replica",
            "Share of each engine's pool that sequences hold.",
            "percentunit",
            (
                Query(
                    ratio(gauge("nanolens_kv_blocks", 'state="used"', by=ENGINE),
                          gauge("nanolens_kv_blocks_capacity", by=ENGINE)),
                    ENGINE_NAME, high=1,
                ),
            ),
            steps=((None, GOOD), (0.85, WARN), (0.95, BAD)), highest=1,
        ),
        Panel(
            "timeseries", "Time to first token, by replica",
            "95th percentile at each engine. One that is slower than the others without a queue has a slow device.",
            "s", (Query(quantile(0.95, TTFT, by=ENGINE), ENGINE_NAME, high=60),), traces=LATE_FIRST,
        ),
        Panel(
            "timeseries", "Time between tokens, by replica",
            "95th percentile at each engine.",
            "s", (Query(quantile(0.95, ITL, by=ENGINE), ENGINE_NAME, high=60),), traces=LATE_NEXT,
        ),
        Panel(
            "timeseries", "Error ratio, by replica",
            "Share of each engine's ended requests that ended in an error.",
            "percentunit",
            (
                Query(
                    ratio(rate("nanolens_requests_total", 'finish_reason="error"', by=ENGINE),
                          rate("nanolens_requests_total", by=ENGINE)),
                    ENGINE_NAME, high=1,
                ),
            ),
            traces=FAILED, steps=((None, GOOD), (0.01, BAD)),
        ),
    ),
)  # fmt: skip

BOARD = Dashboard(
    "fleet", "Fleet", "Which replica is lost, sick or unlike the others, and where do requests go?",
    (REPLICAS, ROUTER, SIDE_BY_SIDE),
)  # fmt: skip
