"""A process that is forked off an engine's: there the engine counts as closed, and the parent's goes on as it was."""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from fake_engine import FakeEngine, solo
from fake_ranks import ranks_engine
from nanolens.engine.llm import LLM
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
