"""An engine over the processes of several ranks: the tokens, the moves, and what happens when a rank is lost.

The ranks compute with the fake runner: a sequence that is mirrored wrongly shows in rank 0's tokens, or ends another
rank by an assertion.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fake_engine import FakeEngine, solo
from fake_ranks import is_running, make_ranks, ranks_engine, shared_descriptors
from nanolens.engine.config import EngineConfig
from nanolens.engine.plan import StepPlan
from nanolens.engine.runner import tensor_parallel
from nanolens.engine.runner import tensor_parallel_watch as watching
from nanolens.engine.runner.tensor_parallel import TensorParallelRunner
from nanolens.engine.runner.tensor_parallel_memory import FIRST_SLOT
from nanolens.errors import EngineDead, InvalidConfig
from nanolens.telemetry.events import EngineError, SequencePreempted, StepFinished, StepRanks, SwapFinished

each_overlap = pytest.mark.parametrize("overlap", [False, True], ids=["in_turn", "overlapped"])


def prompt(number: int, length: int = 9) -> list[int]:
    return list(range(100 * number, 100 * number + length))


def gone(pids: list[int]) -> bool:
    return not any(is_running(pid) for pid in pids) and not shared_descriptors()


def run_mix(engine: FakeEngine) -> None:
    """Prefix hits, siblings, an abort and pauses, in a pool that is too small for them; all have their own tokens."""
    names = [engine.add(prompt(1, 12)[: 6 + number] + prompt(number, 5), 20) for number in range(4)]
    group = engine.add(prompt(7), 12, n=3, temperature=1.0)
    paused = engine.add(prompt(5), 3, on_stop="pause")
    aborted = engine.add(prompt(6), 30)
    for _ in range(6):
        engine.step()
    engine.abort(aborted)
    engine.run()
    engine.resume(paused, append=[5, 6], max_tokens=4)
    more = engine.add(prompt(8, 30), 20)
    engine.run()
    engine.finish(paused)
    for number, name in enumerate(names):
        assert engine.ids(name) == solo(prompt(1, 12)[: 6 + number] + prompt(number, 5), 20)
    for index in range(3):
        assert engine.ids(group, index) == solo(prompt(7), 12)
    first = solo(prompt(5), 3)
    assert engine.ids(paused) == first + solo(prompt(5) + first + [5, 6], 4)
    assert engine.ids(more) == solo(prompt(8, 30), 20)
    engine.check_empty()


@each_overlap
@pytest.mark.parametrize("options", [{"preemption_mode": "recompute"}, {"host_blocks": 9, "disk_blocks": 20}], ids=str)
def test_tokens_are_those_of_one_process(options: dict[str, Any], overlap: bool) -> None:
    engine = ranks_engine(3, num_blocks=14, overlap=overlap, **options)
    try:
        run_mix(engine)
        assert engine.of(SequencePreempted)
    finally:
        engine.core.close()


def test_the_runner_is_what_all_ranks_can_do() -> None:
    config = EngineConfig(model="fake", num_blocks=9, block_size=4, tensor_parallel_size=2)
    runner = make_ranks(config)
    try:
        assert (runner.num_blocks, runner.max_model_len) == (9, 36)  # rank 1 has room for ten
        assert runner.startup == {"rank": 1, "of_rank_0": 1, "of_rank_1": 1}
        assert not runner.is_asynchronous
    finally:
        runner.close()


def test_a_plan_may_be_larger_than_the_memory_for_it() -> None:
    engine = ranks_engine(2, num_blocks=200, block_size=512, max_model_len=100_000, max_num_batched_tokens=100_000)
    try:
        long = [index % 1000 for index in range(FIRST_SLOT)]
        name = engine.add(long, 1)
        short = engine.add(prompt(1), 5)
        engine.run()
        assert engine.ids(name) == solo(long, 1)
        assert engine.ids(short) == solo(prompt(1), 5)
    finally:
        engine.core.close()


def test_a_move_has_ended_when_it_has_on_every_rank() -> None:
    engine = ranks_engine(3, num_blocks=4, host_blocks=8, prefix_cache=False)
    try:
        names = [engine.add(prompt(number, 7), 1, on_stop="pause") for number in range(2)]
        engine.run()
        other = engine.add(prompt(4, 6), 8)
        for _ in range(3):
            engine.step()
        for name in names:
            engine.resume(name, max_tokens=3)
        engine.run()
        assert engine.ids(other) == solo(prompt(4, 6), 8)
        moved = engine.of(SwapFinished)
        assert len(moved) >= 2
        assert {event.num_bytes % (3 * 64) for event in moved} == {0}  # of all ranks
    finally:
        engine.core.close()


@each_overlap
def test_each_step_tells_the_time_of_each_rank_the_last_one_too(overlap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_parallel, "TIMES_S", 60.0)  # without collectives, rank 1 may be late
    engine = ranks_engine(2, overlap=overlap)
    try:
        engine.add(prompt(1), 60)
        engine.run()
        told, steps = engine.of(StepRanks), engine.of(StepFinished)
        assert [event.step for event in told] == [event.step for event in steps]
        for number, event in enumerate(told, 1):
            assert event.device_ns == [1000 * number, 1000 * number + 1]
            assert event.collective_ns == [100, 200]  # of this step, not of all so far, nor of warming up
    finally:
        engine.core.close()


# Starts


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_ranks_start_in_a_program_that_has_no_standard_files(closed: tuple[int, ...], tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from fake_ranks import ranks_engine
engine = ranks_engine(2)
name = engine.add({prompt(1)}, 6)
engine.run()
Path({str(tmp_path / "ids")!r}).write_text(str(engine.ids(name)))
engine.core.close()
"""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    subprocess.run(
        [sys.executable, "-P", "-c", program], env=os.environ | {"PYTHONPATH": path}, timeout=60, check=True,
        preexec_fn=lambda: [os.close(fd) for fd in closed],
    )  # fmt: skip
    assert (tmp_path / "ids").read_text() == str(solo(prompt(1), 6))


def test_ranks_outlive_the_thread_that_started_them() -> None:
    made: list[FakeEngine] = []
    thread = threading.Thread(target=lambda: made.append(ranks_engine(2)))
    thread.start()
    thread.join()
    engine = made[0]
    try:
        name = engine.add(prompt(1), 6)
        engine.run()
        assert engine.ids(name) == solo(prompt(1), 6)
    finally:
        engine.core.close()


@pytest.mark.parametrize("in_thread", [False, True], ids=["main", "thread"])
def test_a_stopped_rank_ends_with_a_driver_that_is_killed(in_thread: bool) -> None:
    program = f"""
import os, signal, threading, time
from fake_ranks import ranks_engine
made = []
if {in_thread}:
    thread = threading.Thread(target=lambda: made.append(ranks_engine(2)))
    thread.start()
    thread.join()
else:
    made.append(ranks_engine(2))
pids = made[0].runner.pids
os.kill(pids[1], signal.SIGSTOP)
print(*pids, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], env=os.environ | {"PYTHONPATH": path}, timeout=60,
        stdout=subprocess.PIPE, check=False,
    )  # fmt: skip
    pids = [int(pid) for pid in done.stdout.split()]
    deadline = time.monotonic() + 30
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    try:
        assert len(pids) == 2 and not any(map(is_running, pids))
    finally:
        for pid in filter(is_running, pids):
            os.kill(pid, signal.SIGKILL)


# Ends


def test_closing_leaves_no_process_and_no_memory() -> None:
    engine = ranks_engine(2)
    pids = engine.runner.pids
    assert all(map(is_running, pids)) and shared_descriptors()
    engine.add(prompt(1), 50)
    engine.step()
    engine.core.close()
    assert gone(pids)


@pytest.mark.parametrize(("target", "error", "words"), [
    ("build_refused", InvalidConfig, "num_blocks=7: must be something else"),
    ("build_dying", EngineDead, r"rank 1 of 2 \(process \d+\) exited with code 3 while it started \(loading "),
])  # fmt: skip
def test_a_rank_that_can_not_start_ends_the_others(target: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        TensorParallelRunner(EngineConfig(model="fake", tensor_parallel_size=2), 1000, f"fake_ranks:{target}")
    assert not shared_descriptors()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize(("harm", "words"), [(kill, "was killed by signal SIGKILL"), (stop, "hangs")])
def test_a_lost_rank_ends_all_requests_by_its_name_and_step(
    harm: Callable[[int], None], words: str, lost: int, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "HANG_S", 2.0)
    monkeypatch.setenv("FAKE_RANK_SLEEPS", "0.3")  # a step is due when the rank is lost
    engine = ranks_engine(2, overlap=phase == "decode")
    pids = engine.runner.pids
    names = [engine.add(prompt(number), 200) for number in range(3)]
    if phase == "decode":
        for _ in range(3):
            engine.step()
    began = engine.runner.launch

    def launch(plan: StepPlan) -> Any:
        handle = began(plan)
        time.sleep(0.1)  # until the rank computes
        harm(pids[lost])
        return handle

    monkeypatch.setattr(engine.runner, "launch", launch)
    while engine.core.requests:
        engine.step()
    assert [engine.outputs[name].outputs[0].finish_reason for name in names] == ["error"] * 3
    message = engine.of(EngineError)[-1].message
    assert f"rank {lost} of 2 (process {pids[lost]}) {words}" in message
    assert "; its last step was " in message
    assert gone(pids)


def test_a_rank_that_is_lost_between_two_requests_fails_the_next_one() -> None:
    engine = ranks_engine(2)
    pids = engine.runner.pids
    engine.add(prompt(1), 2)
    engine.run()
    kill(pids[1])
    name = engine.add(prompt(2), 200)  # without collectives, rank 0 goes on for some steps
    while engine.core.requests:
        engine.step()
    assert engine.outputs[name].outputs[0].finish_reason == "error"
    assert gone(pids)


@pytest.mark.parametrize(("kind", "advice"), [
    ("ValueError", ""),
    ("OutOfDeviceMemory", "so that it can't be launched again in parts: lower max_num_batched_tokens, max_num_seqs, "),
])  # fmt: skip
def test_a_rank_that_fails_is_named_with_its_error(kind: str, advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_RANK_FAILS_AT", "3")
    monkeypatch.setenv("FAKE_RANK_FAILS_BY", kind)
    engine = ranks_engine(2)
    pids = engine.runner.pids
    engine.add(prompt(1), 200)
    while engine.core.requests:
        engine.step()
    message = engine.of(EngineError)[0].message
    assert f"rank 1 of 2 (process {pids[1]}) failed: {kind}: as asked; its last step was 3" in message
    assert advice in message and ("lower" in message) == bool(advice)
    assert gone(pids)


DRIVER = """
import sys, time
sys.path[:] = {path!r}
from fake_ranks import ranks_engine
if __name__ == "__main__":
    engine = ranks_engine(2)
    engine.add(list(range(9)), 400)
    engine.step()
    print(*engine.runner.pids, flush=True)
    while engine.step():
        pass
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_ranks_do_not_outlive_their_driver(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_RANK_SLEEPS", "0.2")
    program = DRIVER.format(path=sys.path)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as driver:
        assert driver.stdout is not None
        pids = [int(word) for word in driver.stdout.readline().split()]
        assert len(pids) == 2 and all(map(is_running, pids))
        driver.send_signal(number)
        driver.wait()
    for _ in range(200):
        if not any(map(is_running, pids)):
            return
        time.sleep(0.05)
    raise AssertionError("a rank outlives its driver")
