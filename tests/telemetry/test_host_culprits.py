"""What the host did in a window that a request's time covers in part: only what lies within that time counts."""

from __future__ import annotations

from typing import Any

import pytest

from nanolens.engine.plan import StepPlan
from nanolens.telemetry.culprit_steps import StepShares
from nanolens.telemetry.culprits import culprits
from nanolens.telemetry.events import StepFinished
from nanolens.telemetry.latency_tracks import LatencyTracks
from nanolens.telemetry.step_costs import StepCostModel
from nanolens.telemetry.step_windows import StepWindows
from nanolens.telemetry.tracks import StepTable
from planted_causes import MS, latency_of, prompt
from timed_engine import timed_engine

# Of the window from 100 to 300: what followed from the tokens before to 110, planning from 200, launching from 220, the
# device from 250.
TIMES = {"collect": (100, 110), "between": (110, 200), "plan": (200, 220), "launch": (220, 250)}


def shares(*pauses: tuple[int, int, str]) -> StepShares:
    table = StepTable()
    table.add(StepFinished(100, 1, 0, 0, 100, 15, 1, 1, [], wait_ns=5), (0, 0, 1, 10))
    table.add(StepFinished(300, 2, 20, 80, 50, 0, 1, 1, []), (0, 0, 1, 11))
    model = StepCostModel(fixed=10.0, decode=1.0, decode_context=1.0)
    return StepShares(LatencyTracks(), StepWindows(table, pauses, 0, model))


def amounts(of: StepShares, *intervals: tuple[int, int]) -> dict[str, float]:
    return {name: share.amount for name, share in of.host(of.cover(intervals)).items()}


@pytest.mark.parametrize(
    ("interval", "wanted"),
    [
        ((100, 300), {"collect": 10, "between": 90, "plan": 20, "launch": 30}),
        ((230, 300), {"launch": 20}),
        ((205, 280), {"plan": 15, "launch": 30}),
        ((190, 300), {"between": 10, "plan": 20, "launch": 30}),
        ((100, 106), {"collect": 6}),
        ((100, 150), {"collect": 10, "between": 40}),
        ((105, 210), {"collect": 5, "between": 90, "plan": 10}),
        ((120, 130), {"between": 10}),
        ((260, 300), {}),
    ],
)
def test_the_host_did_in_a_part_of_a_window_what_it_did_then(
    interval: tuple[int, int], wanted: dict[str, float]
) -> None:
    assert amounts(shares(), interval) == wanted


def test_each_nanosecond_of_the_host_counts_once_wherever_a_window_is_cut() -> None:
    for begin in range(100, 300, 7):
        for end in range(begin + 1, 301, 9):
            overlaps = {name: min(end, to) - max(begin, since) for name, (since, to) in TIMES.items()}
            assert amounts(shares(), (begin, end)) == {name: ns for name, ns in overlaps.items() if ns > 0}


def test_two_times_within_a_window_count_each_for_itself() -> None:
    assert amounts(shares(), (100, 104), (195, 205)) == {"collect": 4, "between": 5, "plan": 5}


def test_a_pause_is_not_the_hosts_before_what_came_after_it() -> None:
    assert amounts(shares((120, 190, "operator")), (115, 300)) == {"between": 15, "plan": 20, "launch": 30}
    assert amounts(shares((120, 190, "operator")), (210, 300)) == {"plan": 10, "launch": 30}


def test_measured_times_beyond_the_window_take_no_more_than_it_has() -> None:
    table = StepTable()
    table.add(StepFinished(100, 1, 0, 0, 50, 40, 1, 1, []), (0, 0, 1, 10))
    table.add(StepFinished(200, 2, 30, 500, 20, 0, 1, 1, []), (0, 0, 1, 11))
    of = StepShares(LatencyTracks(), StepWindows(table, [], 0, StepCostModel(fixed=10.0)))
    assert amounts(of, (100, 200)) == {"collect": 40, "plan": 30, "launch": 10}
    assert amounts(of, (175, 200)) == {"launch": 5}


def test_a_slow_launch_after_an_idle_time_is_named_for_the_request_that_waited_for_it() -> None:
    engine, clock = timed_engine()
    engine.add(prompt(8), 4)
    engine.run()
    clock.now += 6_000 * MS
    launch, slow = engine.runner.launch, [2_000 * MS]

    def slow_launch(plan: StepPlan) -> Any:
        clock.now += slow.pop() if slow else 0
        return launch(plan)

    engine.runner.launch = slow_launch  # type: ignore[method-assign]
    late = engine.add(prompt(8, 1), 4)
    engine.run()
    latency = latency_of(engine)
    breakdown = latency.breakdown(latency.tracks.requests[late])
    assert breakdown is not None
    found, total = culprits(latency, breakdown, "host_gap"), breakdown.parts["host_gap"]
    assert found[0].kind == "launch" and total >= found[0].weight_ns > 0.99 * total
    assert sum(culprit.weight_ns for culprit in found) <= total
