"""Everything that can break in a step: who ends in ERROR with it, who goes on, and that nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fake_engine import FakeEngine, solo
from nanolens.engine import faults
from nanolens.engine.outputs import Delta, RequestOutput
from nanolens.engine.plan import BlockMove, StepPlan
from nanolens.engine.sampling_params import SamplingParams
from nanolens.errors import EngineDead, OutOfDeviceMemory
from nanolens.telemetry.audit import Audit
from nanolens.telemetry.events import (
    BlocksFreed,
    CallbackFailed,
    EngineError,
    EngineStopped,
    RequestFinished,
    StatusChanged,
    StepFinished,
    StepPlanned,
    StepRetried,
    SwapFinished,
)
from real_engine import greedy, prompt_of, recorded, tiny_llm

OVERLAP = pytest.mark.parametrize("overlap", [False, True], ids=["serial", "overlap"])
COUNT = 10  # tokens that each request here generates
OUT_OF_MEMORY = OutOfDeviceMemory("16 MiB are missing")


def prompt(number: int) -> list[int]:
    return list(range(20 * number, 20 * number + 6))


def add(engine: FakeEngine, count: int, first: int = 0, **params: Any) -> list[str]:
    return [engine.add(prompt(first + i), COUNT, **params) for i in range(count)]


def steps(engine: FakeEngine, count: int) -> None:
    for _ in range(count):
        engine.step()


def check(engine: FakeEngine, names: list[str], failed: dict[int, str]) -> None:
    """Run to the end. Those in `failed` (number -> start of the error) failed, the others gave what they give alone,
    nothing is left, and the next request works.
    """
    engine.run()
    for i, name in enumerate(names):
        output = engine.outputs[name]
        if i in failed:
            assert output.error is not None and output.error.startswith(failed[i])
            assert {each.finish_reason for each in output.outputs} == {"error"}
        else:
            assert output.error is None and engine.ids(name) == solo(prompt(i), COUNT)
    assert {event.seq for event in engine.of(StatusChanged) if event.new == "ERROR"} == set(failed)
    engine.check_empty()
    assert engine.runner.in_flight == 0
    again = engine.add(prompt(40), COUNT)
    engine.run()
    assert engine.ids(again) == solo(prompt(40), COUNT)
    engine.check_empty()


def fails(engine: FakeEngine, error: Exception, *launches: int) -> None:
    """Let launches fail, by their number from now on; halves count too."""
    seen = [0]

    def fail(plan: StepPlan) -> Exception | None:
        seen[0] += 1
        return error if seen[0] in launches else None

    engine.runner.fail_launch = fail


def fail_collect(engine: FakeEngine, *collects: int) -> None:
    """Let readings fail, by their number from now on."""
    seen, collect = [0], engine.runner.collect

    def read(handle: Any) -> Any:
        seen[0] += 1
        result = collect(handle)
        if seen[0] in collects:
            raise RuntimeError("it can't be read")
        return result

    engine.runner.collect = read  # type: ignore[method-assign]


def retries(engine: FakeEngine) -> list[tuple[int, str, int]]:
    return [(event.step, event.error, event.parts) for event in engine.of(StepRetried)]


# Out of memory


@OVERLAP
@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_decode_that_does_not_fit_is_launched_again_in_halves_and_nobody_notices(count: int, overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)
    names = add(engine, count)
    steps(engine, 4)
    fails(engine, OUT_OF_MEMORY, 1)
    check(engine, names, {})
    assert retries(engine) == [(5, "OutOfDeviceMemory: 16 MiB are missing", 2)]
    finished = next(event for event in engine.of(StepFinished) if event.step == 5)
    assert (finished.num_tokens, finished.num_sampled, finished.wasted) == (count, count, [])
    assert not engine.of(EngineError)
    halves = [plan.sequences for plan in engine.runner.plans if plan.step == 5]
    assert [len(half) for half in halves] == [count // 2, count - count // 2]


@OVERLAP
def test_prefills_and_decodes_that_do_not_fit_together_are_parted(overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)
    names = add(engine, 2)
    steps(engine, 3)
    names += add(engine, 2, first=2)
    fails(engine, OUT_OF_MEMORY, 1)
    check(engine, names, {})
    assert [event.kind for event in engine.of(StepPlanned) if event.step == 4] == ["mixed"]
    assert [event[0] for event in retries(engine)] == [4]


@OVERLAP
def test_a_chunk_that_does_not_fit_is_cut_in_two(overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)
    fails(engine, OUT_OF_MEMORY, 1)
    check(engine, add(engine, 1), {})
    assert [event[0] for event in retries(engine)] == [1]
    parts = [plan for plan in engine.runner.plans if plan.step == 1]
    assert [(plan.starts, plan.counts, plan.samples) for plan in parts] == [([0], [3], [False]), ([3], [3], [True])]


@OVERLAP
def test_step_after_step_may_be_parted(overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)
    engine.runner.fail_launch = lambda plan: OUT_OF_MEMORY if len(plan.sequences) > 2 else None
    check(engine, add(engine, 4), {})
    assert [event[0] for event in retries(engine)] == list(range(1, COUNT + 1))


@OVERLAP
def test_what_goes_before_a_step_is_not_done_twice(overlap: bool) -> None:
    """The runner has done a plan's moves, copies and releases when it says that the rest does not fit."""
    engine = FakeEngine(overlap=overlap, num_blocks=14, host_blocks=20, max_num_seqs=3, preemption_mode="swap")
    before: dict[int, tuple[bool, bool, bool]] = {}

    def short_of_memory(plan: StepPlan) -> Exception | None:
        if len(plan.sequences) < 2 or plan.step % 3 or plan.step in before:
            return None
        before[plan.step] = (bool(plan.moves), bool(plan.copies), bool(plan.released))
        return OUT_OF_MEMORY

    engine.runner.fail_launch = short_of_memory
    names = [engine.add(prompt(i), COUNT, n=1 + i % 2) for i in range(6)]
    engine.run()
    for i, name in enumerate(names):
        assert all(each.token_ids == solo(prompt(i), COUNT) for each in engine.outputs[name].outputs)
    assert retries(engine) and any(map(any, before.values()))
    engine.check_empty()


@OVERLAP
@pytest.mark.parametrize("half", [0, 1])
def test_a_half_that_does_not_fit_either_ends_its_requests_only(half: int, overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)
    names = add(engine, 4)
    steps(engine, 3)
    fails(engine, OUT_OF_MEMORY, 1, 2 + half)
    error = "step 4 failed: OutOfDeviceMemory: 16 MiB are missing"
    check(engine, names, {2 * half: error, 2 * half + 1: error})
    assert len(engine.of(StepRetried)) == len(engine.of(EngineError)) == 1
    finished = next(event for event in engine.of(StepFinished) if event.step == 4)
    assert sorted(finished.wasted) == [2 * half, 2 * half + 1]


@OVERLAP
def test_a_step_that_never_fits_is_tried_once_more_and_ends_those_in_it(overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap, max_num_seqs=2)
    names = add(engine, 3)
    steps(engine, 3)
    fails(engine, OUT_OF_MEMORY, 1, 2, 3)
    error = "step 4 failed: OutOfDeviceMemory: "
    check(engine, names, {0: error, 1: error})
    assert len(engine.of(StepRetried)) == 1


@OVERLAP
def test_the_decode_of_one_can_not_be_parted(overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)
    names = add(engine, 1)
    steps(engine, 3)
    fails(engine, OUT_OF_MEMORY, 1)
    check(engine, names, {0: "step 4 failed: OutOfDeviceMemory: "})
    assert not engine.of(StepRetried)


@OVERLAP
@pytest.mark.parametrize("half", [0, 1])
def test_half_of_a_chunk_that_fails_ends_its_request(half: int, overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)
    names = add(engine, 1)
    fails(engine, OUT_OF_MEMORY, 1, 2 + half)
    check(engine, names, {0: "step 1 failed: OutOfDeviceMemory: "})


@pytest.mark.parametrize("part", [1, 2])
@OVERLAP
def test_a_half_that_can_not_be_read_ends_its_requests_and_nothing_stays_in_flight(part: int, overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)
    names = add(engine, 4)
    steps(engine, 3)
    fails(engine, OUT_OF_MEMORY, 1)
    fail_collect(engine, part + overlap)
    half = range(2 * part - 2, 2 * part)
    check(engine, names, dict.fromkeys(half, "step 4 failed: RuntimeError: it can't be read"))


@OVERLAP
@pytest.mark.parametrize("command", ["pause", "pause_engine"])
@pytest.mark.parametrize("half", [0, 1])
def test_a_pause_out_of_a_half_that_fails_finds_nothing_to_read(half: int, command: str, overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)
    other = 2 - 2 * half  # the first one of the other half

    def told(output: RequestOutput) -> None:
        engine.outputs[output.request_id] = output
        if output.error is not None:
            if command == "pause":
                engine.pause(names[other])
            else:
                engine.pause_engine("callback")

    params = SamplingParams(temperature=0.0, max_tokens=COUNT)
    names = [engine.add_request(prompt(i), params, on_finish=told) for i in range(4)]
    steps(engine, 3)
    fails(engine, OUT_OF_MEMORY, 1, 2 + half)
    steps(engine, 20)
    if command == "pause":
        assert engine.seq(names[other]).reason == "operator"
        engine.resume(names[other])
    else:
        engine.continue_engine()
    error = "step 4 failed: OutOfDeviceMemory: 16 MiB are missing"
    check(engine, names, {2 * half: error, 2 * half + 1: error})
    assert len(engine.of(EngineError)) == 1


def test_siblings_in_the_other_half_are_drawn_in() -> None:
    engine = FakeEngine()
    group = engine.add(prompt(0), COUNT, n=2)
    other = engine.add(prompt(1), COUNT)
    steps(engine, 3)  # the leader is in the first half, its sibling in the second one
    fails(engine, OUT_OF_MEMORY, 1, 2)
    engine.run()
    assert [each.finish_reason for each in engine.outputs[group].outputs] == ["error", "error"]
    assert engine.ids(other) == solo(prompt(1), COUNT)
    engine.check_empty()


# A step that fails with moves in it


@pytest.mark.parametrize("where", ["launch", "collect"])
@pytest.mark.parametrize("at", [5, 6, 7, 8, 9, 10])
@OVERLAP
def test_moves_of_a_step_that_fails_lose_nobody_elses_tokens(where: str, at: int, overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap, num_blocks=8, host_blocks=20, max_num_seqs=3, preemption_mode="swap")
    names = add(engine, 5)
    if where == "launch":
        fails(engine, RuntimeError("it can't be launched"), at)
    else:
        fail_collect(engine, at)
    engine.run()
    failed = {event.seq for event in engine.of(StatusChanged) if event.new == "ERROR"}
    assert failed and len(failed) <= 3
    check(engine, names, {seq: "step " for seq in failed})


# The device is lost


def lose_device(engine: FakeEngine) -> Exception:
    """The device computes nothing any more, and everything that asks for it says so."""
    error = RuntimeError("the device is gone")

    def gone(*_: Any) -> Any:
        raise error

    engine.runner.sound = False
    engine.runner.finish_moves = engine.runner.collect = engine.runner.close = gone  # type: ignore[method-assign]
    engine.runner.fail_launch = lambda plan: error
    return error


USES: dict[str, Callable[[FakeEngine], object]] = {
    "add_request": lambda engine: engine.add(prompt(7)),
    "step": lambda engine: engine.step(),
    "pause": lambda engine: engine.pause("req-0"),
    "resume": lambda engine: engine.resume("req-0"),
    "finish": lambda engine: engine.finish("req-0"),
    "set_priority": lambda engine: engine.set_priority("req-0", 1),
    "pause_engine": lambda engine: engine.pause_engine(),
    "continue_engine": lambda engine: engine.continue_engine(),
    "add_breakpoint": lambda engine: engine.add_breakpoint("on=preempted"),
}


def check_dead(engine: FakeEngine, names: list[str], message: str) -> None:
    """Everybody was told once, every call names the cause, and the journal ends in order."""
    for name in names:
        assert {each.finish_reason for each in engine.outputs[name].outputs} == {"error"}, name
    for use in USES.values():
        with pytest.raises(EngineDead) as dead:
            use(engine)
        assert str(dead.value) == message
    assert not engine.abort(names[0]) and not engine.core.requests and not engine.has_work
    engine.close()
    engine.die("again")
    assert isinstance(engine.events[-1], EngineStopped) and engine.events[-1].reason == "error"
    assert len(engine.of(EngineStopped)) == 1
    assert sorted(event.request for event in engine.of(RequestFinished)) == sorted(names)
    audit = Audit()
    audit.apply_all(engine.events)
    assert engine.core.blocks.num_free == engine.core.blocks.num_blocks


@OVERLAP
@pytest.mark.parametrize("where", ["launch", "collect"])
def test_with_the_device_everybody_is_told_and_the_engine_says_why(where: str, overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap, max_num_seqs=3)
    names = add(engine, 5)
    steps(engine, 3)
    engine.pause(names[0])
    steps(engine, 1)
    lose_device(engine)
    if where == "collect":
        engine.runner.fail_launch = lambda plan: None
    engine.step()
    error = f"step {4 if overlap and where == 'collect' else 5} failed: RuntimeError: the device is gone"
    check_dead(engine, names, f"{error}; the device no longer computes")
    assert {engine.outputs[name].error for name in names} == {error, f"{error}; the device no longer computes"}
    assert engine.outputs[names[0]].error == engine.outputs[names[4]].error == f"{error}; the device no longer computes"


@OVERLAP
@pytest.mark.parametrize("half", [1, 2])
def test_a_device_lost_in_a_half_ends_the_engine_at_once(half: int, overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap)
    names = add(engine, 4)
    steps(engine, 3)
    seen = [0]

    def fail(plan: StepPlan) -> Exception | None:
        seen[0] += 1
        if seen[0] == 1 + half:
            return lose_device(engine)
        return OUT_OF_MEMORY if seen[0] == 1 else None

    engine.runner.fail_launch = fail
    engine.step()
    check_dead(engine, names, "step 4 failed: RuntimeError: the device is gone; the device no longer computes")
    assert seen[0] == 1 + half, "nothing is launched on it any more"


@pytest.mark.parametrize("where", ["launch", "collect"])
@OVERLAP
def test_a_device_lost_while_blocks_are_on_their_way_back(where: str, overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap, num_blocks=24, host_blocks=24, max_num_seqs=3, prefix_cache=False)
    names = add(engine, 3)
    steps(engine, 3)
    engine.pause(names[0])
    scheduler = engine.core.scheduler
    assert scheduler.residency.vacate(engine.core.blocks.num_free + 1, scheduler.step, ())
    names += add(engine, 1, first=3)
    engine.runner.move_delay = 9
    engine.resume(names[0])
    steps(engine, 2)
    assert engine.seq(names[0]).move_in
    lose_device(engine)
    if where == "collect":
        engine.runner.fail_launch = lambda plan: None
    engine.step()
    with pytest.raises(EngineDead, match=r"the device no longer computes$"):
        engine.step()
    assert sorted(engine.outputs) == sorted(names)
    assert all(engine.outputs[name].error for name in names)
    assert isinstance(engine.events[-1], EngineStopped)


@OVERLAP
def test_an_operators_pause_that_finds_the_device_lost_ends_in_order(overlap: bool) -> None:
    engine = FakeEngine(overlap=True)
    names = add(engine, 2)
    steps(engine, 3)
    lose_device(engine)
    assert engine.pause(names[1]) is False
    check_dead(engine, names, "step 3 failed: RuntimeError: the device is gone; the device no longer computes")


@OVERLAP
@pytest.mark.parametrize("from_callback", [False, True])
def test_die_tells_everybody_its_message(from_callback: bool, overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap, max_num_seqs=2)
    told: list[Delta] = []

    def on_output(delta: Delta) -> None:
        told.append(delta)
        if from_callback and len(told) == 3:
            engine.die("the core process lost its parent")

    params = SamplingParams(max_tokens=COUNT, temperature=0.0)
    names = [engine.add_request(prompt(0), params, on_output=on_output, on_finish=engine._finished), *add(engine, 3, 1)]
    steps(engine, 2)
    if not from_callback:
        engine.pause(names[1])
        engine.die("the core process lost its parent")
    else:
        with pytest.raises(EngineDead):
            steps(engine, 5)
    check_dead(engine, names, "the core process lost its parent")
    assert {engine.outputs[name].error for name in names} == {"the core process lost its parent"}
    assert told[-1].finish_reason == "error" and [delta.finish_reason for delta in told[:-1]].count("error") == 0
    assert engine.of(EngineError)[-1].message == "the core process lost its parent"
    assert engine.runner.closed


# A swap device that fails


@OVERLAP
@pytest.mark.parametrize("kind", ["out", "in", "down"])
@pytest.mark.parametrize("every", [1, 2])
def test_a_swap_device_that_fails_costs_computing_again_and_nobodys_request(
    kind: str, every: int, overlap: bool
) -> None:
    engine = FakeEngine(
        overlap=overlap, num_blocks=9, host_blocks=4, disk_blocks=14, max_num_seqs=3, preemption_mode="swap"
    )
    seen = [0]

    def fail(move: BlockMove) -> str:
        seen[0] += move.kind == kind
        return "I/O error" if move.kind == kind and seen[0] % every == 0 else ""

    engine.runner.fail_move = fail
    names = add(engine, 6)
    for i in range(60):
        engine.step()
        if i % 4 == 2 and (name := names[i // 4 % 6]) in engine.core.requests:
            if engine.seq(name).status.value == "PAUSED":
                engine.resume(name)
            else:
                engine.pause(name)
    for name in names:
        if name in engine.core.requests and engine.seq(name).status.value == "PAUSED":
            engine.resume(name)
    check(engine, names, {})
    failed = [event for event in engine.of(SwapFinished) if event.error]
    assert bool(failed) == (seen[0] >= every) and seen[0], "the kind of move that is to fail came up"
    assert kind == "down" or any(event.lost for event in engine.of(BlocksFreed))


# Fault points, on a real runner


def broken() -> None:
    raise OSError("broken on purpose")


@OVERLAP
@pytest.mark.parametrize("point", ["launch", "forward", "collect", "decode_text"])
def test_a_fault_in_a_step_ends_those_in_it_and_the_next_request_works(point: str, overlap: bool) -> None:
    done: dict[str, RequestOutput] = {}

    def keep(output: RequestOutput) -> None:
        done[output.request_id] = output

    with tiny_llm(overlap=overlap, max_num_seqs=2) as llm:
        engine, events = llm.engine, recorded(llm)
        alone = llm.generate(prompt_of(9, 3), greedy(8), use_tqdm=False)[0].outputs[0].token_ids
        for i in range(3):
            engine.add_request(
                prompt_of(9, i), greedy(8), request_id=f"r{i}", on_finish=keep, on_output=lambda delta: None
            )
        engine.add_request(prompt_of(9, 3), greedy(8), request_id="r3", on_finish=keep)
        for _ in range(3):
            engine.step()
        with faults.armed(point, broken):
            engine.step()
        while engine.step():
            pass
        assert all("OSError: broken on purpose" in (done[name].error or "") for name in ("r0", "r1"))
        assert all(done[name].outputs[0].finish_reason == "error" for name in ("r0", "r1"))
        assert done["r3"].error is None and done["r3"].outputs[0].token_ids == alone
        assert done["r2"].error is None
        assert llm.generate(prompt_of(9, 3), greedy(8), use_tqdm=False)[0].outputs[0].token_ids == alone
        assert engine.core.blocks.num_free == 64
        assert bool([event for event in events if isinstance(event, EngineError)]) == (point != "decode_text")
    audit = Audit()
    audit.apply_all([llm.engine.core.started, *events][1:])


@pytest.mark.parametrize("point", ["swap_out", "swap_in", "disk_write", "disk_read"])
def test_a_fault_of_the_swap_space_is_computed_over(point: str, tmp_path: Any) -> None:
    sizes = {"host_blocks": 0, "disk_blocks": 32, "swap_path": str(tmp_path / "swap")} if "disk" in point else {
        "host_blocks": 32
    }  # fmt: skip
    done: dict[str, RequestOutput] = {}

    def keep(output: RequestOutput) -> None:
        done[output.request_id] = output

    with tiny_llm() as llm:
        alone = [llm.generate(prompt_of(20, i), greedy(12), use_tqdm=False)[0].outputs[0].token_ids for i in range(3)]
    reached: list[str] = []

    def break_it() -> None:
        reached.append(point)
        raise OSError("broken on purpose")

    with tiny_llm(num_blocks=12, **sizes) as llm:
        engine, events = llm.engine, recorded(llm)
        engine.add_request(prompt_of(20, 0), greedy(12), request_id="r0", on_finish=keep)
        for _ in range(4):
            engine.step()
        engine.pause("r0")
        with faults.armed(point, break_it):
            for i in (1, 2):
                engine.add_request(prompt_of(20, i), greedy(12), request_id=f"r{i}", on_finish=keep)
            while engine.step():
                pass
            engine.resume("r0")
            while engine.step():
                pass
        assert reached
        assert [done[f"r{i}"].outputs[0].token_ids for i in range(3)] == alone
        assert all(output.error is None for output in done.values())
        errors = [event.error for event in events if isinstance(event, SwapFinished) and event.error]
        assert errors and all("broken on purpose" in error for error in errors)
        slots = engine.core.blocks.slots
        assert engine.core.blocks.num_free == 12
        assert len(slots.free_host) == slots.host_blocks and len(slots.free_disk) == slots.disk_blocks


@OVERLAP
def test_a_real_step_that_does_not_fit_gives_the_same_tokens_in_halves(overlap: bool) -> None:
    with tiny_llm() as llm:
        alone = [llm.generate(prompt_of(9, i), greedy(8), use_tqdm=False)[0].outputs[0].token_ids for i in range(4)]
    done: dict[str, RequestOutput] = {}
    armed = [False]

    def short() -> None:
        if armed[0]:
            armed[0] = False
            raise OutOfDeviceMemory("16 MiB are missing")

    with tiny_llm(overlap=overlap) as llm, faults.armed("forward", short):
        events = recorded(llm)
        for i in range(4):
            llm.engine.add_request(
                prompt_of(9, i), greedy(8), request_id=f"r{i}", on_finish=lambda o: done.update({o.request_id: o})
            )
        armed[0] = True
        while llm.engine.step():
            armed[0] = llm.engine.core.scheduler.step % 2 == 0
        assert [done[f"r{i}"].outputs[0].token_ids for i in range(4)] == alone
        assert len([event for event in events if isinstance(event, StepRetried)]) >= 3


# Callbacks that fail


def fails_always(_: object) -> None:
    raise KeyError("not mine")


@OVERLAP
@pytest.mark.parametrize("callback", ["on_output", "on_finish", "on_pause"])
@pytest.mark.parametrize("end", ["runs out", "abort", "error", "pause and resume", "pause and finish", "expire", "die"])
def test_a_callback_that_fails_is_recorded_and_does_nobody_harm(callback: str, end: str, overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap, paused_ttl_s=5.0)
    if end == "error":
        engine.runner.fail_rows = lambda plan: {0: "non-finite logits"} if plan.step == 4 else {}
    params = SamplingParams(max_tokens=COUNT, temperature=0.0)
    engine.add_request(prompt(0), params, request_id="bad", **{callback: fails_always})  # type: ignore[arg-type]
    other = engine.add(prompt(1), COUNT)
    steps(engine, 3)
    if end == "abort":
        engine.abort("bad")
    elif end in ("pause and resume", "pause and finish", "expire"):
        assert engine.pause("bad")
        engine.step()
    if end == "pause and resume":
        engine.resume("bad")
    elif end == "pause and finish":
        engine.finish("bad")
    elif end == "expire":
        engine.core.clock.now += 6_000_000_000
    elif end == "die":
        engine.die("enough")
    if end != "die":
        engine.run()
        assert engine.ids(other) == solo(prompt(1), COUNT)
        engine.check_empty()
    failures = engine.of(CallbackFailed)
    assert {(event.request, event.message) for event in failures} <= {("bad", "KeyError: 'not mine'")}
    assert bool(failures) == (callback != "on_pause" or "pause" in end or end == "expire")
    assert [event.request for event in engine.of(RequestFinished)].count("bad") == 1


# A tokenizer that fails


class Letters:
    """Decodes each id as a letter, until it breaks."""

    broken = False

    def decode(self, ids: list[int], /, *, skip_special_tokens: bool = True) -> str:
        if self.broken:
            raise ValueError("no such piece")
        return "".join(chr(97 + token % 26) for token in ids)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(char) for char in text]


def with_letters(**options: Any) -> FakeEngine:
    engine = FakeEngine(**options)
    engine.tokenizer = Letters()  # type: ignore[assignment]
    return engine


@OVERLAP
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("when", ["in a step", "at its end", "pause", "resume", "append", "finish", "abort"])
@pytest.mark.parametrize("n", [1, 2])
def test_a_tokenizer_that_fails_takes_one_request_along(when: str, streamed: bool, n: int, overlap: bool) -> None:
    engine = with_letters(overlap=overlap)
    deltas: list[Delta] = []
    params = SamplingParams(max_tokens=COUNT, temperature=0.0, n=n)
    engine.add_request(
        prompt(0), params, request_id="bad", on_output=deltas.append if streamed else None, on_finish=engine._finished
    )
    other = engine.add(prompt(1), COUNT)
    letters = engine.core.requests["bad"].decoder = Letters()
    for stream in engine.core.requests["bad"].streams:
        stream._detokenizer._tokenizer = letters
    steps(engine, 4)
    if when in ("resume", "append", "finish"):
        engine.pause("bad")
    letters.broken = True
    if when == "in a step":
        engine.step()
    elif when == "append":
        engine.resume("bad", append=[1, 2])
    elif when != "at its end":
        {"pause": engine.pause, "resume": engine.resume, "finish": engine.finish, "abort": engine.abort}[when]("bad")
    engine.run()
    if "bad" in engine.core.requests:  # paused without a word to decode
        engine.resume("bad")
        engine.run()
    assert engine.ids(other) == solo(prompt(1), COUNT) and engine.outputs[other].outputs[0].text.isalpha()
    output = engine.outputs["bad"]
    assert output.finished and len(engine.of(RequestFinished)) == 2
    if output.error is not None:
        assert "decoding its text failed: ValueError: no such piece" in output.error
    assert output.error is not None or when in ("finish", "abort", "resume")
    engine.check_empty()
    assert not engine.of(EngineError)


@OVERLAP
def test_a_reading_that_loses_the_word_of_a_move_leaves_nobody_waiting(overlap: bool) -> None:
    engine = FakeEngine(overlap=overlap, num_blocks=24, host_blocks=24, max_num_seqs=3, prefix_cache=False)
    names = add(engine, 3)
    steps(engine, 2)
    engine.pause(names[0])
    scheduler = engine.core.scheduler
    assert scheduler.residency.vacate(engine.core.blocks.num_free + 1, scheduler.step, ())
    steps(engine, 1)
    engine.resume(names[0])
    fail_collect(engine, 1)  # the reading with which the runner tells that its blocks are back
    engine.step()
    assert engine.seq(names[0]).status.value == "WAITING"
    error = f"step {4 - overlap} failed: RuntimeError: it can't be read"
    check(engine, names, {1: error, 2: error})
    assert any(event.error for event in engine.of(SwapFinished))
