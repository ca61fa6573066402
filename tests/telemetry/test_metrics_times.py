"""Histograms: each token, request, step and block is observed once, with the time that the journal gives it."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

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
    token_first,
)
from nanolens.telemetry.events import (
    AnyEvent,
    RequestArrived,
    RequestFinished,
    SequencePreempted,
    StatusChanged,
    StepFinished,
    StepPlanned,
    TokensSampled,
)
from nanolens.telemetry.metrics import Metrics

MS = 1_000_000
PARTS = ("queue", "prefill", "decode", "preempted", "paused")
OVERLAP = pytest.mark.parametrize("overlap", [False, True])


def token_times(events: list[AnyEvent]) -> dict[int, list[int]]:
    """When each token of each sequence was read, from the tokens themselves."""
    finished = {e.step: e for e in events if isinstance(e, StepFinished)}
    found: dict[int, list[int]] = defaultdict(list)
    for e in events:
        if isinstance(e, TokensSampled):
            for seq in e.seqs:
                if seq not in finished[e.step].wasted:
                    found[seq].append(finished[e.step].t)
    return found


@OVERLAP
def test_a_first_token_is_observed_once_from_arrival(overlap: bool) -> None:
    events = flat(rich_run(overlap))
    times = token_times(events)
    waits = [
        min(times[seq][0] for seq in e.seqs if times[seq]) - e.t
        for e in of(events, RequestArrived) if any(times[seq] for seq in e.seqs)
    ]  # fmt: skip
    assert len(of(events, SequencePreempted)) > 5
    assert observed(fed(rich_run(overlap)), "time_to_first_token_seconds") == (len(waits), sum(waits) / 1e9)


@OVERLAP
def test_every_interval_between_tokens_is_observed_but_those_across_a_pause(overlap: bool) -> None:
    events = flat(rich_run(overlap))
    pauses = [(e.seq, e.t) for e in of(events, StatusChanged) if e.new == "PAUSED"]
    intervals, across = [], 0
    for seq, times in token_times(events).items():
        for before, after in pairwise(times):
            if any(paused == seq and before <= t < after for paused, t in pauses):
                across += 1
            else:
                intervals.append(after - before)
    assert across > 0
    assert observed(fed(rich_run(overlap)), "inter_token_seconds") == (len(intervals), sum(intervals) / 1e9)


@OVERLAP
def test_the_parts_of_each_request_add_up_to_it(overlap: bool) -> None:
    metrics = Metrics(clock=lambda: 0)
    arrived, ended, checked = {}, {}, 0
    spent = 0
    for event in flat(rich_run(overlap)):
        metrics.apply(event)
        if isinstance(event, RequestArrived):
            arrived[event.request] = (event.t, event.seqs)
        elif isinstance(event, StatusChanged):
            ended[event.seq] = event.t
        elif isinstance(event, RequestFinished):
            t, seqs = arrived[event.request]
            found = collected(metrics)
            spent += max(ended[seq] for seq in seqs) - t
            assert found[key("request_seconds_sum")] == spent / 1e9
            assert sum(found[key(f"{part}_seconds_sum")] for part in PARTS) == pytest.approx(spent / 1e9, abs=1e-12)
            checked += 1
            assert {found[key(f"{name}_seconds_count")] for name in (*PARTS, "request")} == {checked}
    assert checked > 30
    assert all(observed(metrics, f"{part}_seconds")[1] > 0 for part in PARTS)


@OVERLAP
def test_requests_count_their_preemptions(overlap: bool) -> None:
    events, metrics = flat(rich_run(overlap)), fed(rich_run(overlap))
    preemptions = of(events, SequencePreempted)
    assert observed(metrics, "request_preemptions") == (len(of(events, RequestFinished)), len(preemptions))
    owners = {seq: e.request for e in of(events, RequestArrived) for seq in e.seqs}
    untouched = len(of(events, RequestFinished)) - len({owners[e.seq] for e in preemptions})
    assert collected(metrics)[key("request_preemptions_bucket", le="0.0")] == untouched


@OVERLAP
def test_each_step_is_observed_with_its_kind(overlap: bool) -> None:
    events, metrics = flat(rich_run(overlap)), fed(rich_run(overlap))
    plans = {e.step: e for e in of(events, StepPlanned)}
    took: dict[str, list[int]] = defaultdict(list)
    for e in of(events, StepFinished):
        took[plans[e.step].kind].append(e.t - plans[e.step].t + e.plan_ns)
    assert set(took) == {"decode", "prefill", "mixed"}
    for kind, times in took.items():
        assert observed(metrics, "step_seconds", kind=kind) == (len(times), sum(times) / 1e9)
    host = [e.plan_ns + e.launch_ns + e.collect_ns - e.wait_ns for e in of(events, StepFinished)]
    assert observed(metrics, "step_host_seconds") == (len(host), sum(host) / 1e9)
    assert observed(metrics, "batch_tokens") == (len(host), sum(e.num_tokens for e in of(events, StepFinished)))


def test_a_request_of_several_sequences_is_observed_once_for_the_one_that_ends_last() -> None:
    engine = FakeEngine()
    engine.add(range(9), 7, n=3)
    engine.run()
    metrics = fed([engine.events])
    last = max(e.t for e in engine.of(StatusChanged) if e.new == "FINISHED")
    assert observed(metrics, "request_seconds") == (1, (last - engine.of(RequestArrived)[0].t) / 1e9)
    assert observed(metrics, "time_to_first_token_seconds")[0] == 1
    assert observed(metrics, "inter_token_seconds")[0] == 3 * 6


def test_a_pause_before_the_first_token_takes_no_interval_away() -> None:
    engine = FakeEngine(max_num_seqs=1)
    engine.add(range(9), 3)
    late = engine.add(range(20, 29), 6)
    engine.step()
    engine.pause(late)
    engine.run()
    engine.resume(late)
    engine.run()
    assert observed(fed([engine.events]), "inter_token_seconds")[0] == 2 + 5


def test_a_request_under_way_when_the_reader_joins_gives_its_first_token_but_no_parts() -> None:
    engine = FakeEngine(max_num_seqs=1)
    engine.add(range(9), 5)
    engine.add(range(20, 29), 5)
    engine.step()
    engine.step()
    keyframe = engine.snapshot()
    seen = len(engine.events)
    engine.run()
    metrics = fed([[keyframe], engine.events[seen:]])
    first = token_first(engine, 1)
    assert observed(metrics, "request_seconds")[0] == 0
    assert observed(metrics, "time_to_first_token_seconds") == (1, (first - engine.of(RequestArrived)[1].t) / 1e9)


def test_a_first_token_within_a_gap_is_observed_when_the_keyframe_tells() -> None:
    engine = FakeEngine()
    engine.add(range(9), 5)
    engine.core.flush()
    before = list(engine.events)
    engine.step()
    engine.step()
    keyframe = engine.snapshot()
    seen = len(engine.events)
    engine.run()
    arrived = engine.of(RequestArrived)[0].t
    metrics = Metrics(clock=lambda: 0)
    metrics.apply_all(before)
    metrics.lose()
    metrics.apply_all([keyframe, *engine.events[seen:]])
    assert observed(metrics, "time_to_first_token_seconds") == (1, (token_first(engine, 0) - arrived) / 1e9)
    assert observed(metrics, "request_seconds")[0] == 1


def test_requests_that_ended_in_a_gap_leave_nothing_behind() -> None:
    engine = FakeEngine()
    for number in range(5):
        engine.add(range(number, number + 9), 4)
    engine.step()
    before = list(engine.events)
    engine.run()
    metrics = Metrics(clock=lambda: 0)
    metrics.apply_all(before)
    metrics.lose()
    assert len(metrics._requests.lives.lives) == 5
    metrics.apply_all([engine.snapshot()])
    assert not metrics._requests.lives.lives
    assert not metrics._requests._first_ns


def test_what_is_kept_does_not_grow_with_the_requests_that_ended() -> None:
    engine = FakeEngine()
    metrics = Metrics(clock=lambda: 0)
    engine.core.recorder.subscribe(metrics.apply_all)
    engine.core.flush()
    metrics.apply_all(engine.events)
    sizes = []
    for _ in range(3):
        for number in range(40):
            engine.add(range(number, number + 9), 4)
        engine.run()
        kept = (metrics._requests.lives.lives, metrics._requests._first_ns, metrics._steps._planned)
        families = list(metrics.collect())
        sizes.append((sum(map(len, kept)), len(families), sum(len(family.samples) for family in families)))
    assert sizes[0] == sizes[1] == sizes[2]
    assert sizes[0][0] == 0


def test_the_gen_ai_names_hold_the_same_times() -> None:
    found = {name: number for (name, labels), number in collected(fed(rich_run(True))).items() if name[:6] == "gen_ai"
             and dict(labels)["model"] == "fake"}  # fmt: skip
    own = collected(fed(rich_run(True)))
    events = flat(rich_run(True))
    served = [e for e in of(events, RequestFinished) if e.finish_reason in ("stop", "length")]
    assert found["gen_ai_server_request_duration_seconds_sum"] == own[key("request_seconds_sum")]
    assert found["gen_ai_server_request_duration_seconds_count"] == own[key("request_seconds_count")]
    assert found["gen_ai_server_time_to_first_token_seconds_count"] == len(served)
    several = [e for e in served if e.num_output_tokens > 1]
    assert 0 < found["gen_ai_server_time_per_output_token_seconds_count"] <= len(several)
