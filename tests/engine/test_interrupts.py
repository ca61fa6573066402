"""Ctrl-C at any moment: it comes out between two operations of the engine, and what it leaves behind is whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import nanolens
from fake_engine import FakeEngine, solo
from nanolens.engine.interrupts import MAX_HELD, HeldInterrupts
from nanolens.inspector.trace_cli import main as nano_trace
from nanolens.telemetry.journal import JournalWriter
from nanolens.telemetry.recorder import Recorder
from real_engine import greedy, ids_of, tiny_llm

PROGRAM = Path(__file__).parents[1] / "support" / "interrupted_engine.py"
PACKAGE = Path(nanolens.__file__).parent
TRACED = (str(PACKAGE / "engine") + os.sep, str(PACKAGE / "telemetry") + os.sep)


@pytest.fixture(autouse=True)
def the_handler_is_as_before() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    found = signal.signal(signal.SIGINT, before)
    assert found is signal.default_int_handler


def press() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("overlap", [0, 1])
def test_interrupts_at_random_moments_leave_a_real_engine_and_its_journal_whole(overlap: int, tmp_path: Path) -> None:
    command = [sys.executable, "-P", str(PROGRAM), str(tmp_path), "60", str(7 + overlap), str(overlap)]
    done = subprocess.run(
        command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 20
    assert nano_trace(["check", str(tmp_path)]) == 0


class PressAtLine:
    """A trace function that presses Ctrl-C before line number `at` of what runs in engine/ and telemetry/."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.lines = 0

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(TRACED) else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self.lines += 1
            if self.lines == self.at:
                press()
        return self._line


def some_work(engine: FakeEngine) -> None:
    """Six requests that preempt each other, one of them aborted."""
    for i in range(6):
        engine.add([i, i + 1, i + 2, i + 3, i + 4], 9)
    for _ in range(4):
        engine.step()
    engine.abort("req-2")
    engine.run()


def work_interrupted(journal: Path, overlap: bool, at: int) -> int:
    """Do some work with Ctrl-C before line `at`, and check what is left; the lines that ran."""
    engine = FakeEngine(num_blocks=8, overlap=overlap, recorder=Recorder(JournalWriter(journal, "run")))
    pressed = PressAtLine(at)
    sys.settrace(pressed)
    try:
        some_work(engine)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    engine.core.audit()
    for name in list(engine.core.requests):
        engine.abort(name)
    engine.run()
    assert sorted(engine.core.blocks.free) == list(range(8))
    name = engine.add([3, 1, 4], 5)
    engine.run()
    assert engine.ids(name) == solo([3, 1, 4], 5)
    engine.close()
    assert nano_trace(["check", str(journal)]) == 0
    return pressed.lines


@pytest.mark.parametrize("overlap", [False, True])
def test_an_interrupt_before_any_line_of_an_operation_leaves_it_done_or_not_begun(
    overlap: bool, tmp_path: Path
) -> None:
    total = work_interrupted(tmp_path / "whole", overlap, 0)
    rng = random.Random(5)
    for at in sorted(rng.sample(range(1, total + 1), 80)):
        work_interrupted(tmp_path / str(at), overlap, at)


def test_an_interrupt_inside_a_step_comes_out_when_all_its_tokens_are_dealt_with() -> None:
    with tiny_llm() as llm:
        expected = ids_of(llm.generate(["one", "two"], greedy(6), use_tqdm=False))
        outputs: list[Any] = []
        tokens = 0

        def press_at_third(_: object) -> None:
            nonlocal tokens
            tokens += 1
            if tokens == 3:
                press()

        for prompt in ("one", "two"):
            llm.engine.add_request(prompt, greedy(6), on_output=press_at_third, on_finish=outputs.append)
        with pytest.raises(KeyboardInterrupt):
            while llm.engine.step():
                pass
        assert tokens == 4
        while llm.engine.step():
            pass
        assert sorted(ids_of(outputs)) == sorted(expected)
        assert all(output.error is None for output in outputs)


def test_an_interrupt_is_held_until_the_end_of_the_block() -> None:
    reached = False
    with pytest.raises(KeyboardInterrupt):
        with HeldInterrupts():
            press()
            reached = True
    assert reached


def test_a_check_delivers_what_was_held_once() -> None:
    with HeldInterrupts() as held:
        press()
        press()
        with pytest.raises(KeyboardInterrupt):
            held.check()
        held.check()


def test_one_press_more_than_are_held_gets_through_at_once() -> None:
    pressed = 0
    with pytest.raises(KeyboardInterrupt):
        with HeldInterrupts():
            while pressed < 10:
                pressed += 1
                press()
    assert pressed == MAX_HELD + 1


def test_a_block_inside_another_leaves_it_to_the_outer_one() -> None:
    with HeldInterrupts() as outer:
        with HeldInterrupts() as inner:
            press()
            inner.check()
        with pytest.raises(KeyboardInterrupt):
            outer.check()


def test_a_handler_of_the_callers_own_is_called_once_and_need_not_raise() -> None:
    calls: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: calls.append(number))
    try:
        with HeldInterrupts():
            press()
            press()
            assert calls == []
        assert calls == [signal.SIGINT]
        press()
        assert calls == [signal.SIGINT] * 2
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_handler_installed_inside_the_block_stays() -> None:
    with HeldInterrupts():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert signal.signal(signal.SIGINT, signal.default_int_handler) is signal.SIG_IGN


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_no_handler_in_python_is_left_alone(handler: signal.Handlers) -> None:
    signal.signal(signal.SIGINT, handler)
    try:
        with HeldInterrupts():
            assert signal.getsignal(signal.SIGINT) is handler
    finally:
        found = signal.signal(signal.SIGINT, signal.default_int_handler)
    assert found is handler


def test_another_thread_steps_without_touching_the_handler() -> None:
    engine = FakeEngine()
    seen: list[object] = []
    launch = engine.runner.launch

    def looking(plan: Any) -> Any:
        seen.append(signal.getsignal(signal.SIGINT))
        return launch(plan)

    engine.runner.launch = looking  # type: ignore[method-assign]
    name = engine.add([1, 2, 3], 2)
    thread = threading.Thread(target=engine.run)
    thread.start()
    thread.join()
    assert engine.ids(name) == solo([1, 2, 3], 2)
    assert set(seen) == {signal.default_int_handler}
