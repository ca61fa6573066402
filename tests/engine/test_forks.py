"""A process that is forked off an engine's: there the engine counts as closed, and the parent's goes on as it was."""

from __future__ import annotations

import gc
import logging
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from fake_engine import FakeEngine, solo
from fake_ranks import ranks_engine
from nanolens.engine.forks import leave_in_forks
from nanolens.engine.llm import LLM
from nanolens.engine.outputs import Delta
from nanolens.errors import EngineDead
from nanolens.inspector.trace_cli import main as nano_trace
from real_engine import greedy, tiny_llm

PROMPT = list(range(3, 40))


def in_a_fork(work: Callable[[], None]) -> None:
    """Do something in a fork of this process, in which it must not fail."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def misuse(llm: LLM, name: str) -> None:
    for use in (
        lambda: llm.generate([PROMPT], greedy(5), use_tqdm=False),
        lambda: llm.engine.add_request(PROMPT, greedy(5)),
        llm.engine.step,
        lambda: llm.resume(name),
    ):
        with pytest.raises(EngineDead, match=rf"^the engine is that of process {os.getppid()}, of which this one is a"):
            use()
    llm.engine.abort(name)
    llm.engine.core.flush()
    llm.close()


def test_an_engine_can_not_be_used_in_a_fork_and_its_journal_is_the_parents(tmp_path: Path) -> None:
    with tiny_llm(journal=str(tmp_path)) as llm:
        before = llm.generate([PROMPT], greedy(5), use_tqdm=False)
        name = llm.engine.add_request(PROMPT[::-1], greedy(5))
        llm.engine.step()
        in_a_fork(lambda: misuse(llm, name))
        while llm.engine.step():
            pass
        after = llm.generate([PROMPT], greedy(5), use_tqdm=False)
    assert [output.outputs[0].token_ids for output in before] == [output.outputs[0].token_ids for output in after]
    assert nano_trace(["check", str(tmp_path)]) == 0


def test_an_engine_that_is_let_go_of_in_a_fork_stays_open_in_the_parent(tmp_path: Path) -> None:
    llms = [tiny_llm(journal=str(tmp_path))]

    def let_go() -> None:
        llms.clear()
        gc.collect()

    in_a_fork(let_go)
    assert llms[0].generate([PROMPT], greedy(5), use_tqdm=False)[0].outputs[0].finish_reason == "length"
    llms[0].close()
    assert nano_trace(["check", str(tmp_path)]) == 0


def test_a_fork_leaves_the_ranks_to_its_parent() -> None:
    engine: FakeEngine = ranks_engine(2)
    try:
        first = engine.add(PROMPT, 6)
        engine.run()

        def use() -> None:
            with pytest.raises(EngineDead, match="of which this one is a fork"):
                engine.add(PROMPT[::-1], 20)
            engine.core.close()

        in_a_fork(use)
        again = engine.add(PROMPT, 6)
        engine.run()
        assert engine.ids(first) == engine.ids(again) == solo(PROMPT, 6)
    finally:
        engine.core.close()


class Left:
    """What is left in a fork, and why."""

    reason = ""

    def leave(self, reason: str) -> None:
        self.reason = reason


def test_a_fork_of_a_fork_names_the_process_that_the_engine_is_of() -> None:
    engine, owner = Left(), os.getpid()
    leave_in_forks(engine)

    def look() -> None:
        assert engine.reason.startswith(f"the engine is that of process {owner}, ")

    in_a_fork(lambda: in_a_fork(look))


class ForkedAt:
    """A callback that forks at its `at`th call, and ends the child there, by SystemExit.

    Attributes:
        child: in the parent, the child's process.
    """

    def __init__(self, at: int) -> None:
        self.child, self._left = -1, at

    def __call__(self, delta: Delta) -> None:
        self._left -= 1
        if self._left == 0:
            self.child = os.fork()
            if self.child == 0:
                sys.exit(3)


def ended(engine: FakeEngine, callback: ForkedAt, work: Callable[[], object], caplog: pytest.LogCaptureFixture) -> None:
    """Do something in which a callback forks. In the child nothing but SystemExit may come of it, and no other call."""
    used: list[str] = []

    class Watched:
        """The runner, whose calls in the child are noted."""

        def __getattr__(self, name: str) -> object:
            if callback.child == 0:
                used.append(name)
            return getattr(runner, name)

    runner = engine.core.runner
    engine.core.runner = Watched()  # type: ignore[assignment]
    try:
        work()
    except BaseException as error:
        if callback.child == 0:
            said = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
            print(repr(error), used, said, file=sys.stderr)
            os._exit(0 if isinstance(error, SystemExit) and not used and not said else 1)
        raise
    if callback.child == 0:
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(callback.child, 0)[1]) == 0


def test_a_fork_may_end_within_a_callback_and_the_step_is_not_its_failure(caplog: pytest.LogCaptureFixture) -> None:
    engine, callback = FakeEngine(num_blocks=64, host_blocks=8), ForkedAt(3)
    first, other = engine.add(PROMPT, 6), engine.add(PROMPT[::-1], 6)
    engine.core.requests[first].on_output = callback
    ended(engine, callback, engine.run, caplog)
    assert (engine.ids(first), engine.ids(other)) == (solo(PROMPT, 6), solo(PROMPT[::-1], 6))


@pytest.mark.parametrize("end", ["close", "die"])
def test_a_fork_that_ends_while_its_parent_closes_gives_back_nothing(
    end: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine, callback = FakeEngine(num_blocks=64), ForkedAt(1)
    engine.core.requests[engine.add(PROMPT, 6)].on_output = callback
    caplog.set_level(logging.CRITICAL)
    ended(engine, callback, engine.core.close if end == "close" else lambda: engine.core.die("gone"), caplog)
