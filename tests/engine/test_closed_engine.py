"""After the end: what a closed engine answers, and how one ends that nobody closes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nanolens.engine.llm import LLM
from nanolens.errors import EngineDead
from nanolens.inspector.trace_cli import main as nano_trace
from nanolens.telemetry.events import EngineStopped
from nanolens.telemetry.reader import JournalReader
from real_engine import greedy, tiny_llm

QUESTION = [{"role": "user", "content": "Which way is up?"}]
USES: dict[str, Callable[[LLM], Any]] = {
    "add_request": lambda llm: llm.engine.add_request("hello"),
    "step": lambda llm: llm.engine.step(),
    "generate": lambda llm: llm.generate("hello", use_tqdm=False),
    "generate nothing": lambda llm: llm.generate([], use_tqdm=False),
    "chat": lambda llm: llm.chat(QUESTION, use_tqdm=False),
    "stream": lambda llm: next(llm.stream("hello")),  # type: ignore[call-overload]
}


def reasons(journal: Path) -> list[str]:
    """The reason of every engine.stopped in a journal that is in order."""
    assert nano_trace(["check", str(journal)]) == 0
    events = [event for frame in JournalReader(journal).frames() for event in frame.events]
    assert isinstance(events[-1], EngineStopped)
    return [event.reason for event in events if isinstance(event, EngineStopped)]


@pytest.mark.parametrize("use", USES)
def test_a_closed_engine_says_so_and_leaves_its_runner_alone(use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = tiny_llm()
    llm.close()
    launched: list[object] = []
    monkeypatch.setattr(llm.engine.core.runner, "launch", launched.append)
    with pytest.raises(EngineDead, match=r"^the engine is closed$"):
        USES[use](llm)
    assert launched == []


@pytest.mark.parametrize("use", ["generate", "chat", "stream"])
def test_a_runner_that_has_failed_meanwhile_is_told_by_the_next_call(use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = tiny_llm()
    monkeypatch.setattr(llm.engine.core.runner, "look", lambda: "rank 1 was killed")
    with pytest.raises(EngineDead, match=r"^rank 1 was killed$"):
        USES[use](llm)
    assert not llm.engine.core.requests
    assert not llm.engine.has_work


def test_an_abort_after_the_end_finds_nothing_and_a_second_close_does_nothing(tmp_path: Path) -> None:
    llm = tiny_llm(journal=str(tmp_path))
    name = llm.engine.add_request("hello", greedy(4))
    llm.close()
    assert llm.engine.abort(name) is False
    llm.close()
    assert reasons(tmp_path) == ["closed"]


def test_a_stream_that_is_being_read_ends_with_its_engine() -> None:
    llm = tiny_llm()
    stream = llm.stream("hello", greedy(50))
    next(stream)
    llm.close()
    assert [delta.finish_reason for delta in stream] == ["abort"]


def test_a_callback_that_exits_does_not_keep_the_journal_from_its_end(tmp_path: Path) -> None:
    llm = tiny_llm(journal=str(tmp_path))

    def leave(_: object) -> None:
        raise SystemExit

    llm.engine.add_request("hello", greedy(4), on_finish=leave)
    with pytest.raises(SystemExit):
        llm.close()
    events = [event for frame in JournalReader(tmp_path).frames() for event in frame.events]
    assert isinstance(events[-1], EngineStopped)


def test_an_engine_that_nobody_holds_any_more_is_closed(tmp_path: Path) -> None:
    llm = tiny_llm(journal=str(tmp_path))
    llm.generate("hello", greedy(4), use_tqdm=False)
    gone = weakref.ref(llm)
    del llm
    gc.collect()
    assert gone() is None
    assert reasons(tmp_path) == ["exit"]


def test_an_engine_outlives_its_llm_as_long_as_someone_holds_it() -> None:
    engine = tiny_llm().engine
    gc.collect()
    assert engine.add_request("hello", greedy(4))
    while engine.step():
        pass
    engine.close()


def run_program(tmp_path: Path, end: str) -> list[str]:
    """Use an engine in a program that ends with the lines of `end`; the reasons in its journal."""
    program = f"""
import os, sys
from nanolens.engine.llm import LLM
from nanolens.engine.sampling_params import SamplingParams
llm = LLM("dummy:llama-tiny", device="cpu", num_blocks=64, block_size=4, journal={str(tmp_path)!r})
llm.generate("hello", SamplingParams(max_tokens=4), use_tqdm=False)
llm.engine.add_request("left", SamplingParams(max_tokens=400))
llm.engine.step()
{end}
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "Exception ignored" not in done.stderr and "finalize" not in done.stderr, done.stderr
    return reasons(tmp_path)


@pytest.mark.parametrize(
    ("end", "reason"),
    [("", "exit"), ("sys.exit(3)", "exit"), ("raise KeyboardInterrupt", "exit"), ("llm.close()", "closed"),
     ("if os.fork() == 0: sys.exit(0)\nos.wait()", "exit")],
    ids=["end", "exit", "interrupt", "closed", "a fork ends first"],
)  # fmt: skip
def test_a_program_that_ends_leaves_a_journal_that_ends_once(end: str, reason: str, tmp_path: Path) -> None:
    assert run_program(tmp_path, end) == [reason]
