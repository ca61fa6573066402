"""Metrics of ranks that share a model: what was planted, by rank, in both formats; nothing of them on one rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_classic

from metric_runs import collected, observed
from nanolens.engine.plan import StepPlan
from nanolens.telemetry.events import AnyEvent, Keyframe, StepRanks
from nanolens.telemetry.metric_families import RANK_BUCKETS
from nanolens.telemetry.metrics import Metrics
from skewed_ranks import EXCHANGE, skewed_engine

MS = 1_000_000
SIZE = 3


def delays(plan: StepPlan) -> Sequence[int]:
    """Rank 2 is 4 ms slower than the fastest in even steps, rank 0 1 ms in the others."""
    return [0, MS, 4 * MS] if plan.step % 2 == 0 else [MS, MS // 2, 0]


def run(size: int = SIZE) -> list[AnyEvent]:
    engine, _ = skewed_engine(delays, late=False, tensor_parallel_size=size)
    engine.add([1] * 8, max_tokens=8)  # eight steps
    engine.run()
    engine.close()
    return engine.events


def fed(events: Sequence[AnyEvent]) -> Metrics:
    metrics = Metrics(clock=lambda: 0)
    metrics.apply_all(events)
    assert metrics.num_contradictions == 0
    return metrics


def ranks_of(metrics: Metrics) -> set[tuple[str, str]]:
    return {
        (name, dict(labels)["rank"]) for name, labels in collected(metrics)
        if "rank" in dict(labels) and name.endswith("_count")
    }  # fmt: skip


def test_skew_is_observed_under_the_slowest_rank() -> None:
    metrics = fed(run())
    found = [observed(metrics, "rank_skew_seconds", rank=str(rank)) for rank in range(SIZE)]
    assert [count for count, _ in found] == [4, 0, 4]
    assert [total for _, total in found] == pytest.approx([4 * 0.001, 0.0, 4 * 0.004], abs=1e-12)


def test_time_in_collectives_is_observed_for_each_rank() -> None:
    metrics = fed(run())
    found = [observed(metrics, "rank_collective_seconds", rank=str(rank)) for rank in range(SIZE)]
    assert [count for count, _ in found] == [8, 8, 8]
    waited = [4 * 4 * MS, 4 * 3 * MS + 4 * MS // 2, 4 * MS]
    assert [total for _, total in found] == pytest.approx([(8 * EXCHANGE + ns) / 1e9 for ns in waited], abs=1e-12)


@pytest.mark.parametrize("openmetrics", [False, True])
def test_both_formats_hold_them_with_their_buckets(openmetrics: bool) -> None:
    text = fed(run()).render(openmetrics).decode()
    parse: Any = parse_openmetrics if openmetrics else parse_classic
    families = {family.name: family for family in parse(text)}
    for name in ("nanolens_rank_skew_seconds", "nanolens_rank_collective_seconds"):
        family = families[name]
        assert family.type == "histogram"
        for rank in range(SIZE):
            own = [s for s in family.samples if s.labels["rank"] == str(rank) and s.name == name + "_bucket"]
            assert [float(s.labels["le"]) for s in own] == [*RANK_BUCKETS, float("inf")]
    skew = {s.labels["le"]: s.value for s in families["nanolens_rank_skew_seconds"].samples
            if s.labels["rank"] == "2" and s.name.endswith("_bucket")}  # fmt: skip
    assert (skew["0.002"], skew["0.005"], skew["+Inf"]) == (0, 4, 4)


def test_series_of_all_ranks_are_there_before_the_first_step() -> None:
    assert len(ranks_of(fed(run()[:1]))) == 2 * SIZE


def test_a_run_on_one_rank_has_none() -> None:
    events = [event for event in run(1) if not isinstance(event, StepRanks)]
    assert ranks_of(fed(events)) == set()
    assert "rank=" not in fed(events).render().decode()


def test_one_who_joins_at_a_keyframe_knows_the_ranks() -> None:
    engine, _ = skewed_engine(delays, tensor_parallel_size=2)
    keyframe = engine.core.keyframe()
    assert isinstance(keyframe, Keyframe)
    assert len(ranks_of(fed([keyframe]))) == 4


def test_another_run_begins_with_its_own_ranks() -> None:
    events = run()
    assert len(ranks_of(fed([*events, *run(2)[:1]]))) == 4
    assert ranks_of(fed([*events, *run(1)[:1]])) == set()
