"""Each rule of the latency model: which part a time belongs to. docs/latency.md states them."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from fake_engine import FakeEngine
from late_moves import LateMoves
from latency_checks import check_exact, check_whole, latency_of
from nanolens.engine.sampling_params import SamplingParams
from nanolens.telemetry.events import (
    AnyEvent,
    EngineContinued,
    EnginePaused,
    StatusChanged,
    StepFinished,
    StepPlanned,
    StreamStalled,
    WaitReasonChanged,
)
from nanolens.telemetry.latency import PARTS, Breakdown, Latency
from nanolens.telemetry.step_costs import StepCostModel, pairs_of
from random_lives import Driver
from timed_engine import COSTS, timed_engine

MS = 1_000_000


def parts_of(engine: FakeEngine, request: str, model: StepCostModel | None = COSTS) -> dict[str, int]:
    """Where a request's time went; the journal must be whole."""
    engine.core.flush()
    latency = check_whole(engine.events, model)
    return breakdown_of(latency, request).parts


def breakdown_of(latency: Latency, request: str) -> Breakdown:
    return latency.breakdown(latency.tracks.requests[request])


def waits_of(events: Iterable[AnyEvent]) -> dict[int, Counter[str]]:
    """Sequence -> part -> nanoseconds of its waits, the engine's pauses included: from the events alone."""
    since: dict[int, tuple[int, str, str]] = {}  # sequence -> since when, for what, after what
    found: dict[int, Counter[str]] = {}
    for event in events:
        if isinstance(event, StatusChanged | WaitReasonChanged):
            if event.seq in since:
                begin, wait, after = since.pop(event.seq)
                part = {"swap_in": "swap", "engine_paused": "engine_paused"}.get(wait)
                part = part or ("preempted" if after == "preempted" else f"queue_{wait or 'next_step'}")
                found.setdefault(event.seq, Counter())[part] += event.t - begin
            if isinstance(event, WaitReasonChanged):
                since[event.seq] = event.t, event.reason, after
            elif event.new == "WAITING":
                since[event.seq] = event.t, "", event.reason
    return found


@pytest.mark.parametrize("policy", ["fcfs", "priority", "sjf"])
def test_a_wait_is_a_part_by_its_reason_and_all_of_one_after_a_preemption_is_preempted(policy: str) -> None:
    rng = random.Random(4)
    engine, _ = timed_engine(
        num_blocks=12, host_blocks=5, disk_blocks=12, max_num_seqs=4, max_prefill_chunk=5, policy=policy,
        paused_ttl_s=None, max_model_len=48, preemption_mode="swap",
    )  # fmt: skip
    driver = Driver(engine, rng)
    for _ in range(900):
        command = rng.choice(driver.commands())
        if command != driver.engine_pause:
            command()
    driver.drain()
    engine.close()
    latency, whole = check_whole(engine.events), Counter[str]()
    for seq, wanted in waits_of(engine.events).items():
        found: Counter[str] = Counter()
        for rest in latency.tracks.tracks[seq].rests:
            if rest.part != "paused":
                found[rest.part] += rest.end_t - rest.begin_t
        arrival = found["queue_next_step"] - wanted["queue_next_step"]
        assert 0 <= arrival <= 5000  # from the request's arrival to its sequence's
        assert found - Counter(queue_next_step=arrival) == +wanted
        whole += found
    assert {"preempted", "queue_no_blocks", "queue_head_of_line", "queue_next_step"} <= whole.keys()


def test_a_short_pool_is_no_blocks_for_the_head_and_head_of_line_behind_it() -> None:
    engine, _ = timed_engine(num_blocks=10)
    holder = engine.add([1] * 20, max_tokens=16)
    engine.step()
    head, behind = engine.add([2] * 20, max_tokens=1), engine.add([3] * 20, max_tokens=1)
    engine.run()
    waited = parts_of(engine, head)["queue_no_blocks"]
    assert waited > 10 * COSTS.fixed
    assert parts_of(engine, behind)["queue_head_of_line"] >= waited
    assert not any(part.startswith("queue_no") for part in parts_of(engine, holder) if part != "queue_next_step")


def test_the_cap_on_sequences_and_the_budget_of_tokens_are_parts_of_their_own() -> None:
    engine, _ = timed_engine(max_num_seqs=1, num_blocks=100)
    engine.add([1] * 4, max_tokens=9)
    engine.step()
    capped = engine.add([2] * 4, max_tokens=1)
    engine.run()
    assert parts_of(engine, capped)["queue_sequence_cap"] > 5 * COSTS.fixed
    engine, _ = timed_engine(max_num_batched_tokens=16, max_prefill_chunk=16, num_blocks=100)
    engine.add([1] * 64, max_tokens=2)
    late = engine.add([2] * 4, max_tokens=1)
    engine.run()
    assert parts_of(engine, late)["queue_token_budget"] > 3 * COSTS.fixed


def test_a_swap_in_is_swap_also_after_a_preemption() -> None:
    engine, _ = timed_engine(num_blocks=8, host_blocks=16, preemption_mode="swap", max_num_seqs=2)
    LateMoves(engine)
    first, second = engine.add([1] * 8, max_tokens=16), engine.add([2] * 8, max_tokens=16)
    engine.run()
    parts = parts_of(engine, second)
    assert parts["swap"] > 0 and parts["preempted"] > 0 and "recompute" not in parts
    assert "swap" not in parts_of(engine, first)


# Pauses


def test_a_pause_of_the_request_is_its_own_also_while_the_engine_is_paused() -> None:
    engine, clock = timed_engine()
    name = engine.add([1, 2, 3], max_tokens=9)
    engine.step()
    engine.pause(name)
    engine.core.pause_engine("operator")
    clock.now += 50 * MS
    engine.core.continue_engine(0)
    engine.resume(name)
    engine.run()
    parts = parts_of(engine, name)
    assert parts["paused"] >= 50 * MS and parts.get("engine_paused", 0) < MS


def test_a_paused_engine_is_engine_paused_for_who_waits_and_for_who_runs() -> None:
    engine, clock = timed_engine(max_num_seqs=1)
    runs, waits = engine.add([1, 2, 3], max_tokens=9), engine.add([4, 5, 6], max_tokens=9)
    for _ in range(3):
        engine.step()
    engine.core.pause_engine("operator")
    clock.now += 50 * MS
    engine.core.continue_engine(0)
    engine.run()
    for name in (runs, waits):
        assert 50 * MS <= parts_of(engine, name)["engine_paused"] < 51 * MS
        assert parts_of(engine, name)["host_gap"] < MS


def test_steps_that_are_granted_one_by_one_are_the_devices_time() -> None:
    engine, clock = timed_engine()
    name = engine.add([1, 2, 3], max_tokens=6)
    engine.core.pause_engine("operator")
    for _ in range(6):
        clock.now += 50 * MS
        engine.core.continue_engine(1)
        engine.step()
    assert name in engine.outputs
    parts = parts_of(engine, name)
    assert parts["engine_paused"] >= 250 * MS and parts["own_decode"] >= 5 * COSTS.fixed


# The host, and the reader


def test_a_host_that_sleeps_between_steps_is_host_gap() -> None:
    engine, clock = timed_engine()
    name = engine.add([1, 2, 3], max_tokens=6)
    for _ in range(3):
        engine.step()
    clock.now += 70 * MS
    engine.run()
    assert 70 * MS <= parts_of(engine, name)["host_gap"] < 71 * MS


def test_a_callback_that_sleeps_is_host_gap_for_all_who_run() -> None:
    engine, clock = timed_engine(num_blocks=100)

    def sleeps(output: Any) -> None:
        clock.now += 10 * MS

    params = SamplingParams(max_tokens=5, temperature=0.0)
    engine.add_request([1, 2, 3], params, on_output=sleeps, request_id="slow")
    other = engine.add([4, 5, 6], max_tokens=9)
    engine.run()
    assert parts_of(engine, other)["host_gap"] >= 40 * MS
    assert parts_of(engine, "slow")["host_gap"] >= 40 * MS


def test_with_overlap_a_short_hold_of_the_host_costs_nothing() -> None:
    engine, clock = timed_engine(overlap=True)
    name = engine.add([1, 2, 3], max_tokens=20)
    while engine.step():
        clock.now += MS  # less than a step takes
    assert parts_of(engine, name)["host_gap"] < MS


def ended_run() -> tuple[FakeEngine, str, int]:
    """An engine whose one request has ended; its id, and when its sequence ended."""
    engine, _ = timed_engine()
    name = engine.add([1, 2, 3], max_tokens=6)
    engine.run()
    (end,) = [event.t for event in engine.of(StatusChanged) if event.new == "FINISHED"]
    return engine, name, end


def test_a_slow_reader_counts_from_the_end_of_the_sequence_on() -> None:
    engine, name, end = ended_run()
    engine.events += [StreamStalled(end + 30 * MS, name, 40 * MS, 3), StreamStalled(end + 90 * MS, name, 20 * MS, 1)]
    (b,) = check_exact(latency_of(engine.events))
    assert b.parts["back_pressure"] == 90 * MS and b.end_t == end + 90 * MS


def test_a_reader_that_had_caught_up_before_the_end_cost_nothing() -> None:
    engine, name, end = ended_run()
    engine.events += [StreamStalled(end - MS, name, 5 * MS, 3), StreamStalled(end + MS, "another", 5 * MS, 3)]
    (b,) = check_exact(latency_of(engine.events))
    assert "back_pressure" not in b.parts and b.end_t == end


# Prefill, decode and the first token


def test_a_long_prefill_beside_a_decoder_is_interference_by_the_cost_of_its_chunks() -> None:
    engine, _ = timed_engine(num_blocks=200, max_prefill_chunk=64, prefix_cache=False)
    decoder = engine.add([1, 2, 3], max_tokens=30)
    for _ in range(3):
        engine.step()
    engine.add([7] * 256, max_tokens=1)
    engine.run()
    wanted = sum(COSTS.prefill_token * 64 + COSTS.prefill_pair * pairs_of(start, 64) for start in range(0, 256, 64))
    assert parts_of(engine, decoder)["prefill_interference"] == pytest.approx(wanted, rel=1e-6)


def test_who_shares_steps_with_others_that_decode_has_their_decodes_as_batch_cost() -> None:
    engine, _ = timed_engine(num_blocks=200, batching="mixed")
    names = [engine.add([i] * 4, max_tokens=10) for i in range(1, 5)]
    engine.run()
    for name in names:
        parts = parts_of(engine, name)
        keys = sum(4 + i for i in range(1, 10))  # of each decode, from the second token on
        assert parts["batch_cost"] == pytest.approx(3 * (9 * COSTS.decode + keys * COSTS.decode_context), rel=1e-6)
        assert parts["own_decode"] == pytest.approx(
            9 * (COSTS.fixed + COSTS.decode) + keys * COSTS.decode_context, rel=1e-6
        )


def test_the_parts_of_the_first_token_are_those_until_it_came() -> None:
    engine, clock = timed_engine()
    name = engine.add([1] * 40, max_tokens=9)
    engine.step()
    clock.now += 20 * MS
    engine.run()
    b = breakdown_of(check_whole(engine.events, COSTS), name)
    first = min(event.t for event in engine.of(StepFinished))
    assert b.ttft_ns == first - b.begin_t
    assert b.ttft_parts.keys() <= {"queue_next_step", "own_prefill", "host_gap"}
    assert b.ttft_parts["own_prefill"] == b.parts["own_prefill"] and "own_decode" in b.parts


def test_a_request_without_a_token_has_no_ttft() -> None:
    engine, _ = timed_engine(max_num_seqs=1)
    engine.add([1, 2], max_tokens=5)
    waits = engine.add([1, 2], max_tokens=5)
    engine.step()
    engine.abort(waits)
    engine.core.flush()
    b = breakdown_of(check_whole(engine.events), waits)
    assert b.ttft_ns == 0 and b.ttft_parts == {} and b.ended


def test_a_model_that_is_given_divides_in_place_of_the_fitted_one() -> None:
    engine, _ = timed_engine(num_blocks=200)
    names = [engine.add([i] * 4, max_tokens=10) for i in range(1, 5)]
    engine.run()
    free = parts_of(engine, names[0], StepCostModel(fixed=1.0))
    assert "batch_cost" not in free and free["own_decode"] > parts_of(engine, names[0])["own_decode"]


def test_steps_without_any_work_of_a_running_sequence_are_no_part_of_its_own() -> None:
    engine, _ = timed_engine(num_blocks=200, batching="prefill_first", max_prefill_chunk=32, prefix_cache=False)
    decoder = engine.add([1, 2, 3], max_tokens=12)
    for _ in range(3):
        engine.step()
    engine.add([7] * 96, max_tokens=1)
    engine.run()
    alone = [event.step for event in engine.of(StepPlanned) if event.chunks and not event.decodes and event.step > 1]
    lasted = sum(event.device_ns for event in engine.of(StepFinished) if event.step in alone)
    assert len(alone) == 3 and parts_of(engine, decoder)["prefill_interference"] == lasted


def test_pauses_of_the_engine_are_kept_with_their_cause() -> None:
    engine, clock = timed_engine()
    engine.core.pause_engine("operator")
    clock.now += MS
    engine.core.continue_engine(0)
    engine.core.flush()
    (begin,), (end,) = ([event.t for event in engine.of(kind)] for kind in (EnginePaused, EngineContinued))
    assert latency_of(engine.events).tracks.pauses == [(begin, end, "operator")]


def test_blocks_held_are_counted_over_time() -> None:
    engine, _ = timed_engine(num_blocks=12, host_blocks=8, preemption_mode="swap", max_num_seqs=3)
    for i in range(5):
        engine.add([i] * 7, max_tokens=14)
    most = 0
    while engine.step():
        tracks = latency_of(engine.events).tracks.tracks
        for seq in engine.core.book.live_sequences:
            assert tracks[seq.seq_id].num_blocks == sum(entry >= 0 for entry in seq.block_table)
            most = max(most, tracks[seq.seq_id].num_blocks)
    assert most > 3
    assert all(track.num_blocks == 0 for track in latency_of(engine.events).tracks.tracks.values())


def test_the_docs_name_each_part_and_no_other() -> None:
    text = Path(__file__).parents[2].joinpath("docs", "latency.md").read_text(encoding="utf-8")
    table = text.split("## The parts")[1].split("##")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == sorted(PARTS)
