"""How a run's device time is divided: against a slow division step by step, and for those who share nothing."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import pytest

from fake_engine import FakeEngine
from latency_checks import check_whole, latency_of, slow_parts
from nanolens.telemetry.events import AnyEvent, EngineStarted, StatusChanged, StepFinished, StepPlanned
from nanolens.telemetry.latency import Latency
from nanolens.telemetry.step_costs import StepCostModel, pairs_of
from random_lives import Driver
from timed_engine import COSTS, timed_engine

SLOW = ("own", "recompute", "prefill_interference", "batch_cost", "host_gap", "engine_paused")


def random_engine(seed: int, **options: Any) -> FakeEngine:
    """An engine after random commands, all requests ended, with a host that takes its time."""
    rng = random.Random(seed)
    engine, clock = timed_engine(
        **{
            "num_blocks": 14, "host_blocks": 5, "disk_blocks": 12, "max_num_seqs": 5, "max_prefill_chunk": 5,
            "paused_ttl_s": None, "max_model_len": 48, "stretch": lambda plan: rng.uniform(0.8, 1.3),
        }
        | options
    )  # fmt: skip
    driver = Driver(engine, rng)
    for _ in range(1200):
        rng.choice(driver.commands())()
        if rng.random() < 0.1:
            clock.now += rng.randrange(3_000_000)
    driver.drain()
    engine.close()
    return engine


@pytest.mark.parametrize(
    ("overlap", "mode", "batching"),
    itertools.product((False, True), ("recompute", "swap"), ("mixed", "prefill_first")),
)
def test_sums_over_ranges_give_what_a_division_step_by_step_gives(overlap: bool, mode: str, batching: str) -> None:
    for seed in range(6):
        engine = random_engine(seed, overlap=overlap, preemption_mode=mode, batching=batching)
        check_against_slow(engine, least=25)


def check_against_slow(engine: FakeEngine, least: int) -> None:
    latency = check_whole(engine.events)
    slow = slow_parts(engine.events, engine.runner.plans, latency.model)
    assert len(slow) >= least and all(sum(sums[i] for sums in slow.values()) > 0 for i in (0, 2, 3, 4, 5))
    for seq, track in latency.tracks.tracks.items():
        parts: Counter[str] = Counter()
        for run in track.runs:
            parts.update(latency.divide(run, run.begin_t, run.end_t))
        parts["own"] = parts["own_decode"] + parts["own_prefill"]
        for name, wanted in zip(SLOW, slow[seq], strict=True):
            assert abs(parts[name] - wanted) <= 8 * max(len(track.runs), 1), (seq, name, parts, slow[seq])


def test_a_request_alone_has_no_interference_and_no_batch_cost() -> None:
    for seed in range(25):
        rng = random.Random(seed)
        engine, clock = timed_engine(max_prefill_chunk=7, overlap=bool(seed % 2), num_blocks=128)
        for _ in range(6):
            engine.add([rng.randrange(900) for _ in range(rng.randint(2, 60))], max_tokens=rng.randint(1, 90))
            engine.run()
            clock.now += rng.randrange(10_000_000)
        engine.close()
        for model in (None, COSTS, StepCostModel(decode_context=3.0), StepCostModel()):
            for b in check_whole(engine.events, model).breakdowns():
                assert not b.parts.keys() & {"prefill_interference", "batch_cost", "recompute"}, b.parts


def two_steps(*, chunks: list[tuple[int, int, int]], decodes: int) -> list[AnyEvent]:
    """Sequence 0 of a prompt of 4 decodes in step 2 (1000 ns) beside the chunks and decodes given; 1 is another one."""
    from nanolens.telemetry.events import BlocksAllocated, RequestArrived

    return [
        EngineStarted(0, "run", 0, 1, "0", "fake", {"policy": "fcfs"}, 64, 4, 100, 64),
        *(RequestArrived(0, f"r{seq}", [seq], 4, 9, 0, {}) for seq in (0, 1)),
        *(StatusChanged(0, 0, seq, "", "WAITING", "arrived", f"r{seq}") for seq in (0, 1)),
        *(StatusChanged(0, 1, seq, "WAITING", "RUNNING", "admitted") for seq in (0, 1)),
        *(BlocksAllocated(0, 1, seq, [], [2 * seq, 2 * seq + 1], [], 62 - 2 * seq) for seq in (0, 1)),
        StepPlanned(0, 1, "prefill", [(0, 0, 4), *([(1, 0, 4)] if decodes == 2 else [])], 0, [], 0, 2, 60),
        StepFinished(100, 1, 0, 0, 100, 0, 4, 1, []),
        StepPlanned(100, 2, "mixed", chunks, decodes, [], 0, 2, 60),
        StepFinished(1200, 2, 0, 0, 1000, 0, 4, 1, []),
    ]


MODEL = StepCostModel(fixed=100.0, prefill_token=30.0, prefill_pair=2.0, decode=20.0, decode_context=4.0)


def second_step(events: list[AnyEvent], seq: int) -> dict[str, int]:
    latency = Latency(latency_of(events).tracks, MODEL)
    run = latency.tracks.tracks[seq].runs[-1]
    return latency.divide(run, 100, 1200)


def test_a_step_is_divided_in_proportion_to_the_costs_of_its_work() -> None:
    events = two_steps(chunks=[(1, 0, 4)], decodes=1)
    own, chunk = 100 + 20 + 4 * 5, 4 * 30 + 2 * pairs_of(0, 4)
    whole = own + chunk
    assert second_step(events, 0) == {
        "host_gap": 100, "own_decode": 1000 - 1000 * chunk // whole, "prefill_interference": 1000 * chunk // whole
    }  # fmt: skip
    of_other = second_step(events, 1)
    mine = 40 * 1000 / whole  # the decode of the other one; the fixed cost is its own
    assert of_other["batch_cost"] == int(mine) and of_other["own_prefill"] == 1000 - int(mine)


def test_two_that_decode_have_the_fixed_cost_each_and_the_others_decode_as_batch_cost() -> None:
    parts = second_step(two_steps(chunks=[], decodes=2), 0)
    assert parts == {"host_gap": 100, "own_decode": 1000 - 1000 * 40 // 180, "batch_cost": 1000 * 40 // 180}


def test_who_computes_nothing_in_a_step_of_chunks_alone_has_interference() -> None:
    parts = second_step(two_steps(chunks=[(1, 0, 4)], decodes=0), 0)
    assert parts == {"host_gap": 100, "prefill_interference": 1000}


def test_a_part_of_a_window_gets_its_part_of_the_device_time() -> None:
    latency = Latency(latency_of(two_steps(chunks=[], decodes=2)).tracks, MODEL)
    run = latency.tracks.tracks[0].runs[-1]
    before, after = latency.divide(run, 100, 700), latency.divide(run, 700, 1200)
    assert before == {"host_gap": 100, "own_decode": 389, "batch_cost": 111}
    assert after == {"own_decode": 389, "batch_cost": 111}


def test_tokens_that_were_computed_before_are_recompute() -> None:
    engine, _ = timed_engine(num_blocks=12, max_num_seqs=4, preemption_mode="recompute", prefix_cache=False)
    for i in range(4):
        engine.add([10 + i] * 8, max_tokens=12)
    engine.run()
    engine.close()
    latency = check_whole(engine.events)
    again = [b for b in latency.breakdowns() if b.track.preemptions]
    assert again and all(b.parts["recompute"] > 1_000_000 and b.parts["preempted"] > 0 for b in again)
    never = [b for b in latency.breakdowns() if not b.track.preemptions]
    assert never and not any("recompute" in b.parts for b in never)
