"""nano-trace tail and check, as a user runs them."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from journals import busy_engine, marks, stopped, writer_of
from nanolens.inspector.describe import _WORDS, describe
from nanolens.telemetry.events import AnyEvent
from nanolens.telemetry.frames import parse_header
from nanolens.telemetry.journal import JournalWriter
from nanolens.telemetry.reader import JournalReader

COMMAND = [sys.executable, "-P", "-m", "nanolens.inspector.trace_cli"]


def nano_trace(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload, no-any-return]


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished journal of several segments."""
    path = tmp_path_factory.mktemp("journal")
    busy_engine(path, segment_bytes=1 << 16).core.close()
    return path


def test_tail_prints_one_line_for_each_event(journal: Path) -> None:
    run = nano_trace("tail", journal)
    count = sum(len(frame.events) for frame in JournalReader(journal).frames())
    lines = run.stdout.splitlines()
    assert (run.returncode, run.stderr, len(lines)) == (0, "", count)
    assert "engine started: run test, model fake, 20 blocks of 4 tokens" in lines[0]
    assert any("preempted for seq" in line for line in lines)
    assert lines[-1].endswith("engine stopped (closed)")
    assert "\x1b" not in run.stdout


def test_tail_json_gives_names_and_values(journal: Path) -> None:
    run = nano_trace("tail", journal, "--json")
    events = [json.loads(line) for line in run.stdout.splitlines()]
    assert events[0]["event"] == "engine.started"
    assert events[0]["num_blocks"] == 20
    keyframe = next(event for event in events if event["event"] == "keyframe" and event["sequences"])
    assert keyframe["started"]["run_id"] == "test"
    assert keyframe["sequences"][0]["status"] in ("WAITING", "RUNNING")
    cached = next(event for event in events if event["event"] == "blocks.cached")
    assert len(bytes.fromhex(cached["hashes"])) == 8 * len(cached["blocks"])


def test_tail_seq_shows_what_names_the_sequence(journal: Path) -> None:
    events = [json.loads(line) for line in nano_trace("tail", journal, "--json", "--seq", 3).stdout.splitlines()]
    assert {event["event"] for event in events} >= {"request.arrived", "sequence.status", "blocks.allocated"}
    for event in events:
        named = [event.get("seq"), event.get("by"), *event.get("seqs", []), *event.get("idle", []),
                 *(chunk[0] for chunk in event.get("chunks", [])), *event.get("wasted", [])]  # fmt: skip
        assert 3 in named


def test_tail_request_shows_all_its_sequences(journal: Path) -> None:
    arrived = [json.loads(line) for line in nano_trace("tail", journal, "--json").stdout.splitlines()]
    twin = next(event for event in arrived if event["event"] == "request.arrived" and len(event["seqs"]) == 2)
    run = nano_trace("tail", journal, "--json", "--request", twin["request"])
    events = [json.loads(line) for line in run.stdout.splitlines()]
    assert events[0] == twin
    assert events[-1]["event"] == "request.finished"
    assert {event["seq"] for event in events if event["event"] == "sequence.status"} == set(twin["seqs"])


def test_tail_follow_ends_with_the_run(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    child = subprocess.Popen([*COMMAND, "tail", str(tmp_path), "--follow"], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert "engine started" in child.stdout.readline()
        writer.append(marks(1, text="hello"))
        assert "mark by test: hello" in child.stdout.readline()
        writer.append([stopped()])
        assert "engine stopped" in child.stdout.readline()
        assert child.wait(timeout=30) == 0
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()


def test_tail_says_that_the_end_is_torn(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    writer.append(marks(1))
    writer.path.write_bytes(writer.path.read_bytes()[:-2])
    run = nano_trace("tail", tmp_path)
    assert run.returncode == 0
    assert "ends in an unfinished frame of" in run.stderr


def test_tail_ends_quietly_when_nobody_reads_on(journal: Path) -> None:
    child = subprocess.Popen([*COMMAND, "tail", str(journal)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.readline()
    child.stdout.close()
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait(timeout=30) == 0


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_tail_colours_a_terminal_unless_told_not_to(journal: Path, no_color: str, coloured: bool) -> None:
    master, slave = pty.openpty()
    child = subprocess.Popen([*COMMAND, "tail", str(journal)], stdout=slave, env=os.environ | {"NO_COLOR": no_color})
    os.close(slave)
    shown = b""
    try:
        while chunk := os.read(master, 1 << 16):
            shown += chunk
    except OSError:
        pass  # a terminal without a writer
    os.close(master)
    assert child.wait(timeout=30) == 0
    assert (b"\x1b[" in shown) == coloured


def test_check_passes_a_true_journal_in_one_line(journal: Path) -> None:
    run = nano_trace("check", journal)
    assert (run.returncode, run.stderr) == (0, "")
    (line,) = run.stdout.splitlines()
    assert line.startswith("run run: ok: ")
    assert "still runs" not in line


def test_check_passes_a_journal_that_lost_its_beginning(tmp_path: Path) -> None:
    busy_engine(tmp_path, segment_bytes=1 << 15).core.close()
    for number in JournalReader(tmp_path).segments()[:2]:
        (tmp_path / f"run-{number:06d}.journal").unlink()
    run = nano_trace("check", tmp_path)
    assert run.returncode == 0, run.stdout
    assert "its beginning is no longer on disk" in run.stdout


def test_check_passes_over_a_gap_in_the_middle(tmp_path: Path) -> None:
    busy_engine(tmp_path, segment_bytes=1 << 15).core.close()
    (tmp_path / "run-000002.journal").unlink()
    run = nano_trace("check", tmp_path)
    assert run.returncode == 0, run.stdout
    assert "1 gap of deleted segments" in run.stdout


def test_check_says_that_the_engine_did_not_stop(tmp_path: Path) -> None:
    busy_engine(tmp_path)
    run = nano_trace("check", tmp_path)
    assert run.returncode == 0
    assert "the engine still runs or died, 0 sequences live" in run.stdout


def test_check_ends_with_1_and_the_first_violation(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    writer.append([stopped()])
    writer.append(marks(1))
    run = nano_trace("check", tmp_path)
    assert run.returncode == 1
    assert run.stdout == "run run: step 0, event 3 (mark): comes after engine.stopped, the last event of a run\n"


def test_an_unreadable_journal_ends_with_2_and_words(tmp_path: Path) -> None:
    for command in ("tail", "check"):
        run = nano_trace(command, tmp_path / "absent")
        assert (run.returncode, run.stdout) == (2, "")
        assert run.stderr.startswith("nano-trace: ")
        assert "no such file or directory" in run.stderr
        assert "Traceback" not in run.stderr


@pytest.mark.parametrize("command", ["tail", "check"])
def test_an_empty_path_is_not_the_current_directory(command: str, journal: Path) -> None:
    run = nano_trace(command, "", cwd=journal)
    assert (run.returncode, run.stdout) == (2, "")
    assert "path is empty" in run.stderr


def test_check_of_a_journal_without_a_whole_frame_ends_with_2(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    size = writer.path.stat().st_size
    header = parse_header(writer.path.read_bytes(), "")
    assert header is not None
    for length in (size - 1, header.size):
        os.truncate(writer.path, length)
        run = nano_trace("check", tmp_path)
        assert (run.returncode, run.stdout) == (2, "")
        assert "nothing to check: it holds no whole frame" in run.stderr


def test_check_of_a_journal_without_a_state_ends_with_2(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, "run")
    writer.append(marks(3))
    writer.close()
    run = nano_trace("check", tmp_path)
    assert (run.returncode, run.stdout) == (2, "")
    assert "nothing to check: it holds 1 frame without engine.started and without a keyframe" in run.stderr


def test_wrong_usage_ends_with_2() -> None:
    assert nano_trace().returncode == 2
    assert nano_trace("tail").returncode == 2


def test_there_are_words_for_every_kind_of_event() -> None:
    engine = busy_engine()
    engine.core.close()
    for event in engine.events:
        assert "\n" not in describe(event)
    assert set(_WORDS) == set(get_args(AnyEvent))
