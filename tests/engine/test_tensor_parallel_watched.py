"""Ranks that are lost while nothing is due, or while they start: noticed, named, told once, and nothing is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fake_ranks import is_running, make_ranks, ranks_engine, shared_descriptors
from nanolens.engine.config import EngineConfig
from nanolens.engine.loop import EngineLoop
from nanolens.engine.runner import tensor_parallel, tensor_parallel_ranks
from nanolens.engine.runner import tensor_parallel_watch as watching
from nanolens.errors import EngineDead, InvalidConfig
from nanolens.telemetry.events import EngineError

WAIT_S = 60.0


def config(size: int = 2, **options: Any) -> EngineConfig:
    return EngineConfig(model="fake", num_blocks=9, block_size=4, tensor_parallel_size=size, **options)


def kill(pid: int) -> None:
    """Kill a rank; all its threads are gone then, and its descriptors are closed."""
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def not_started(target: str, size: int = 2, **options: Any) -> Exception:
    """What an engine on such ranks fails with; nothing of it is left."""
    with pytest.raises(Exception) as caught:
        make_ranks(config(size, **options), target)
    assert not shared_descriptors()
    return caught.value


# While nothing is due


@pytest.mark.parametrize(("lost", "number", "words"), [
    (1, signal.SIGKILL, "was killed by signal SIGKILL"),
    (0, signal.SIGSTOP, "hangs: its process gives no sign of life"),
])  # fmt: skip
def test_an_idle_engine_ends_when_a_rank_is_lost(
    lost: int, number: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "HANG_S", 2.0)
    engine = ranks_engine(2)
    pids = engine.runner.pids
    engine.add(range(9), 2)
    engine.run()
    with EngineLoop(engine) as loop:
        os.kill(pids[lost], number)
        reason = loop.ended.result(WAIT_S)
    message = f"rank {lost} of 2 (process {pids[lost]}) {words}; its last step was "
    assert reason.startswith(message)
    assert [event.message for event in engine.events if isinstance(event, EngineError)] == [reason]
    assert not any(map(is_running, pids)) and not shared_descriptors()


def test_an_idle_engine_accuses_nobody_whose_rank_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "HANG_S", 2.0)
    engine = ranks_engine(2)
    with EngineLoop(engine) as loop:
        time.sleep(4.5)
        assert loop.is_alive


def test_without_a_loop_the_next_look_tells_of_a_rank_that_died() -> None:
    engine = ranks_engine(2)
    engine.core.look()
    pids = engine.runner.pids
    kill(pids[1])
    with pytest.raises(EngineDead, match=r"rank 1 of 2 .* was killed by signal SIGKILL; it has begun no step"):
        engine.core.look()
    assert not any(map(is_running, pids))


def test_a_killed_rank_is_told_without_a_trace(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    engine = ranks_engine(2)
    engine.add(range(9), 200)
    engine.step()
    kill(engine.runner.pids[1])
    with EngineLoop(engine) as loop:
        assert "was killed by signal SIGKILL" in loop.ended.result(WAIT_S)
    assert "was killed by signal SIGKILL" in caplog.text
    assert "Traceback" not in caplog.text + capfd.readouterr().err


# While they start


def test_a_rank_that_is_stopped_while_it_loads_is_named_with_what_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_parallel_ranks, "LOAD_HANG_S", 2.0)
    error = not_started("build_stopped")
    assert isinstance(error, EngineDead)
    assert str(error).startswith("rank 1 of 2 (process ")
    assert str(error).endswith(") hangs while loading its libraries: no sign of life for 2 s")


def test_a_rank_that_loads_under_its_interpreters_lock_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_parallel_ranks, "LOAD_HANG_S", 1.0)
    make_ranks(config(), "build_busy").close()


def test_ranks_that_do_not_come_to_the_meeting_are_named() -> None:
    error = not_started("build_alone")
    assert isinstance(error, EngineDead)
    assert re.fullmatch(
        r"rank 0 of 2 \(process \d+\) could not meet the other ranks within 600 s: wait timeout; "
        r"rank 1 is (starting its process|loading its libraries)", str(error),
    )  # fmt: skip


@pytest.mark.parametrize(("meet_s", "within"), [(600.0, ""), (0.0, " within 120 s")], ids=["at once", "in time"])
def test_a_meeting_that_fails_is_an_error_in_words(
    meet_s: float, within: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nanolens.engine.runner import tensor_parallel_model as model

    class Setup:
        config, rank, size, num_tokens = config(device="cpu"), 0, 2, 9
        enter = publish = move_on = staticmethod(print)

    def join(*args: object) -> None:
        raise RuntimeError("wait timeout after 600000ms, keys: /0\nframe #0: ...")

    monkeypatch.setattr(model, "join", join)
    began = iter([0.0, 599.9 if meet_s else 120.0])
    monkeypatch.setattr(model.time, "monotonic", lambda: next(began))
    monkeypatch.setattr(model, "MEET_S", meet_s)
    with pytest.raises(EngineDead) as caught:
        model.build(Setup())  # type: ignore[arg-type]
    assert str(caught.value) == f"could not meet the other ranks{within}: wait timeout after 600000ms, keys: /0"


@pytest.mark.parametrize(("target", "traces"), [("build_refused", 0), ("build_broken", 1)])
def test_a_rank_tells_once_why_it_can_not_start(
    target: str, traces: int, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    error = not_started(target)
    told = caplog.text + capfd.readouterr().err
    assert told.count("Traceback") == traces
    if traces:
        assert "in build_broken" in told
        assert str(error).endswith("failed while loading its libraries: ValueError: as asked")


def test_a_size_that_does_not_divide_the_heads_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_parallel, "Ranks", None)
    with pytest.raises(InvalidConfig, match="tensor_parallel_size=200: must divide the model's"):
        tensor_parallel.load_ranks(EngineConfig(model="dummy:qwen3-tiny", tensor_parallel_size=200))


# What is left behind


def test_a_killed_ranks_swap_file_is_removed(tmp_path: Path) -> None:
    runner = make_ranks(config(disk_blocks=4, swap_path=str(tmp_path / "swap")), "build_swapping")
    assert sorted(os.listdir(tmp_path)) == ["swap", "swap.rank1"]
    kill(runner.pids[1])
    assert runner.look()
    assert os.listdir(tmp_path) == []


def test_a_foreign_file_refuses_its_rank_and_stays_alone(tmp_path: Path) -> None:
    foreign = tmp_path / "swap.rank1"
    foreign.write_text("precious")
    error = not_started("build_swapping", disk_blocks=4, swap_path=str(tmp_path / "swap"))
    assert isinstance(error, InvalidConfig) and "another file lies there" in str(error)
    assert os.listdir(tmp_path) == ["swap.rank1"] and foreign.read_text() == "precious"


DRIVER = """
import sys, threading, time
sys.path[:] = {path!r}
from fake_ranks import ranks_engine
def drive():
    engine = ranks_engine(2, overlap=True)
    engine.add(range(9), 4)
    engine.step()
    time.sleep(0.5)  # until its result waits to be read
    print(*engine.runner.pids, flush=True)
    time.sleep(1000)
threading.Thread(target=drive).start()  # ranks of a main thread are killed by the system, and can say nothing
"""


def test_ranks_whose_driver_is_killed_end_without_a_word(tmp_path: Path) -> None:
    with (tmp_path / "said").open("w") as said, subprocess.Popen(
        [sys.executable, "-c", DRIVER.format(path=sys.path)], stdout=subprocess.PIPE, stderr=said, text=True
    ) as driver:
        assert driver.stdout is not None
        pids = [int(word) for word in driver.stdout.readline().split()]
        driver.kill()
    deadline = time.monotonic() + WAIT_S
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(pids) == 2 and not any(map(is_running, pids))
    assert (tmp_path / "said").read_text() == ""
