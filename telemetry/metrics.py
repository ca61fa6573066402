"""The `metrics` projection: Prometheus metrics of a run, folded from its events and read when someone scrapes.

Knows nothing of files or HTTP. Gauges and counters are read off other projections, so they are exact at any event.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from ..errors import AuditError
from . import metric_values
from .clock import Clock, monotonic_ns
from .events import AnyEvent, EngineStarted, EngineStopped, Keyframe
from .metric_blocks import BlockTimes, StepTimes
from .metric_families import BY_NAME, FAMILIES, GAUGES, PREFIX
from .metric_histogram import Histograms, TraceOf
from .metric_ranks import RankTimes
from .metric_requests import RequestTimes
from .metric_values import ExporterCounts, Series, label_text
from .state import EngineState

FRESH_NS = 2_000_000_000  # a reader at the journal's end looks many times in that, unless it is stalled
FOR_GOOD = 1 << 63  # later than any time


class Metrics(Collector):
    """All metrics of telemetry/metric_families.py. One thread applies events, any may render.

    Counters are those of the whole run wherever this joined: a keyframe carries them. Histograms hold what was seen
    here. A new run (engine.started) begins all anew, as Prometheus expects of a process that was started again. After
    a gap everything goes on from the next keyframe.

    Args:
        registry: where to register; None makes one with nothing else in it.
        latency_buckets: bounds of the latency histograms in seconds; None: from 0.5 ms to 500 s.
        trace_ids: the trace id of a request in hex, or "" (`TraceIds`, fed before this); None: no exemplars.
        clock: says what time it is now on the engine's clock, for how long something has been waiting.

    Attributes:
        registry: what `render` renders.
        state: the state after the events so far.
        exporter: what the exporter counts; it writes there.
        num_contradictions: events that did not fit those before them; each was treated as a gap.

    Raises:
        ValueError: latency_buckets that don't rise, or a registry that has these metrics already.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        latency_buckets: Sequence[float] | None = None,
        trace_ids: TraceOf | None = None,
        clock: Clock = monotonic_ns,
    ) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        self.state = EngineState()
        self.exporter = ExporterCounts()
        self.num_contradictions = 0
        self._clock = clock
        self._lock = threading.Lock()
        self._up = False
        self._stopped: EngineStopped | None = None
        self._gone = False
        self._newest_t = 0  # of the events that were read
        self._caught_up_t = 0  # when the journal's end was last reached; 0: not since the newest event
        self._histograms = Histograms(latency_buckets)
        self._requests = RequestTimes(self._histograms, self.state, trace_ids or (lambda request: ""))
        self._blocks = BlockTimes(self._histograms, self.state)
        self._steps = StepTimes(self._histograms)
        self._ranks = RankTimes(self._histograms)
        self.registry.register(self)

    def apply(self, event: AnyEvent) -> None:
        """Take one event."""
        self.apply_all((event,))

    def apply_all(self, events: Iterable[AnyEvent]) -> None:
        """Take a batch in its order. A scrape sees the state before it or after it, never one within."""
        with self._lock:
            t = 0
            for event in events:
                self._apply(event)
                t = getattr(event, "t", t)
            if t:
                self._newest_t, self._caught_up_t = t, 0

    def caught_up(self, for_good: bool = False) -> None:
        """Say that all of the journal has been read up to now; `for_good`: and that no more of it will be."""
        with self._lock:
            self._caught_up_t = FOR_GOOD if for_good else self._clock()

    def lose(self) -> None:
        """Say that events were missed, as a `Frame` with a `gap` does: it is counted, and all goes on from the next
        keyframe.
        """
        with self._lock:
            self.exporter.journal_gaps += 1
            self._lose()

    def engine_gone(self) -> None:
        """Say that the engine's process is gone without engine.stopped. An event that comes after all takes it back."""
        with self._lock:
            self._gone = self._up
            self._up = False

    def render(self, openmetrics: bool = False) -> bytes:
        """What a scrape gets: the classic text format, or OpenMetrics with exemplars."""
        return generate_openmetrics(self.registry) if openmetrics else generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """All families with their samples, of one moment."""
        with self._lock:
            started = self.state.started
            found = [_family(name, series) for name, series in self._gauges().items()]
            totals = self.state.totals.counts
            found += [_family(name, series) for name, series in metric_values.counters(totals, self.exporter)]
            found += self._histograms.collect(label_text(started.model) if started is not None else "")
        return iter(found)

    def describe(self) -> Iterator[Metric]:
        """All families without samples: what a registry checks for names that are taken."""
        return (Metric(family.name.removesuffix("_total"), family.help, family.kind) for family in FAMILIES)

    def _gauges(self) -> dict[str, Series]:
        state, up = self.state, self._up
        started, last_t = state.started, self._steps.last_t
        found: dict[str, Series] = {
            "engine_info": metric_values.info(started),
            "engine_up": {(): float(up)},
            "engine_ended": metric_values.ended(self._stopped, self._gone),
            "engine_paused": {(): float(up and bool(state.engine_paused))},
            "last_step_timestamp_seconds": {(): (last_t + started.wall_offset_ns) / 1e9} if started and last_t else {},
            "journal_lag_seconds": {(): self._lag_s()},
        }
        if up:
            now = max(self._clock(), state.t)
            found |= metric_values.sequence_gauges(state, now) | metric_values.block_gauges(state)
        else:
            found |= metric_values.idle_gauges()
        return {family.name: found[family.name.removeprefix(PREFIX)] for family in GAUGES}

    def _lag_s(self) -> float:
        """How far reading is behind: since the newest event, or since the end was reached if that is long ago."""
        since_ns = self._clock() - max(self._newest_t, self._caught_up_t)
        if not self._newest_t or (self._caught_up_t and since_ns < FRESH_NS):
            return 0.0
        return max(0, since_ns) / 1e9

    def _apply(self, event: AnyEvent) -> None:
        self._stopped = event if isinstance(event, EngineStopped) else None
        self._up, self._gone = self._stopped is None, False
        if isinstance(event, EngineStarted):
            self._histograms.clear()
            self._blocks.forget()
        elif isinstance(event, Keyframe) and self.state.started is not None:
            self._check(event, self.state.started)
        try:
            self._requests.apply(event)
            self._steps.apply(event)
            self._ranks.apply(event)
            if self.state.joined:
                self._blocks.before(event)
            self.state.apply(event)
            if self.state.joined:
                self._blocks.after(event)
            else:
                self._blocks.forget()
        except (AuditError, LookupError):
            self.num_contradictions += 1
            self._lose()

    def _check(self, keyframe: Keyframe, started: EngineStarted) -> None:
        """Find out from a keyframe that events before it were missed, or that it is another run's."""
        counts = self.state.totals.counts
        if keyframe.started.run_id != started.run_id:
            self._histograms.clear()
        elif not self.state.joined or all(counts.get(name, 0) == count for name, count in keyframe.totals.items()):
            return
        self._lose()

    def _lose(self) -> None:
        self.state.lose()
        self._requests.lose()
        self._blocks.forget()


def _family(name: str, series: Series) -> Metric:
    """A gauge, counter or info as the exposition formats take it."""
    family = BY_NAME[name]
    if family.kind == "info":
        described = InfoMetricFamily(name.removesuffix("_info"), family.help, labels=[])
        for values in series:
            described.add_metric([], dict(zip(family.labels, values, strict=True)))
        return described
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = kind(name, family.help, labels=list(family.labels), unit=family.unit)
    for values, value in series.items():
        metric.add_metric(list(values), value)
    return metric
