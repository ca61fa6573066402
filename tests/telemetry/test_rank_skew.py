"""Ranks that share a model: a planted delay of one is found to the nanosecond, as a part of its own, with the rank."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from fake_engine import FakeEngine
from latency_checks import check_exact, check_whole, latency_of
from nanolens.engine.plan import StepPlan
from nanolens.telemetry.culprits import culprits
from nanolens.telemetry.events import AnyEvent, StepFinished, StepRanks
from nanolens.telemetry.latency import Latency
from nanolens.telemetry.rank_skew import RankSkew, own_ns, rank_skew
from nanolens.telemetry.verdict import verdict
from random_lives import Driver
from skewed_ranks import EXCHANGE, skewed_engine
from timed_engine import COSTS, timed_engine

MS = 1_000_000


def every_third(plan: StepPlan) -> list[int]:
    """Of two ranks the second is 3 ms slower in each third step."""
    return [0, 3 * MS if plan.step % 3 == 0 else 0]


def events_of(engine: FakeEngine) -> list[AnyEvent]:
    engine.core.flush()
    return engine.events


def one_request(late: bool = True, tokens: int = 12) -> list[AnyEvent]:
    engine, _ = skewed_engine(every_third, late)
    engine.add([1] * 8, max_tokens=tokens)
    engine.run()
    return events_of(engine)


def only(latency: Latency) -> dict[str, int]:
    (breakdown,) = latency.breakdowns()
    return breakdown.parts


@pytest.mark.parametrize(
    ("device", "waited", "skew"),
    [
        ([10, 10], [1, 4], RankSkew(0, 3, 3)),
        ([10, 10], [4, 1], RankSkew(1, 3, 3)),
        ([9, 9, 9], [5, 1, 6], RankSkew(1, 5, 4)),  # own work: 4, 8, 3
        ([9, 9, 9, 9], [5, 1, 6, 3], RankSkew(1, 5, 4)),  # 4, 8, 3, 6: of the two in the middle the lower one
        ([7, 7], [2, 2], RankSkew(0, 0, 0)),
        ([2, 5], [3, 1], RankSkew(1, 4, 4)),  # clocks of a rank that disagree: no work is negative
    ],
)
def test_the_slowest_rank_is_compared_with_the_fastest_and_the_median_one(
    device: list[int], waited: list[int], skew: RankSkew
) -> None:
    assert rank_skew(StepRanks(1, device, waited)) == skew


def test_where_it_is_known_who_came_late_that_counts() -> None:
    assert rank_skew(StepRanks(1, [10, 10], [1, 4], [0, 7])) == RankSkew(1, 7, 7)  # rank 0 computed longer
    assert rank_skew(StepRanks(1, [9, 9, 9], [5, 1, 6], [3, 0, 8])) == RankSkew(2, 8, 5)
    assert rank_skew(StepRanks(1, [10, 10], [1, 4], [7])) == RankSkew(0, 3, 3)  # of a damaged file


@pytest.mark.parametrize(("device", "waited"), [([], []), ([5], [0])])
def test_one_rank_or_none_has_no_skew(device: list[int], waited: list[int]) -> None:
    assert rank_skew(StepRanks(1, device, waited)) is None


def test_own_work_is_what_is_beside_the_collectives() -> None:
    assert own_ns(StepRanks(1, [10, 8, 3], [4, 8, 5])) == [6, 0, 0]


@pytest.mark.parametrize("late", [False, True])
def test_the_planted_delay_is_a_part_of_the_requests_time(late: bool) -> None:
    events = one_request(late)
    steps = [event.step for event in events if isinstance(event, StepFinished)]
    told = [event.step for event in events if isinstance(event, StepRanks)]
    assert told == (steps[:-1] if late else steps)
    parts = only(check_whole(events, COSTS))
    assert abs(parts["rank_skew"] - 3 * MS * sum(step % 3 == 0 for step in told)) <= 1  # rounded
    assert parts["rank_skew"] >= 9 * MS


def test_the_other_parts_are_those_of_a_run_whose_ranks_are_alike() -> None:
    engine, _ = skewed_engine(lambda plan: [0, 0], late=False)
    engine.add([1] * 8, max_tokens=12)
    engine.run()
    alike, skewed = only(check_whole(events_of(engine), COSTS)), only(check_whole(one_request(late=False), COSTS))
    assert skewed.pop("rank_skew") > 0 and "rank_skew" not in alike
    assert skewed.keys() == alike.keys()
    assert all(abs(ns - alike[part]) <= 2 for part, ns in skewed.items())


def test_skew_of_steps_that_nobody_ran_in_is_nobodys_and_each_pays_for_all_of_its_own() -> None:
    engine, _ = skewed_engine(every_third, late=False)
    first = engine.add([1] * 8, max_tokens=4)
    engine.run()
    second = engine.add([2] * 8, max_tokens=9)
    third = engine.add([3] * 8, max_tokens=9)
    engine.run()
    latency = check_whole(events_of(engine), COSTS)
    found = {name: latency.breakdown(latency.tracks.requests[name]).parts["rank_skew"] for name in (first, second)}
    assert [round(ns / MS) for ns in found.values()] == [3, 9]  # steps 3, and 6, 9, 12
    assert latency.breakdown(latency.tracks.requests[third]).parts["rank_skew"] == found[second]


def test_without_step_ranks_all_is_as_before() -> None:
    def run(ranks: bool) -> list[AnyEvent]:
        engine, _ = skewed_engine(lambda plan: [0, 2 * MS], late=False) if ranks else timed_engine()
        driver = Driver(engine, random.Random(3))
        for _ in range(200):
            driver.rng.choice(driver.commands())()
        driver.drain()
        return events_of(engine)

    events = run(ranks=True)
    silent = [event for event in events if not isinstance(event, StepRanks)]
    latency = latency_of(silent, COSTS)
    assert not latency.windows.skew.any() and latency.part_names == latency_of(run(ranks=False)).part_names
    assert "rank_skew" not in latency.part_names
    whole, without = list(check_exact(latency_of(events, COSTS))), list(check_exact(latency))
    assert any("rank_skew" in b.parts for b in whole) and not any("rank_skew" in b.parts for b in without)
    device = ("own_prefill", "own_decode", "prefill_interference", "batch_cost", "recompute", "rank_skew")
    for with_ranks, silently in zip(whole, without, strict=True):
        def rest(parts: dict[str, int]) -> Counter[str]:
            return Counter({part: ns for part, ns in parts.items() if part not in device})

        assert rest(with_ranks.parts) == rest(silently.parts)


def test_what_is_told_of_steps_that_were_never_read_is_let_go() -> None:
    events = one_request()
    told = StepRanks(99_999, [5 * MS, 5 * MS], [0, 4 * MS])
    strange = [*events[:1], told, *events[1:], told, StepRanks(0, [1, 1], [0, 1])]
    assert only(latency_of(strange, COSTS)) == only(latency_of(events, COSTS))


def test_skew_is_never_more_than_the_steps_device_time() -> None:
    events = one_request()
    longer = [
        StepRanks(e.step, [10_000 * MS] * 2, [10_000 * MS, 0]) if isinstance(e, StepRanks) else e for e in events
    ]
    latency = latency_of(longer, COSTS)
    check_exact(latency)
    windows = latency.windows
    assert np.array_equal(windows.skew[:-1], windows.device[:-1]) and only(latency)["rank_skew"] > 0


@pytest.mark.parametrize("overlap", [False, True])
def test_random_lives_add_up_with_ranks_that_take_turns(overlap: bool) -> None:
    rng = random.Random(11)

    def delays(plan: StepPlan) -> Sequence[int]:
        return [rng.randrange(3 * MS) for _ in range(3)]

    engine, _ = skewed_engine(
        delays, num_blocks=12, host_blocks=5, disk_blocks=12, max_num_seqs=4, max_prefill_chunk=5, overlap=overlap,
        policy="priority", preemption_mode="auto", paused_ttl_s=None, max_model_len=48,
    )  # fmt: skip
    driver = Driver(engine, rng)
    for _ in range(500):
        driver.rng.choice(driver.commands())()
    driver.drain()
    latency = check_whole(events_of(engine))
    assert sum("rank_skew" in b.parts for b in latency.breakdowns()) > 10


def test_the_rank_is_named_with_the_step_in_which_it_lagged_most() -> None:
    engine, _ = skewed_engine(lambda plan: [MS if plan.step == 2 else 0, 0, {4: 2 * MS, 6: 9 * MS}.get(plan.step, 0)])
    engine.add([1] * 8, max_tokens=12)
    engine.run()
    latency = latency_of(events_of(engine), COSTS)
    (breakdown,) = latency.breakdowns()
    found = culprits(latency, breakdown, "rank_skew")
    assert [(c.kind, c.request, c.seq, round(c.weight_ns / MS), c.step, c.words) for c in found] == [
        ("rank 2", "", -1, 11, 6, "rank 2; the most in step 6: 9.0 ms"),
        ("rank 0", "", -1, 1, 2, "rank 0; the most in step 2: 1.0 ms"),
    ]


def test_the_verdict_on_a_planted_straggler_names_it_first() -> None:
    engine, _ = skewed_engine(lambda plan: [0, 20 * MS if plan.step in (3, 5) else 0])
    engine.add([1] * 8, max_tokens=12)
    engine.run()
    latency = latency_of(events_of(engine), COSTS)
    (breakdown,) = latency.breakdowns()
    said = verdict(latency, breakdown)
    total = breakdown.total_ns / MS
    assert said.headline == (
        f"req-0 took {total:.1f} ms: {40 / total:.0%} of it (40.0 ms) waiting for the slowest rank: rank 1 "
        "(the most in step 3: 20.0 ms)."
    )
    assert sum(cause.ns for cause in said.causes) == breakdown.total_ns


def test_collectives_that_all_ranks_spend_alike_are_no_skew() -> None:
    engine, _ = skewed_engine(lambda plan: [MS, MS], late=False)
    engine.add([1] * 8, max_tokens=6)
    engine.run()
    events = events_of(engine)
    assert {tuple(e.collective_ns) for e in events if isinstance(e, StepRanks)} == {(EXCHANGE, EXCHANGE)}
    assert "rank_skew" not in only(latency_of(events, COSTS))
