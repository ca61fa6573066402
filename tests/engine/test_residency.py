"""Who moves out under pressure, where to, and how it comes back: in order, no more than helps, softly failing."""

from __future__ import annotations

from typing import Any

import pytest

from fake_engine import FakeEngine, solo
from late_moves import LateMoves
from nanolens.engine.plan import BlockMove
from nanolens.engine.sequence import SequenceStatus
from nanolens.telemetry.events import (
    BlocksFreed,
    BlocksSwapped,
    PrefixMatched,
    SequencePreempted,
    StatusChanged,
    StepPlanned,
    SwapFinished,
    WaitReasonChanged,
)

PAUSED, WAITING, RUNNING = SequenceStatus.PAUSED, SequenceStatus.WAITING, SequenceStatus.RUNNING
each_overlap = pytest.mark.parametrize("overlap", [False, True], ids=["in_turn", "overlapped"])


def prompt(number: int, length: int = 7) -> list[int]:
    """A prompt that shares nothing with another number's."""
    return list(range(100 * number, 100 * number + length))


def with_paused(count: int, overlap: bool = False, **options: Any) -> tuple[FakeEngine, list[str]]:
    """An engine with paused sequences "p0", "p1", ... of two blocks each (7 tokens of prompt, 1 generated)."""
    engine = FakeEngine(overlap=overlap, **({"num_blocks": 2 * count, "prefix_cache": False} | options))
    names = []
    for i in range(count):
        names.append(engine.add(prompt(i), 1, on_stop="pause"))
        engine.run()
    assert all(engine.seq(name).status is PAUSED for name in names)
    return engine, names


def press(engine: FakeEngine, tokens: int, number: int = 9) -> str:
    """Run a request whose prompt and one token take so many tokens' blocks."""
    name = engine.add(prompt(number, tokens - 1), 1)
    engine.run()
    assert engine.ids(name) == solo(prompt(number, tokens - 1), 1)
    return name


def places(engine: FakeEngine, names: list[str]) -> list[str]:
    host = engine.core.blocks.slots.host_blocks
    return [engine.seq(name).snapshot(host).residency for name in names]


def swaps(engine: FakeEngine) -> list[tuple[str, int, int]]:
    """(kind, sequence, blocks) of the moves so far."""
    return [(e.kind, e.seq, len(e.sources)) for e in engine.of(BlocksSwapped)]


def go_on(engine: FakeEngine, names: list[str], count: int = 3) -> None:
    """Resume and finish all; each has the tokens that it has alone."""
    for name in names:
        engine.resume(name, max_tokens=count)
    engine.run()
    for number, name in enumerate(names):
        if name in engine.core.requests:
            engine.finish(name)
        assert engine.ids(name) == solo(prompt(number), 1 + count)
    engine.check_empty()


# Out


@each_overlap
def test_those_paused_the_longest_move_out_first_and_no_more_than_needed(overlap: bool) -> None:
    engine, names = with_paused(4, overlap, host_blocks=8)
    press(engine, 8)
    assert swaps(engine) == [("out", 0, 2)]
    assert places(engine, names) == ["host", "device", "device", "device"]
    press(engine, 16)
    assert swaps(engine) == [("out", 0, 2), ("out", 1, 2)]
    go_on(engine, names)


def test_a_pause_is_as_old_as_its_last_one() -> None:
    engine, names = with_paused(3, host_blocks=6)
    engine.resume(names[0], max_tokens=1)
    engine.run()  # paused again, now the last
    engine.finish(names[2])
    press(engine, 16)
    assert swaps(engine)[0][:2] == ("out", 1)


def test_running_sequences_are_not_preempted_while_paused_ones_can_move() -> None:
    engine, names = with_paused(2, host_blocks=4, num_blocks=7)
    running = engine.add(prompt(5), 12)
    engine.run()
    assert not engine.of(SequencePreempted) and [kind for kind, _, _ in swaps(engine)] == ["out"]
    assert engine.ids(running) == solo(prompt(5), 12)
    go_on(engine, names)


def test_waiting_sequences_give_up_their_blocks_from_the_end_of_the_queue_and_after_the_paused() -> None:
    engine, names = with_paused(3, host_blocks=6, num_blocks=9, max_num_seqs=1)
    running = engine.add(prompt(5, 8), 27)  # nine blocks in the end
    engine.step()
    engine.resume(names[1], max_tokens=3)
    engine.resume(names[2], max_tokens=3)
    engine.run()
    outs = [seq for kind, seq, _ in swaps(engine) if kind == "out"]
    assert outs[:3] == [0, 2, 1]
    assert engine.ids(running) == solo(prompt(5, 8), 27)
    assert not engine.of(SequencePreempted)
    for name in names[1:]:
        engine.finish(name)
        assert engine.ids(name) == solo(prompt(names.index(name)), 4)


@each_overlap
def test_what_a_running_sequence_shares_stays_on_the_device(overlap: bool) -> None:
    engine = FakeEngine(num_blocks=7, host_blocks=8, overlap=overlap)
    common = prompt(0, 8)
    paused = engine.add([*common, 1], 1, on_stop="pause")
    engine.run()
    running = engine.add([*common, 2], 9)
    engine.step()
    seq = engine.seq(paused)
    shared = seq.block_table[:2]
    assert engine.seq(running).block_table[:2] == shared
    other = engine.add(prompt(3, 14), 1)
    engine.run()
    [out] = [e for e in engine.of(BlocksSwapped) if e.kind == "out"][:1]
    assert len(out.sources) == 1 and not set(out.sources) & set(shared)
    assert engine.ids(running) == solo([*common, 2], 9) and engine.ids(other) == solo(prompt(3, 14), 1)
    engine.resume(paused, max_tokens=3)
    engine.run()
    engine.finish(paused)
    assert engine.ids(paused) == solo([*common, 1], 4)
    engine.check_empty()


def test_what_only_paused_ones_share_moves_out_when_the_rest_was_not_enough() -> None:
    engine = FakeEngine(num_blocks=8, host_blocks=12)
    common = prompt(0, 8)
    names = []
    for i in range(2):
        names.append(engine.add([*common, i], 1, on_stop="pause"))
        engine.run()
    assert engine.seq(names[0]).block_table[:2] == engine.seq(names[1]).block_table[:2]
    press(engine, 28)
    assert swaps(engine) == [("out", 0, 1), ("out", 1, 1), ("out", 0, 2), ("out", 1, 2)]
    for i, name in enumerate(names):
        engine.resume(name, max_tokens=2)
        engine.run()
        engine.finish(name)
        assert engine.ids(name) == solo([*common, i], 3)
    engine.check_empty()


@each_overlap
def test_nothing_moves_where_that_would_not_be_enough(overlap: bool) -> None:
    engine = FakeEngine(num_blocks=10, host_blocks=10, overlap=overlap, prefix_cache=False)
    paused = engine.add(prompt(0), 1, on_stop="pause")
    engine.run()
    running = engine.add(prompt(1, 14), 9)
    engine.step()
    late = engine.add(prompt(2, 27), 1)  # seven blocks: four are free, two can move
    for _ in range(3):
        engine.step()
    assert engine.seq(late).wait_reason == "no_blocks" and swaps(engine) == []
    assert places(engine, [paused]) == ["device"]
    engine.run()
    assert engine.ids(late) == solo(prompt(2, 27), 1) and engine.ids(running) == solo(prompt(1, 14), 9)


# Host, disk, nowhere


@each_overlap
def test_a_full_host_moves_its_oldest_down_to_the_file(overlap: bool) -> None:
    engine, names = with_paused(4, overlap, host_blocks=2, disk_blocks=8)
    press(engine, 8)
    assert places(engine, names)[:1] == ["host"]
    press(engine, 16)
    assert swaps(engine) == [("out", 0, 2), ("down", 0, 2), ("out", 1, 2)]
    assert places(engine, names) == ["disk", "host", "device", "device"]
    press(engine, 32)
    assert places(engine, names) == ["disk", "disk", "disk", "host"]
    go_on(engine, names)


def test_no_more_moves_down_than_has_to() -> None:
    engine, names = with_paused(4, host_blocks=4, disk_blocks=8)
    press(engine, 24)
    assert swaps(engine) == [("out", 0, 2), ("out", 1, 2), ("down", 0, 2), ("out", 2, 2)]
    assert places(engine, names) == ["disk", "host", "host", "device"]
    go_on(engine, names)


def test_without_host_memory_it_goes_to_the_file_and_without_room_there_nowhere() -> None:
    engine, names = with_paused(3, disk_blocks=3)
    press(engine, 20)
    assert places(engine, names) == ["disk", "none", "none"]
    lost = [(e.seq, e.lost) for e in engine.of(BlocksFreed) if e.lost]
    assert lost == [(1, 7), (2, 7)]
    assert engine.core.recorder.totals.counts["dropped_tokens"] == 14
    go_on(engine, names)


def test_what_does_not_fit_into_host_memory_goes_to_the_file_in_one_piece() -> None:
    engine, names = with_paused(2, host_blocks=1, disk_blocks=4)
    press(engine, 16)
    assert places(engine, names) == ["disk", "disk"]
    assert len(engine.core.blocks.slots.free_host) == 1
    go_on(engine, names)


def test_without_a_swap_space_it_is_dropped_and_found_again_in_the_cache_if_it_can_be() -> None:
    engine, names = with_paused(2, prefix_cache=True, num_blocks=6)
    press(engine, 16)
    assert places(engine, names) == ["none", "device"]
    engine.resume(names[0], max_tokens=3)
    engine.run()
    [again] = [e for e in engine.of(PrefixMatched) if e.recompute]
    assert again.seq == 0 and again.queried == 8
    engine.finish(names[0])
    assert engine.ids(names[0]) == solo(prompt(0), 4)


def test_blocks_that_are_still_cached_come_back_without_a_move() -> None:
    engine, names = with_paused(1, prefix_cache=True, num_blocks=4, host_blocks=4)
    engine.core.scheduler.residency.vacate(4, 0, ())
    assert places(engine, names) == ["host"]
    engine.run()
    engine.resume(names[0], append=prompt(7, 4), max_tokens=1)
    engine.run()
    [back] = [e for e in engine.of(BlocksSwapped) if e.kind == "in"]
    assert len(back.cached) == 1 and len(back.targets) == 2  # the full block was still there
    engine.finish(names[0])
    assert engine.ids(names[0])[1:] == solo([*prompt(0), *solo(prompt(0), 1), *prompt(7, 4)], 1)
    engine.check_empty()


# Back


@each_overlap
@pytest.mark.parametrize("delay", [0, 1, 4])
def test_it_waits_for_its_blocks_and_the_others_do_not(delay: int, overlap: bool) -> None:
    engine, names = with_paused(3, overlap, host_blocks=6, num_blocks=8)
    press(engine, 28)
    assert places(engine, names) == ["host", "host", "host"]
    runs = engine.add(prompt(5), 8)
    engine.step()
    engine.runner.move_delay = delay
    engine.resume(names[0], max_tokens=3)
    assert engine.seq(names[0]).status is WAITING
    behind = engine.add(prompt(6, 3), 1)
    engine.run()
    assert engine.ids(runs) == solo(prompt(5), 8) and engine.ids(behind) == solo(prompt(6, 3), 1)
    reasons = [e.reason for e in engine.of(WaitReasonChanged) if e.seq == 0]
    assert reasons[-1] == "swap_in"
    events = engine.of(object)
    back = next(i for i, e in enumerate(events) if isinstance(e, BlocksSwapped) and e.kind == "in")
    told = next(i for i, e in enumerate(events) if isinstance(e, SwapFinished) and e.move == events[back].move)
    admitted = next(
        i for i, e in enumerate(events) if isinstance(e, StatusChanged) and e.reason == "resumed" and e.new == "RUNNING"
    )
    assert back < told < admitted
    steps_meanwhile = [e for e in events[back:told] if isinstance(e, StepPlanned) and e.decodes]
    assert len(steps_meanwhile) >= min(delay, 3)
    go_on_from = engine.seq(names[0])
    assert go_on_from.status is PAUSED and engine.core.recorder.totals.counts["dropped_tokens"] == 0


def test_with_nothing_else_to_do_the_engine_waits_for_the_blocks() -> None:
    engine, names = with_paused(1, host_blocks=2, num_blocks=4)
    press(engine, 16)
    engine.runner.move_delay = 3
    engine.resume(names[0], max_tokens=2)
    engine.run()
    assert engine.of(StepPlanned)[-3].kind == "moves"
    engine.finish(names[0])
    assert engine.ids(names[0]) == solo(prompt(0), 3)


def test_moves_that_are_in_flight_alone_are_read_when_the_engine_pauses() -> None:
    engine, names = with_paused(1, True, host_blocks=2, num_blocks=4)
    press(engine, 16)
    engine.resume(names[0], max_tokens=2)
    engine.step()
    assert engine.of(StepPlanned)[-1].kind == "moves" and engine.runner.in_flight == 1
    engine.pause_engine("operator")
    assert engine.runner.in_flight == 0
    engine.continue_engine()
    engine.run()
    engine.finish(names[0])
    assert engine.ids(names[0]) == solo(prompt(0), 3)


@each_overlap
@pytest.mark.parametrize("how", ["abort", "pause", "pause, abort", "pause, resume", "die"])
def test_one_that_is_on_its_way_back_may_be_stopped(how: str, overlap: bool) -> None:
    engine, names = with_paused(2, overlap, host_blocks=4, num_blocks=6)
    LateMoves(engine)
    press(engine, 24)
    runs = engine.add(prompt(5, 3), 9)
    engine.step()
    engine.runner.move_delay = 2
    engine.resume(names[0], max_tokens=2)
    engine.step()
    seq = engine.seq(names[0])
    assert seq.move_in and seq.status is WAITING and not seq.is_resident
    if how == "die":
        engine.die("enough")
        engine.check_empty()
        return
    for what in how.split(", "):
        getattr(engine, what)(names[0])
    if "abort" in how:
        assert names[0] in engine.outputs and not seq.move_in
        taken = engine.add(prompt(6, 14), 4)  # writes into the blocks at once
        engine.run()
        assert engine.ids(taken) == solo(prompt(6, 14), 4)
    engine.run()
    assert engine.ids(runs) == solo(prompt(5, 3), 9)
    for number, name in enumerate(names):
        if name in engine.core.requests:
            if engine.seq(name).num_read_output_tokens == 1:
                engine.resume(name, max_tokens=2)
                engine.run()
            engine.finish(name)
            assert engine.ids(name) == solo(prompt(number), 3)
    engine.check_empty()


@each_overlap
def test_waiting_sequences_that_hold_all_blocks_do_not_stand_in_each_others_way(overlap: bool) -> None:
    engine, names = with_paused(4, overlap, host_blocks=0, num_blocks=8, max_num_seqs=4)
    for number, name in enumerate(names):  # each is resident and needs two blocks more: none is free
        engine.resume(name, append=prompt(5 + number, 5), max_tokens=3)
    assert {engine.seq(name).status for name in names} == {WAITING} and engine.core.blocks.num_free == 0
    engine.run()
    for number, name in enumerate(names):
        engine.finish(name)
        whole = [*prompt(number), *solo(prompt(number), 1), *prompt(5 + number, 5)]
        assert engine.ids(name) == solo(prompt(number), 1) + solo(whole, 3)
    engine.check_empty()


@each_overlap
def test_a_resume_does_not_overtake_a_more_urgent_one_that_waits_for_blocks(overlap: bool) -> None:
    engine = FakeEngine(num_blocks=8, policy="priority", prefix_cache=False, overlap=overlap)
    paused = engine.add(prompt(0), 1, on_stop="pause", priority=5)
    engine.run()
    running = engine.add(prompt(1, 9), 3)
    engine.step()
    head = engine.add(prompt(2, 22), 1)  # six blocks: three are free, and two can be
    engine.step()
    assert engine.seq(head).wait_reason == "no_blocks" and engine.core.blocks.num_free == 3
    engine.resume(paused, max_tokens=2)
    assert engine.seq(paused).status is WAITING
    engine.run()
    engine.finish(paused)
    order = [e.seq for e in engine.of(StatusChanged) if e.new == "RUNNING"]
    assert order == [0, 1, 2, 0]
    assert engine.ids(running) == solo(prompt(1, 9), 3) and engine.ids(paused) == solo(prompt(0), 3)
    engine.check_empty()


@each_overlap
def test_an_urgent_one_takes_the_blocks_of_one_that_has_just_come_back(overlap: bool) -> None:
    """While blocks are being filled nobody can have them: that it was in vain then must not be the last word."""
    engine, names = with_paused(1, overlap, host_blocks=4, num_blocks=6, policy="priority")
    LateMoves(engine)
    press(engine, 24)
    engine.runner.move_delay = 3
    engine.resume(names[0], max_tokens=3)
    engine.add(prompt(5, 3), 1, priority=-5)
    engine.step()
    assert engine.seq(names[0]).move_in
    urgent = engine.add(prompt(6, 22), 2, priority=-1)
    engine.run()
    assert engine.ids(urgent) == solo(prompt(6, 22), 2)
    assert [kind for kind, seq, _ in swaps(engine) if seq == 0] == ["out", "in", "out", "in"]
    engine.finish(names[0])
    assert engine.ids(names[0]) == solo(prompt(0), 4)
    engine.check_empty()


@each_overlap
@pytest.mark.parametrize("slots", [{"host_blocks": 8}, {"host_blocks": 3}, {"disk_blocks": 5}, {}])
def test_many_that_take_turns_in_a_small_pool_all_get_on(slots: dict[str, int], overlap: bool) -> None:
    engine, names = with_paused(6, overlap, num_blocks=5, **slots)
    for turn in range(3):
        for name in names:
            engine.resume(name, max_tokens=2)
        engine.run()
        assert {engine.seq(name).num_read_output_tokens for name in names} == {3 + 2 * turn}

    for number, name in enumerate(names):
        engine.finish(name)
        assert engine.ids(name) == solo(prompt(number), 7)
    engine.check_empty()


def test_the_head_of_the_queue_waits_for_a_paused_engine() -> None:
    engine = FakeEngine()
    engine.pause_engine()
    names = [engine.add(prompt(i), 2) for i in range(2)]
    assert not engine.step() and not engine.has_work
    assert [engine.seq(name).wait_reason for name in names] == ["engine_paused", "head_of_line"]
    engine.continue_engine()
    engine.run()
    assert [engine.ids(name) for name in names] == [solo(prompt(i), 2) for i in range(2)]


def test_a_paused_engine_brings_nothing_back() -> None:
    engine, names = with_paused(1, host_blocks=2, num_blocks=4)
    press(engine, 16)
    engine.pause_engine()
    engine.resume(names[0], max_tokens=2)
    assert not engine.step()
    assert places(engine, names) == ["host"] and engine.seq(names[0]).wait_reason == "engine_paused"
    engine.continue_engine()
    engine.run()
    engine.finish(names[0])
    assert engine.ids(names[0]) == solo(prompt(0), 3)


# Preemption: swap, recompute, or the cheaper


def preempting(mode: str, overlap: bool = False, **options: Any) -> tuple[FakeEngine, list[str]]:
    """An engine with two running sequences whose pool is about to be too small."""
    own = {"num_blocks": 6, "host_blocks": 6, "prefix_cache": False} | options
    engine = FakeEngine(preemption_mode=mode, overlap=overlap, **own)
    return engine, [engine.add(prompt(i, 9), 10) for i in range(2)]


@each_overlap
def test_a_swapped_out_victim_goes_on_where_it_was(overlap: bool) -> None:
    engine, names = preempting("swap", overlap)
    engine.run()
    assert [engine.ids(name) for name in names] == [solo(prompt(i, 9), 10) for i in range(2)]
    [preempted] = engine.of(SequencePreempted)
    assert (preempted.mode, preempted.seq, preempted.by) == ("swap", 1, 0)
    assert preempted.kept >= 9 and preempted.num_tokens == (1 if overlap else 0)
    again = [c for e in engine.of(StepPlanned) if e.step > preempted.step for c in e.chunks if c[0] == 1]
    assert again == [(1, preempted.kept, 1)]  # the token that was sampled last
    events = [type(e) for e in engine.of(object) if getattr(e, "seq", -1) == 1]
    at = events.index(SequencePreempted)
    assert events[at + 1 : at + 3] == [StatusChanged, BlocksSwapped]
    engine.check_empty()


def test_a_chunk_that_is_in_flight_does_not_count_as_kept() -> None:
    engine = FakeEngine(
        num_blocks=8, host_blocks=8, overlap=True, max_num_seqs=1, max_prefill_chunk=4, policy="priority",
        preemption_mode="swap",
    )  # fmt: skip
    slow = engine.add(prompt(0, 20), 2, priority=5)
    engine.step()
    engine.step()  # positions 0 to 3 are read, 4 to 7 in flight
    assert engine.seq(slow).num_computed_tokens == 8
    fast = engine.add(prompt(1), 2, priority=0)
    engine.step()
    [preempted] = engine.of(SequencePreempted)
    assert (preempted.mode, preempted.kept, preempted.num_tokens) == ("swap", 4, 4)
    engine.run()
    assert engine.ids(slow) == solo(prompt(0, 20), 2) and engine.ids(fast) == solo(prompt(1), 2)


@pytest.mark.parametrize(
    ("swap_ns", "prefill_ns", "mode"),
    [(1.0, 1e9, "swap"), (1e9, 1.0, "recompute"), (0.0, 1e9, "recompute"), (1.0, 0.0, "swap")],
)
def test_auto_takes_what_was_measured_to_be_cheaper(swap_ns: float, prefill_ns: float, mode: str) -> None:
    engine, names = preempting("auto")
    residency = engine.core.scheduler.residency
    engine.step()
    residency.swap_ns_per_block, residency.prefill_ns_per_token = swap_ns, prefill_ns or 1.0
    engine.run()
    assert [event.mode for event in engine.of(SequencePreempted)] == [mode]
    assert [engine.ids(name) for name in names] == [solo(prompt(i, 9), 10) for i in range(2)]


def test_auto_weighs_both_ways_of_each_block_against_each_token() -> None:
    engine = FakeEngine(preemption_mode="auto", host_blocks=8)
    name = engine.add(prompt(0, 12), 4)
    engine.step()
    residency, seq = engine.core.scheduler.residency, engine.seq(name)
    assert len(seq.block_table) == 3
    residency.prefill_ns_per_token = 10.0
    for swap_ns, swaps_out in ((19.9, True), (20.0, False)):  # 2 * 3 * 20 = 12 * 10
        residency.swap_ns_per_block = swap_ns
        room = residency.slots_to_preempt(seq, 12, 0)
        assert (room is not None) == swaps_out
        for slot in room[1] if room else ():
            engine.core.blocks.slots.give(slot)


def test_what_moves_and_prefills_cost_is_measured() -> None:
    engine, names = with_paused(1, host_blocks=2, num_blocks=4)
    residency = engine.core.scheduler.residency
    assert residency.swap_ns_per_block == 1 and residency.prefill_ns_per_token > 0
    press(engine, 16)
    assert residency.swap_ns_per_block == pytest.approx(0.9 * 1 + 0.1 * 500)  # a thousand for two blocks
    go_on(engine, names)


# Moves that fail


@each_overlap
@pytest.mark.parametrize("kind", ["out", "in", "down"])
def test_a_failed_move_costs_only_its_kv(kind: str, overlap: bool) -> None:
    engine, names = with_paused(4, overlap, host_blocks=2, disk_blocks=8)
    failed: list[int] = []

    def fail(move: BlockMove) -> str:
        if move.kind != kind or failed:
            return ""
        failed.append(move.seq_id)
        return "the disk is gone"

    engine.runner.fail_move = fail
    press(engine, 8)
    press(engine, 16)
    for name in names:
        engine.resume(name, max_tokens=3)
    engine.run()
    assert failed
    [bad] = [e for e in engine.of(SwapFinished) if e.error == "the disk is gone"]
    assert bad.seq == failed[0]
    assert [e.seq for e in engine.of(BlocksFreed) if e.lost] == failed
    assert engine.core.recorder.totals.counts["swap_failures"] == 1
    for number, name in enumerate(names):
        engine.finish(name)
        assert engine.outputs[name].error is None
        assert engine.ids(name) == solo(prompt(number), 4)
    engine.check_empty()


@each_overlap
def test_where_no_move_ever_succeeds_all_is_computed_again(overlap: bool) -> None:
    engine, names = with_paused(4, overlap, host_blocks=3, disk_blocks=5, num_blocks=6)
    engine.runner.fail_move = lambda move: "no"
    press(engine, 16)
    go_on(engine, names, 6)
    assert engine.core.recorder.totals.counts["swap_failures"] > 0


@each_overlap
def test_a_victim_whose_move_out_fails_is_computed_again(overlap: bool) -> None:
    engine, names = preempting("swap", overlap)
    engine.runner.fail_move = lambda move: "no" if move.kind == "out" else ""
    engine.run()
    assert [engine.ids(name) for name in names] == [solo(prompt(i, 9), 10) for i in range(2)]
    assert engine.of(SwapFinished)[0].error == "no" and all(engine.outputs[name].error is None for name in names)
    engine.check_empty()


def test_a_move_of_one_that_has_ended_may_fail_without_harm() -> None:
    engine, names = with_paused(2, host_blocks=4, num_blocks=4)
    engine.runner.move_delay = 2
    engine.runner.fail_move = lambda move: "no"
    engine.add(prompt(9), 3)
    engine.step()
    assert [kind for kind, _, _ in swaps(engine)] == ["out"]
    engine.abort(names[0])
    engine.run()
    assert {e.error for e in engine.of(SwapFinished)} == {"no"}
    engine.abort(names[1])
    engine.check_empty()
