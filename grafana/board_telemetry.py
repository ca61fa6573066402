"""Telemetry itself: whether the other dashboards can be trusted."""

from __future__ import annotations

from .dashboard import Dashboard, Row
from .panels import BAD, GOOD, WARN, Panel, Query
from .promql import ENGINE_NAME, INTERVAL, RANGE, gauge, increase, most, of_address, rate, ratio, series, total

SPANS = "nanolens_spans_total"
LOST_EVENTS = "nanolens_journal_dropped_events_total"
GAPS = "nanolens_journal_gaps_total"
LAG = "nanolens_journal_lag_seconds"

HEALTH = Row(
    "Health",
    (
        Panel(
            "stat", "Exporters scraped",
            "Exporters that answered Prometheus' last scrape.",
            "none", (Query(total(of_address("up")), "up", low=1, high=1),), steps=((None, BAD), (1, GOOD)), width=6,
        ),
        Panel(
            "stat", "Journal lag",
            "How far the exporters' reading is behind the journals, the worst of all engines.",
            "s", (Query(f"max({series(LAG)})", "lag", high=30),), steps=((None, GOOD), (5, WARN), (30, BAD)), width=6,
        ),
        Panel(
            "stat", "Events lost",
            "Events that journals lost over the time shown: the disk refused them. Counters miss what was in them.",
            "none", (Query(increase(LOST_EVENTS), "lost", high=0),),
            steps=((None, GOOD), (1, BAD)), width=6,
        ),
        Panel(
            "stat", "Spans lost",
            "Share of the spans recorded over the time shown that were dropped.",
            "percentunit",
            (Query(ratio(rate(SPANS, 'outcome="dropped"', over=RANGE), rate(SPANS, 'outcome="recorded"', over=RANGE)),
                   "lost", high=0),),
            steps=((None, GOOD), (0.001, WARN), (0.01, BAD)), width=6,
        ),
    ),
)  # fmt: skip

FLOW = Row(
    "Flow",
    (
        Panel(
            "timeseries", "Spans",
            "Spans per second: recorded from the journal, exported, let go by the tail rules, and dropped. recorded "
            "minus the others is what is on its way.",
            "ops", (Query(rate(SPANS, by=("outcome",)), "{{outcome}}", high=1e6),),
        ),
        Panel(
            "timeseries", "Journal read",
            "Bytes per second of the journal that the exporter read.",
            "Bps", (Query(rate("nanolens_journal_bytes_total"), "journal", high=1e9),),
        ),
        Panel(
            "timeseries", "Events lost, over time",
            "Events per second that journals lost.",
            "ops", (Query(rate(LOST_EVENTS), "lost", high=0),), steps=((None, GOOD), (1e-9, BAD)),
        ),
        Panel(
            "timeseries", "Journal gaps",
            "Times that segments of a journal were deleted before the exporter had read them, since it began: "
            "histograms and spans miss what was in them.",
            "none",
            (Query(f"sum by (instance, replica) (max_over_time({series(GAPS)}[{INTERVAL}]))", ENGINE_NAME, high=0),),
            steps=((None, GOOD), (1, BAD)),
        ),
        Panel(
            "timeseries", "Engines that ended",
            "How the engines behind the exporters ended: stopped in order, failed after a fault of their own, or gone "
            "without a last word. All at 0: they run, or have not started.",
            "none", (Query(gauge("nanolens_engine_ended", by=("reason",)), "{{reason}}", high=1e4),),
        ),
        Panel(
            "timeseries", "Journal lag, over time",
            "How far the exporter's reading is behind the journal; 0 at its end. It climbs if it can't keep up.",
            "s", (Query(most(LAG), ENGINE_NAME, high=30),),
        ),
        Panel(
            "timeseries", "Scrape time",
            "How long Prometheus' scrapes of the exporters take.",
            "s", (Query(f"max by (instance) ({of_address('scrape_duration_seconds')})", "{{instance}}", high=5),),
        ),
        Panel(
            "timeseries", "Samples in a scrape",
            "Series that an exporter gives, or the front of a fleet. The labels are bounded, so it stays level.",
            "none",
            (Query(f"max by (instance) ({of_address('scrape_samples_scraped')})", "{{instance}}", low=100, high=5000),),
        ),
    ),
)  # fmt: skip

BOARD = Dashboard("telemetry", "Telemetry itself", "Can the other dashboards be trusted?", (HEALTH, FLOW))
