"""Times of blocks, the buckets of histograms, and exemplars."""

from __future__ import annotations

from collections import defaultdict

import pytest

from fake_engine import FakeEngine
from metric_runs import (
    collected,
    fed,
    flat,
    key,
    observed,
    of,
    rich_run,
    samples,
    token_first,
)
from nanolens.telemetry.events import (
    AnyEvent,
    BlocksAllocated,
    BlocksCached,
    BlocksFreed,
    Keyframe,
    RequestArrived,
    StatusChanged,
)
from nanolens.telemetry.metric_families import HISTOGRAMS, LATENCY_BUCKETS
from nanolens.telemetry.metrics import Metrics
from nanolens.telemetry.span_ids import TraceIds

MS = 1_000_000
OVERLAP = pytest.mark.parametrize("overlap", [False, True])


def block_story() -> list[AnyEvent]:
    """Sequence 0 takes block 0 at 10 ms and gives it up, cached, at 30 ms; 1 shares it from 70 to 100 ms; at 150 ms 2
    takes it for something else, and gives it up at 155 ms."""
    events: list[AnyEvent] = [FakeEngine(num_blocks=4).events[0]]
    for seq, start, cached in ((0, 10, []), (1, 70, [0]), (2, 150, [])):
        new, evicted = ([] if cached else [0]), ([0] if seq == 2 else [])
        events += [
            RequestArrived(MS, f"r{seq}", [seq], 4, 1, 0, {}),
            StatusChanged(2 * MS, 1, seq, "", "WAITING", "arrived", f"r{seq}"),
            StatusChanged(start * MS, 1, seq, "WAITING", "RUNNING", "admitted"),
            BlocksAllocated(start * MS, 1, seq, cached, new, evicted, 3),
        ]
        if seq == 0:
            events.append(BlocksCached(15 * MS, 1, seq, [0], b"12345678"))
        end = {0: 30, 1: 100, 2: 155}[seq]
        events += [
            StatusChanged(end * MS, 1, seq, "RUNNING", "FINISHED", "length"),
            BlocksFreed(end * MS, 1, seq, [0], 4),
        ]
    return events


def test_times_of_a_block_that_is_shared_and_then_evicted() -> None:
    metrics = fed([block_story()])
    assert metrics.num_contradictions == 0
    assert observed(metrics, "block_lifetime_seconds") == (3, pytest.approx((20 + 30 + 5) / 1e3))
    assert observed(metrics, "block_reuse_gap_seconds") == (1, pytest.approx(60 / 1e3))
    assert observed(metrics, "block_idle_before_eviction_seconds") == (1, pytest.approx(50 / 1e3))


@OVERLAP
def test_every_eviction_and_every_reuse_of_a_block_is_observed(overlap: bool) -> None:
    found = collected(fed(rich_run(overlap)))
    evictions, shares = found[key("block_evictions_total")], found[key("block_shares_total")]
    assert found[key("block_idle_before_eviction_seconds_count")] == evictions > 0
    assert found[key("block_reuse_gap_seconds_count")] >= shares > 0


def test_joining_at_a_keyframe_observes_no_block_whose_past_is_not_known() -> None:
    frames = rich_run(True)
    index = next(i for i, frame in enumerate(frames) if i > 90 and isinstance(frame[0], Keyframe))
    metrics = fed(frames[index : index + 1])
    assert observed(metrics, "block_lifetime_seconds")[0] == 0
    whole, rest = fed(frames), fed(frames[index:])
    for name in ("block_lifetime_seconds", "block_reuse_gap_seconds", "block_idle_before_eviction_seconds"):
        assert 0 < observed(rest, name)[0] < observed(whole, name)[0]


def test_buckets_are_cumulative_and_end_with_the_count() -> None:
    metrics = fed(rich_run(True))
    for family in metrics.collect():
        if family.type != "histogram":
            continue
        series: dict[frozenset[tuple[str, str]], list[float]] = defaultdict(list)
        counts = {}
        for sample in family.samples:
            labels = frozenset((name, text) for name, text in sample.labels.items() if name != "le")
            if sample.name.endswith("_bucket"):
                series[labels].append(sample.value)
            elif sample.name.endswith("_count"):
                counts[labels] = sample.value
        assert all(rising == sorted(rising) and rising[-1] == counts[labels] for labels, rising in series.items())


def test_latency_bounds_begin_at_half_a_millisecond_and_can_be_set() -> None:
    assert LATENCY_BUCKETS[0] == 0.0005
    metrics = Metrics(latency_buckets=[0.003, 4])
    for family in HISTOGRAMS:
        bounds = {dict(labels)["le"] for name, labels in collected(metrics) if name == family.name + "_bucket"}
        if family.buckets == LATENCY_BUCKETS:
            assert bounds == {"0.003", "4.0", "+Inf"}
        elif "rank" not in family.labels:  # several ranks only
            assert len(bounds) == len(family.buckets) + 1


@pytest.mark.parametrize("bounds", [[], [0, 1.0], [2.0, 1.0], [1.0, 1.0], [-1.0], [1.0, float("inf")], [float("nan")]])
def test_bounds_that_do_not_rise_above_nothing_are_refused(bounds: list[float]) -> None:
    with pytest.raises(ValueError, match="latency_buckets="):
        Metrics(latency_buckets=bounds)


def test_a_value_on_a_bound_is_in_its_bucket() -> None:
    metrics = Metrics(latency_buckets=[0.02, 0.03], clock=lambda: 0)
    metrics.apply_all(block_story())
    found = collected(metrics)
    assert [found[key("block_lifetime_seconds_bucket", le=bound)] for bound in ("0.02", "0.03", "+Inf")] == [2, 3, 3]


@OVERLAP
def test_exemplars_name_the_trace_in_openmetrics_alone(overlap: bool) -> None:
    traces = TraceIds()
    metrics = Metrics(trace_ids=traces, clock=lambda: 0)
    for frame in rich_run(overlap):
        traces.apply_all(frame)
        metrics.apply_all(frame)
    known = {traces(e.request) for e in of(flat(rich_run(overlap)), RequestArrived)}
    with_exemplars = set()
    for family in metrics.collect():
        for sample in family.samples:
            if sample.exemplar is not None:
                assert sample.exemplar.labels["trace_id"] in known
                assert 0 <= sample.exemplar.value <= float(sample.labels["le"])
                with_exemplars.add(family.name)
    assert with_exemplars == {family.name for family in HISTOGRAMS if family.has_exemplars}
    assert b"# {" in metrics.render(openmetrics=True)
    assert b"# {" not in metrics.render()
    assert samples(metrics.render()) == samples(fed(rich_run(overlap)).render())


def test_an_exemplar_belongs_to_its_own_request() -> None:
    engine = FakeEngine()
    engine.add(range(9), 3)
    engine.run()
    metrics = Metrics(trace_ids=lambda request: f"trace of {request}", clock=lambda: 0)
    metrics.apply_all(engine.events)
    arrived = engine.of(RequestArrived)[0]
    (exemplar,) = [
        sample.exemplar
        for family in metrics.collect() if family.name == "nanolens_time_to_first_token_seconds"
        for sample in family.samples if sample.exemplar is not None
    ]  # fmt: skip
    took = token_first(engine, 0) - arrived.t
    offset = engine.events[0].wall_offset_ns  # type: ignore[union-attr]
    assert exemplar.labels == {"trace_id": "trace of req-0"}
    assert (exemplar.value, exemplar.timestamp) == (took / 1e9, (arrived.t + took + offset) / 1_000_000_000)


def test_no_exemplars_without_traces() -> None:
    assert b"# {" not in fed(rich_run(True)).render(openmetrics=True)
