"""What watches an engine from outside: its progress in numbers, and notes put into its journal."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fake_core import FakeAsyncEngine
from fake_engine import FakeEngine
from nanolens.engine.sampling_params import SamplingParams
from nanolens.errors import EngineDead, InvalidRequest
from nanolens.telemetry.events import Mark
from nanolens.telemetry.reader import JournalReader


def test_progress_counts_the_sequences_in_each_state() -> None:
    engine = FakeEngine(block_size=4, max_num_seqs=2)
    for index in range(4):
        engine.add_request([1, 2, index], SamplingParams(max_tokens=50, temperature=0.0), request_id=f"r{index}")
    engine.step()
    engine.pause("r0")
    found = engine.progress
    assert (found.waiting, found.running, found.paused) == (2, 1, 1)
    assert found.has_work and found.step == 1 and found.engine_paused == ""


def test_progress_of_a_resting_engine_has_no_work_and_says_who_paused_it() -> None:
    engine = FakeEngine(block_size=4)
    engine.pause_engine("to look at it")
    assert not engine.progress.has_work
    assert engine.progress.engine_paused == "to look at it"


def test_a_mark_from_another_process_stands_in_the_journal(tmp_path: Path) -> None:
    async def main() -> int:
        async with FakeAsyncEngine("fake", journal=str(tmp_path)) as engine:
            await engine.mark("deploy 7 begins", "ci")
            return (await engine.progress()).step

    assert asyncio.run(main()) == 0
    marks = [event for frame in JournalReader(tmp_path).frames() for event in frame.events if isinstance(event, Mark)]
    assert [(mark.text, mark.origin) for mark in marks] == [("deploy 7 begins", "ci")]


@pytest.mark.parametrize("text", ["", "x" * 2001, "\ud800"])
def test_a_mark_that_no_journal_should_hold_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="text") as caught:
        FakeEngine(block_size=4).mark(text)
    assert caught.value.field == "text"


def test_a_closed_engine_takes_no_mark() -> None:
    engine = FakeEngine(block_size=4)
    engine.close()
    with pytest.raises(EngineDead):
        engine.mark("too late")


def test_a_live_sequence_is_located_by_its_number() -> None:
    engine = FakeEngine(block_size=4)
    engine.add_request([1], SamplingParams(max_tokens=5), request_id="a")
    engine.add_request([2], SamplingParams(n=3, max_tokens=5), request_id="b")
    assert [engine.locate(seq) for seq in range(5)] == [("a", 0), ("b", 0), ("b", 1), ("b", 2), None]
    engine.abort("b")
    assert engine.locate(2) is None


def test_a_sequence_is_located_from_another_process() -> None:
    async def main() -> list[tuple[str, int] | None]:
        async with FakeAsyncEngine("fake:0.01") as engine:
            turn = engine.generate([1, 2], SamplingParams(max_tokens=500, n=2), request_id="there")
            await turn.start()
            return [await engine.locate(1), await engine.locate(7)]

    assert asyncio.run(main()) == [("there", 1), None]
