"""Readers that hold their streams up: what of it reaches the journal, and what is said of their requests."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fake_core import FakeAsyncEngine
from fake_engine import FakeEngine
from nanolens.errors import EngineDead, InvalidRequest
from nanolens.server.stalls import EVERY_NS, StallNotes
from nanolens.telemetry.events import RequestFinished, StreamStalled
from nanolens.telemetry.reader import JournalReader
from serve import Server, reader_that_does_not_read

MS = 1_000_000


class Told:
    """What the journal is told, at times that a test sets."""

    def __init__(self) -> None:
        self.now = 5 * EVERY_NS
        self.events: list[tuple[str, int, int, int]] = []
        self.notes = StallNotes(lambda *told: self.events.append(told), lambda: self.now)

    def add(self, after_ns: int, ns: int, **waiting: int) -> int:
        self.now += after_ns
        self.notes.add(waiting, ns)
        return self.now


def test_the_first_stall_of_a_request_is_told_at_once() -> None:
    told = Told()
    t = told.add(0, 200 * MS, a=3)
    assert told.events == [("a", 200 * MS, 3, t)]


def test_stalls_within_a_second_are_told_as_one_with_their_sum_and_the_last_end() -> None:
    told = Told()
    told.add(0, 200 * MS, a=3)
    told.add(300 * MS, 250 * MS, a=9)
    told.add(300 * MS, 150 * MS, a=4)
    assert len(told.events) == 1
    t = told.add(500 * MS, 400 * MS, a=1)
    assert told.events[1:] == [("a", 800 * MS, 9, t)]


def test_what_was_not_told_is_told_when_the_stream_ends_as_of_the_last_stall() -> None:
    told = Told()
    told.add(0, 200 * MS, a=3)
    t = told.add(300 * MS, 250 * MS, a=9)
    told.now += 7 * EVERY_NS
    told.notes.end(["a"])
    told.notes.end(["a"])
    assert told.events[1:] == [("a", 250 * MS, 9, t)]


def test_a_stream_whose_stalls_are_told_ends_in_silence() -> None:
    told = Told()
    told.add(0, 200 * MS, a=3)
    told.notes.end(["a", "never slow"])
    assert len(told.events) == 1


def test_requests_of_one_stream_are_told_each_and_do_not_silence_others() -> None:
    told = Told()
    told.add(0, 200 * MS, a=3, b=0)
    told.add(100 * MS, 300 * MS, c=1)
    assert [event[:3] for event in told.events] == [("a", 200 * MS, 3), ("b", 200 * MS, 0), ("c", 300 * MS, 1)]


def test_a_stall_told_from_another_process_stands_in_the_journal_as_of_its_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with FakeAsyncEngine("fake", journal=str(tmp_path)) as engine:
            await engine.note_stall("a", 250 * MS, 7, 5)

    asyncio.run(main())
    events = [event for frame in JournalReader(tmp_path).frames() for event in frame.events]
    assert StreamStalled(5, "a", 250 * MS, 7) in events


def test_a_stall_does_not_end_later_than_it_is_told() -> None:
    engine = FakeEngine(block_size=4)
    seen: list[StreamStalled] = []
    engine.core.recorder.subscribe(lambda events: seen.extend(e for e in events if isinstance(e, StreamStalled)))
    engine.note_stall("a", 5, 1, 2**62)
    engine.note_stall("a", 6, 1)
    assert [event.stalled_ns for event in seen] == [5, 6] and all(0 < event.t < 2**62 for event in seen)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [(("\ud800", 1, 0), "request_id"), (("a", 0, 0), "stalled_ns"), (("a", 1, -1), "pieces"),
     (("a", 1, 0, 1.5), "end_t"), (("a", 2**63, 0), "stalled_ns"), (("a", True, 0), "stalled_ns")],
)  # fmt: skip
def test_a_stall_that_can_not_be_is_refused(arguments: tuple[object, ...], field: str) -> None:
    with pytest.raises(InvalidRequest, match=field) as caught:
        FakeEngine(block_size=4).note_stall(*arguments)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_a_closed_engine_takes_no_stall() -> None:
    engine = FakeEngine(block_size=4)
    engine.close()
    with pytest.raises(EngineDead):
        engine.note_stall("a", 1, 1)


def test_explain_names_a_reader_that_sleeps_first(tmp_path: Path) -> None:
    with Server(tmp_path, num_blocks=2000, max_num_seqs=8) as server:
        began = time.monotonic()
        with reader_that_does_not_read(server, "sleepy-1") as slow:
            server.wait_until(lambda: any(isinstance(e, RequestFinished) for e in server.events()), "done")
            time.sleep(2 * (time.monotonic() - began))  # longer than all that the engine did
            end = b""
            while b"data: [DONE]" not in end:
                end = end[-20:] + slow.recv(1 << 20)
        server.wait_until(lambda: any(isinstance(e, StreamStalled) for e in server.events()), "told")
        stalls = [event for event in server.events() if isinstance(event, StreamStalled)]
        finished = next(event for event in server.events() if isinstance(event, RequestFinished))
    assert {event.request for event in stalls} == {"sleepy-1"} and stalls[-1].t > finished.t
    command = [sys.executable, "-P", "-m", "nanolens.inspector.trace_cli", "explain", str(server.journal), "sleepy-1"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    first = said.split("\n\n")[0]
    assert "waiting for its own reader, which held its stream up" in " ".join(first.split())
    assert "back_pressure" in said
