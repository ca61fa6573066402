"""Times that can't be: the latency model stays exact where they go back a little, and refuses what no clock gives."""

from __future__ import annotations

import random

import pytest

from latency_checks import check_exact, latency_of
from nanolens.errors import AuditError
from nanolens.telemetry.events import AnyEvent
from planted_runs import MS, Planted, planted_events


def events() -> list[AnyEvent]:
    return planted_events([Planted(wait=5 * MS), Planted(), Planted(outputs=3)])


def move(found: list[AnyEvent], shifts: list[int]) -> list[AnyEvent]:
    for event, shift in zip(found, shifts, strict=True):
        if hasattr(event, "t"):
            event.t += shift
    return found


def test_a_run_in_order_has_none_that_went_back() -> None:
    assert latency_of(events()).tracks.order.num_back == 0


@pytest.mark.parametrize("seed", range(5))
def test_times_that_go_back_leave_all_parts_exact(seed: int) -> None:
    rng, found = random.Random(seed), events()
    latency = latency_of(move(found, [0] + [rng.randrange(50 * MS) for _ in found[1:]]))
    assert len(check_exact(latency)) == 3
    assert latency.tracks.order.num_back > 0 and 0 < latency.tracks.order.most_back < 50 * MS


def test_a_second_half_that_is_a_second_earlier_counts_as_at_the_end_of_the_first() -> None:
    found = events()
    half = len(found) // 2
    latency = latency_of(move(found, [0] * half + [-1000 * MS] * (len(found) - half)))
    check_exact(latency)
    assert latency.tracks.order.most_back == pytest.approx(1000 * MS, rel=0.1)


@pytest.mark.parametrize("shift", [1 << 62, -(10**15)])
def test_a_time_that_no_clock_gives_is_refused(shift: int) -> None:
    found = events()
    with pytest.raises(AuditError, match="no clock gives"):
        latency_of(move(found, [shift] * len(found)))


def test_a_run_that_begins_twice_is_refused() -> None:
    found = events()[:-1]
    with pytest.raises(AuditError, match=r"engine\.started amid"):
        latency_of([*found, *events()])
