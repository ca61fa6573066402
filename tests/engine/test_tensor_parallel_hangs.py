"""Ranks that hang while their processes live: they are named, and what is only slow is left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from fake_engine import FakeEngine, solo
from fake_ranks import is_running, ranks_engine, shared_descriptors
from nanolens.telemetry.events import EngineError


def end_in_error(engine: FakeEngine, names: list[str]) -> str:
    """Step until all have ended, in an error, and nothing is left; the error."""
    pids = engine.runner.pids
    while engine.core.requests:
        engine.step()
    assert [engine.outputs[name].outputs[0].finish_reason for name in names] == ["error"] * len(names)
    assert not any(map(is_running, pids)) and not shared_descriptors()
    return str(engine.of(EngineError)[-1].message)


def add(engine: FakeEngine, count: int) -> list[str]:
    return [engine.add(range(9 * number, 9 * number + 9), 200) for number in range(count)]


@pytest.mark.parametrize(("hung", "step", "overlap"), [(0, 1, False), (2, 6, False), (1, 6, True)], ids=str)
def test_a_rank_whose_main_thread_hangs_is_named_with_its_step(
    hung: int, step: int, overlap: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_RANK_HANGS", f"{hung}:{step}")
    engine = ranks_engine(3, rank_timeout_s=0.6, overlap=overlap)
    pid = engine.runner.pids[hung]
    message = end_in_error(engine, add(engine, 3))
    assert f"rank {hung} of 3 (process {pid}) hangs: it has not got further for 0.6 s (rank_timeout_s)" in message
    assert f"; its last step was {step}" in message
    assert "in hang_for_ever" in capfd.readouterr().err


def test_where_no_rank_is_behind_none_is_accused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_RANK_HANGS", "all:2")
    engine = ranks_engine(2, rank_timeout_s=0.6)
    message = end_in_error(engine, add(engine, 2))
    assert "none has got further for 0.6 s (rank_timeout_s): which one hangs can't be told" in message


def test_neither_a_slow_step_that_gets_further_nor_a_pause_is_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_RANK_SLEEPS", " ".join(["0.2"] * 6))
    engine = ranks_engine(2, rank_timeout_s=0.8)
    for number in range(2):
        name = engine.add(range(number, 9), 1)
        engine.run()
        assert engine.ids(name) == solo(range(number, 9), 1)
        time.sleep(1.0)
    engine.core.close()


def test_waiting_for_a_swap_file_that_works_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_RANK_SLEEPS", "1.6")
    engine = ranks_engine(2, "build_filing", rank_timeout_s=0.8)
    name = engine.add(range(9), 1)
    engine.run()
    assert engine.ids(name) == solo(range(9), 1)
    engine.core.close()


DRIVER = """
import sys
sys.path[:] = {path!r}
from fake_ranks import ranks_engine
engine = ranks_engine(2, rank_timeout_s=0.6)
name = engine.add(range(9), 4)
engine.step()
print(*engine.runner.pids, flush=True)
engine.run()
print(engine.outputs[name].outputs[0].finish_reason)
engine.core.close()
"""


def test_after_a_machine_was_suspended_in_a_step_nobody_is_accused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_RANK_SLEEPS", "0.3")
    program = DRIVER.format(path=sys.path)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        pids = [driver.pid, *map(int, driver.stdout.readline().split())]
        time.sleep(0.15)  # until it looks at a step
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                os.kill(pid, number)
            time.sleep(1.5 if number == signal.SIGSTOP else 0)
        assert driver.stdout.read() == "length\n"
