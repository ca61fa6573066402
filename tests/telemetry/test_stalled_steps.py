"""Steps in which the process or the machine stood still are a part of their own, and named; slow ones are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fake_engine import FakeEngine
from latency_checks import check_exact
from nanolens.engine.plan import StepPlan
from nanolens.errors import EngineDead
from nanolens.telemetry.culprits import culprits
from nanolens.telemetry.events import StepRetried
from nanolens.telemetry.latency import Breakdown, Latency
from nanolens.telemetry.stalled_steps import LEAST_NS, LEAST_USUAL, RATIO, WARM_UP, stalls
from nanolens.telemetry.verdict import verdict
from planted_causes import latency_of, prompt
from timed_engine import timed_engine

MS = 1_000_000
USUAL = 3 * MS


def stretched(*numbers: int, factor: float = 1000.0) -> Callable[[StepPlan], float]:
    """Steps that take so much longer than their work, by their number."""
    return lambda plan: factor if plan.step in numbers else 1.0


def told(engine: FakeEngine, request: str) -> tuple[Latency, Breakdown]:
    latency = latency_of(engine)
    check_exact(latency)
    return latency, latency.breakdown(latency.tracks.requests[request])


def decoded(stretch: Callable[[StepPlan], float], tokens: int = 40, **params: Any) -> tuple[FakeEngine, str]:
    """A request alone, from the first step on."""
    engine, _ = timed_engine(stretch=stretch, num_blocks=64)
    request = engine.add(prompt(8), tokens, **params)
    engine.run()
    return engine, request


def found(work: list[int], cost: float = USUAL, kinds: list[int] | None = None) -> list[int]:
    n = len(work)
    ns: list[int] = stalls(
        np.array(work), np.full(n, cost), np.array(kinds or [2] * n), np.ones(n, dtype=bool)
    ).tolist()
    return ns


def test_a_step_that_took_far_more_than_its_work_is_found() -> None:
    assert found([USUAL] * 20 + [2_000 * MS]) == [0] * 20 + [2_000 * MS - USUAL]


@pytest.mark.parametrize(
    ("work", "cost"),
    [(LEAST_NS + USUAL - 1, float(USUAL)), (int(RATIO * 100 * MS) - 1, 100.0 * MS)],
    ids=["short", "not ten times as long"],
)
def test_a_slow_step_did_not_stand_still(work: int, cost: float) -> None:
    assert not any(found([int(cost)] * 20 + [work], cost))
    assert any(found([int(cost)] * 20 + [work + 1], cost))


def test_the_first_steps_of_a_kind_may_make_something_ready() -> None:
    slow = [2_000 * MS]
    assert not any(found(slow * WARM_UP + [USUAL] * 20))
    assert found(slow * (WARM_UP + 1) + [USUAL] * 20)[: WARM_UP + 1] == [0] * WARM_UP + [2_000 * MS - USUAL]
    assert not any(found([USUAL] * 20 + slow, kinds=[2] * 20 + [1]))  # the first of its kind, late


def test_where_steps_of_a_kind_do_not_take_what_the_model_says_it_says_nothing() -> None:
    slow = [2_000 * MS]
    assert not any(found([USUAL] * (LEAST_USUAL - 1) + slow))
    assert any(found([USUAL] * LEAST_USUAL + slow))
    assert not any(found([USUAL] * 9 + slow * 91))  # fewer than a tenth of them do
    assert not any(found([USUAL] * 20 + slow, cost=0.0))  # no model
    assert not any(stalls(np.array([USUAL] * 20 + slow), np.array([USUAL] * 20 + [9.0 * USUAL]),
                          np.full(21, 2), np.ones(21, dtype=bool)))  # more work than any step that is known


def test_it_is_a_part_of_its_own_and_named_with_its_step() -> None:
    latency, breakdown = told(*decoded(stretched(20)))
    (_, quiet) = told(*decoded(stretched()))
    assert breakdown.parts["stalled_step"] == breakdown.total_ns - quiet.total_ns
    assert {name: ns for name, ns in breakdown.parts.items() if name != "stalled_step"} == pytest.approx(
        quiet.parts, abs=2
    )
    (culprit,) = culprits(latency, breakdown, "stalled_step")
    assert (culprit.kind, culprit.step, culprit.weight_ns) == ("stall", 20, breakdown.parts["stalled_step"])
    assert culprit.words == "step 20, which took 2.41 s where steps like it take 2.4 ms"
    assert verdict(latency, breakdown).headline == (
        f"{breakdown.request.request} took 2.50 s: 96% of it (2.41 s) while the process or the machine stood still: "
        f"{culprit.words}."
    )
    assert "stalled_step" in latency.part_names and "stalled_step" not in told(*decoded(stretched()))[0].part_names


def test_of_several_steps_the_longest_is_named_and_the_others_counted() -> None:
    latency, breakdown = told(*decoded(lambda plan: {20: 500.0, 25: 1000.0, 30: 200.0}.get(plan.step, 1.0)))
    assert ": step 25, which took 2.4" in verdict(latency, breakdown).headline
    assert verdict(latency, breakdown).headline.endswith(" where steps like it take 2.4 ms, and 2 more.")
    assert [c.step for c in culprits(latency, breakdown, "stalled_step")] == [25, 20, 30]


def test_of_the_time_to_first_token_only_the_steps_before_it_count() -> None:
    latency, breakdown = told(*decoded(stretched(20)))
    assert "stalled_step" not in breakdown.ttft_parts
    assert not culprits(latency, breakdown, "stalled_step", "ttft")


def test_who_arrives_while_a_step_stands_still_waits_behind_it() -> None:
    late: list[str] = []

    def stretch(plan: StepPlan) -> float:
        if plan.step == 20:
            late.append(engine.add(prompt(8, 1), 2))
        return 1000.0 if plan.step == 20 else 1.0

    engine, _ = timed_engine(stretch=stretch, num_blocks=64)
    engine.add(prompt(8), 40)
    engine.run()
    latency, breakdown = told(engine, late[0])
    assert verdict(latency, breakdown).headline.endswith(
        " waiting for the next step to be planned, behind step 20, which took 2.41 s where steps like it take 2.4 ms."
    )


def test_a_step_that_was_launched_again_in_parts_did_not_stand_still() -> None:
    engine, request = decoded(stretched(20))
    planned = next(i for i, e in enumerate(engine.events) if e.__class__.__name__ == "StepPlanned" and e.step == 20)
    engine.events.insert(planned + 1, StepRetried(engine.events[planned].t, 20, "out of memory", 2))
    assert "stalled_step" not in told(engine, request)[1].parts


@pytest.mark.parametrize(("params", "is_first"), [({}, False), ({"temperature": 1.0}, True), ({"n": 2}, True)])
def test_the_first_prompt_with_a_sampling_parameter_may_make_something_ready(
    params: dict[str, Any], is_first: bool
) -> None:
    engine, _ = timed_engine(stretch=lambda plan: 1000.0 if max(plan.counts) == 20 else 1.0, num_blocks=64)
    for salt in range(12):
        engine.add(prompt(18, salt), 2, top_k=3)
        engine.run()
    request = engine.add(prompt(20, 99), 2, **params)
    engine.run()
    assert ("stalled_step" not in told(engine, request)[1].parts) == is_first


@pytest.mark.parametrize(("at", "computed"), [(1, "0 of 8"), (10, "8 of 8")], ids=["prefill", "decode"])
def test_the_step_that_the_engine_ends_in_is_what_its_requests_waited_for(at: int, computed: str) -> None:
    """As where a rank hangs: nobody read what the step computed."""
    engine, clock = timed_engine(num_blocks=64)
    collect = engine.runner.collect

    def hang(handle: Any) -> Any:
        if engine.core.scheduler.step == at:
            clock.now += 5_000 * MS
            engine.runner.sound = False
            raise EngineDead("rank 1 of 2 hangs")
        return collect(handle)

    engine.runner.collect = hang  # type: ignore[method-assign]
    request = engine.add(prompt(8), 40)
    while engine.core.requests:
        engine.step()
    latency, breakdown = told(engine, request)
    assert 5_000 * MS <= breakdown.parts["stalled_step"] < 5_010 * MS
    assert "own_prefill" not in breakdown.parts or at > 1
    assert "stalled_step" in latency.part_names
    (cause,) = culprits(latency, breakdown, "stalled_step")
    assert (cause.kind, cause.step, cause.weight_ns) == ("failed", at, breakdown.parts["stalled_step"])
    text = verdict(latency, breakdown)
    assert f"in step {at}, which failed: EngineDead: rank 1 of 2 hangs." in text.headline
    assert f"{breakdown.track.num_prompt_computed} of 8" == computed


def test_a_step_that_is_still_under_way_has_not_failed() -> None:
    engine, _ = timed_engine(num_blocks=64)
    request = engine.add(prompt(8), 40)
    engine.core._launch(engine.core.scheduler.plan())  # type: ignore[arg-type]
    _, breakdown = told(engine, request)
    assert "stalled_step" not in breakdown.parts and breakdown.track.failed is None


@pytest.mark.parametrize("overlap", [False, True], ids=["in_turn", "overlapped"])
@pytest.mark.parametrize("goes_on", [False, True], ids=["the last step", "others follow"])
def test_a_step_that_fails_is_told_of_its_own_requests_alone(overlap: bool, goes_on: bool) -> None:
    engine, clock = timed_engine(num_blocks=64, overlap=overlap, max_prefill_chunk=8)
    launch = engine.runner.launch

    def fail(plan: StepPlan) -> Any:
        if plan.step == 2:
            clock.now += 50 * MS
            raise RuntimeError("planted")
        return launch(plan)

    engine.runner.launch = fail  # type: ignore[method-assign]
    request = engine.add(prompt(20), 40)
    engine.run()
    later = ""
    if goes_on:
        clock.now += 500 * MS
        later = engine.add(prompt(9), 40)
        engine.step()  # now one is under way, and not read
    latency, breakdown = told(engine, request)
    assert breakdown.parts["stalled_step"] >= 50 * MS
    assert breakdown.track.num_prompt_computed <= 8
    assert "in step 2, which failed: RuntimeError: planted." in verdict(latency, breakdown).headline
    if goes_on:
        _, breakdown = told(engine, later)
        assert "stalled_step" not in breakdown.parts and not breakdown.ended


def test_who_waits_when_the_engine_ends_in_a_step_waited_for_that_step() -> None:
    engine, clock = timed_engine(num_blocks=64, max_num_seqs=1)
    collect = engine.runner.collect

    def hang(handle: Any) -> Any:
        if engine.core.scheduler.step == 10:
            clock.now += 5_000 * MS
            engine.runner.sound = False
            raise EngineDead("rank 1 of 2 hangs")
        return collect(handle)

    engine.runner.collect = hang  # type: ignore[method-assign]
    engine.add(prompt(8), 40)
    behind = engine.add(prompt(9), 40)
    while engine.core.requests:
        engine.step()
    latency, breakdown = told(engine, behind)
    assert 5_000 * MS <= breakdown.parts["stalled_step"] < 5_010 * MS
    assert breakdown.parts["queue_sequence_cap"] > 0
    text = verdict(latency, breakdown)
    assert "in step 10, which failed: EngineDead: rank 1 of 2 hangs." in text.headline
    assert not any("max_num_seqs" in line for line in text.sentences)
