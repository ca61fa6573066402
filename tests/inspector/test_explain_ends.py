"""nano-trace explain on what came to no end of its own: engines that are silent or dead, requests that were cut off."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fake_engine import FakeEngine
from journals import empty_keyframe, started, stopped
from nanolens.errors import PromptTooLong
from nanolens.inspector.engine_fate import fate_of
from nanolens.inspector.latency_reading import read_latency
from nanolens.inspector.sources.journal_source import JournalSource
from nanolens.inspector.trace_cli import main
from nanolens.telemetry.clock import boot_id
from nanolens.telemetry.events import EngineStarted, RequestRefused
from nanolens.telemetry.journal import JournalWriter
from nanolens.telemetry.state import EngineState
from planted_causes import prompt, steps, written
from timed_engine import timed_engine

S = 1_000_000_000
Output = pytest.CaptureFixture[str]


def silent(pid: int, boot: str | None = None, ahead: int = 0, is_paused: bool = True) -> FakeEngine:
    """An engine of a process that was paused with a request under way; its clock may be ahead of this one's."""
    engine, clock = timed_engine()
    clock.now = time.monotonic_ns() + ahead
    first = engine.events[0]
    assert isinstance(first, EngineStarted)
    first.t, first.pid, first.boot_id = clock.now, pid, boot_id() if boot is None else boot
    engine.add_request(prompt(8), None, request_id="a")
    steps(engine, 6)
    if is_paused:
        engine.pause_engine()
    return engine


@pytest.fixture(scope="module")
def gone() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(60)
    return process.pid


def said(capsys: Output, *arguments: object) -> str:
    assert main(["explain", *map(str, arguments)]) == 0
    return " ".join(capsys.readouterr().out.split())


def as_json(capsys: Output, *arguments: object) -> dict[str, Any]:
    found = json.loads(said(capsys, *arguments, "--json"))
    assert isinstance(found, dict)
    return found


def refused(capsys: Output, *arguments: object) -> str:
    assert main(["explain", *map(str, arguments)]) == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.fixture
def eight_seconds_later(monkeypatch: pytest.MonkeyPatch) -> None:
    before = time.monotonic_ns
    monkeypatch.setattr("nanolens.inspector.latency_reading.monotonic_ns", lambda: before() + 8 * S)


def test_while_the_engine_lives_its_silence_counts_up_to_now(
    tmp_path: Path, capsys: Output, eight_seconds_later: None
) -> None:
    engine = silent(os.getpid())
    journal = written(engine, tmp_path)
    found = as_json(capsys, journal, "a")
    one = found["requests"][0]
    assert found["engine"] == "live" and not one["ended"]
    assert sum(one["parts"].values()) == one["total_ns"] == sum(piece["duration_ns"] for piece in one["evidence"])
    assert one["parts"]["engine_paused"] > 7 * S
    assert one["verdict"]["headline"].startswith("a lives and has taken 8.")
    assert one["verdict"]["headline"].endswith("while the engine was paused: operator.")


def test_a_request_whose_engine_died_is_told_up_to_the_last_record(
    gone: int, tmp_path: Path, capsys: Output, eight_seconds_later: None
) -> None:
    engine = silent(gone)
    journal = written(engine, tmp_path)
    found = as_json(capsys, journal, "a")
    one = found["requests"][0]
    assert found["engine"] == "dead" and one["total_ns"] < S and not one["ended"]
    assert one["verdict"]["headline"].startswith("a had taken ")
    assert " when its engine died: " in one["verdict"]["headline"]
    (note,) = found["notes"]
    assert note.startswith("its engine died: the process is gone without engine.stopped; the last record is of 20")
    assert "its engine died: the process is gone" in said(capsys, journal, "a")


def test_nano_inspect_says_of_the_last_moment_alone_that_the_engine_died(gone: int, tmp_path: Path) -> None:
    source = JournalSource(written(silent(gone), tmp_path))
    source.start()
    deadline = time.monotonic() + 20
    while source.status.state != "dead":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    last = source.view()
    before = source.view(source.at_step(4))
    headlines = [source.verdict(0, view.moment, view.now_t) for view in (last, before)]
    source.close()
    died, lived = (found.headline if found is not None else "" for found in headlines)
    assert died.startswith("a had taken ") and " when its engine died: " in died
    assert lived.startswith("a lives and has taken ")


def test_where_the_engine_cannot_be_seen_that_is_not_called_a_death(gone: int, tmp_path: Path, capsys: Output) -> None:
    found = as_json(capsys, written(silent(gone, "another boot"), tmp_path), "a")
    assert (found["engine"], found["notes"]) == ("unseen", [])
    assert " at the journal's last record: " in found["requests"][0]["verdict"]["headline"]


def test_of_an_engine_that_was_stopped_by_a_signal_it_is_said_since_when_nothing_was_written(
    tmp_path: Path, capsys: Output
) -> None:
    process = subprocess.Popen(["sleep", "600"])
    try:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        found = as_json(capsys, written(silent(process.pid), tmp_path), "a")
    finally:
        process.kill()
        process.wait(60)
    (note,) = found["notes"]
    assert found["engine"] == "stale"
    assert re.fullmatch(
        r"its engine hangs: the process was stopped by a signal \(SIGSTOP\); nothing has been written for \S+; "
        r"the last record is of 20\S+",
        note,
    )


@pytest.mark.parametrize("is_paused", [False, True])
def test_an_engine_that_lives_and_writes_nothing_while_it_has_work_may_hang(
    is_paused: bool, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = time.monotonic_ns
    monkeypatch.setattr("nanolens.inspector.latency_reading.monotonic_ns", lambda: before() + 12 * S)
    found = as_json(capsys, written(silent(os.getpid(), is_paused=is_paused), tmp_path), "a")
    said_of_it = "its engine lives, but may hang: with requests running, nothing has been written for "
    assert found["engine"] == "live"
    assert [note.startswith(said_of_it) for note in found["notes"]] == ([] if is_paused else [True])


def test_a_segment_of_a_run_that_goes_on_is_said_to_be_one(tmp_path: Path, capsys: Output) -> None:
    (segment,) = written(silent(os.getpid()), tmp_path).glob("*.journal")
    found = as_json(capsys, segment, "a")
    assert found["engine"] == "stale"
    assert found["notes"][0].startswith("one segment of a run that goes on; the last record is of 20")


AHEAD = 5000 * S
IN_NAMESPACE = ["unshare", "-T", "--monotonic", "5000", "--boottime", "5000"]
HAS_TIME_NAMESPACES = shutil.which("unshare") is not None and not subprocess.run(
    [*IN_NAMESPACE, "true"], capture_output=True, check=False
).returncode


@pytest.mark.skipif(not HAS_TIME_NAMESPACES, reason="no time namespace can be made here")
@pytest.mark.parametrize("seconds", [5000, -5])
def test_an_engine_in_a_time_namespace_lives(seconds: int, tmp_path: Path, capsys: Output) -> None:
    ahead = [word.replace("5000", str(seconds)) for word in IN_NAMESPACE]
    process = subprocess.Popen([*ahead, "sleep", "600"])
    try:
        while Path(f"/proc/{process.pid}/comm").read_text() != "sleep\n":
            time.sleep(0.01)
        found = as_json(capsys, written(silent(process.pid, ahead=seconds * S), tmp_path), "a")
    finally:
        process.kill()
        process.wait(60)
    assert (found["engine"], found["notes"]) == ("live", [])
    assert 0 < found["requests"][0]["total_ns"] < 60 * S  # up to now on its own clock


def test_of_another_clock_whose_process_is_not_found_nothing_is_claimed(
    gone: int, tmp_path: Path, capsys: Output
) -> None:
    found = as_json(capsys, written(silent(gone, ahead=AHEAD), tmp_path), "a")
    assert found["engine"] == "unseen"
    assert "(in a time namespace), and its process is not found: whether its engine lives can't be told" in (
        found["notes"][0]
    )


def test_nano_inspect_does_not_call_that_engine_dead(gone: int, tmp_path: Path) -> None:
    source = JournalSource(written(silent(gone, ahead=AHEAD), tmp_path))
    source.start()
    deadline = time.monotonic() + 20
    while source.status.state == "connecting":  # the process is looked for before that is over
        assert time.monotonic() < deadline
        time.sleep(0.02)
    state = source.status.state
    source.close()
    assert state == "live"


def test_the_fate_of_an_engine(gone: int, tmp_path: Path) -> None:
    def fate(pid: int, path: Path = tmp_path, boot: str = "") -> str:
        state = EngineState()
        first = started()
        first.pid, first.t, first.boot_id = pid, time.monotonic_ns(), boot
        state.apply(first)
        return fate_of(state, path)

    segment = tmp_path / "segment"
    segment.touch()
    assert (fate(os.getpid()), fate(os.getpid(), boot=boot_id()), fate(gone)) == ("live", "live", "dead")
    assert (fate(os.getpid(), segment), fate(os.getpid(), boot="other")) == ("stale", "unseen")
    ended = EngineState()
    for event in (started(), stopped()):
        ended.apply(event)
    assert fate_of(ended, tmp_path) == "stopped"


def ending(capsys: Output, journal: Path, *arguments: str) -> tuple[str | None, str | None, str | None]:
    one = as_json(capsys, journal, *arguments)["requests"][0]
    return one["finish_reason"], one["end"], one["error"]


def spans_of(journal: Path, path: Path, capsys: Output) -> Path:
    assert main(["export", str(journal), "--once", "--remote", "--file", str(path)]) == 0
    capsys.readouterr()
    return path


def test_an_abort_is_in_the_headline(tmp_path: Path, capsys: Output) -> None:
    engine, _ = timed_engine()
    request = engine.add(prompt(8), 30)
    steps(engine, 4)
    engine.abort(request)
    journal = written(engine, tmp_path / "journal")
    assert said(capsys, journal).startswith("req-0 was aborted after 10.3 ms")
    assert ending(capsys, journal) == ("abort", "aborted", None)
    assert "It was aborted (abort)." in said(capsys, journal, request, "--by", "ttft")
    spans = spans_of(journal, tmp_path / "spans", capsys)
    assert said(capsys, "--spans", spans).startswith("req-0 was aborted after 10.3 ms")
    assert ending(capsys, "--spans", spans) == ("abort", "aborted", None)  # type: ignore[arg-type]


def test_an_expiry_is_in_the_headline(tmp_path: Path, capsys: Output) -> None:
    engine, clock = timed_engine(paused_ttl_s=5.0)
    request = engine.add(prompt(8), 30)
    steps(engine, 4)
    engine.pause(request)
    clock.now += 6 * S
    engine.step()
    journal = written(engine, tmp_path)
    text = said(capsys, journal)
    assert text.startswith("req-0 expired after 6.") and "longer than paused_ttl_s lets a sequence rest" in text
    assert ending(capsys, journal) == ("abort", "expired", None)


def test_an_error_is_told_with_its_message(tmp_path: Path, capsys: Output) -> None:
    engine, _ = timed_engine()
    request = engine.add(prompt(8), 30)
    steps(engine, 4)
    seq = engine.seq(request).seq_id
    engine.runner.fail_rows = lambda plan: {seq: "not a number"}
    steps(engine, 1)
    journal = written(engine, tmp_path / "journal")
    text = said(capsys, journal)
    assert text.startswith("req-0 ended in an error after ") and "It ended in an error: " in text
    assert "not a number" in text
    reason, how, error = ending(capsys, journal)
    assert (reason, how) == ("error", "error") and error is not None and "not a number" in error
    assert "not a number" in said(capsys, "--spans", spans_of(journal, tmp_path / "spans", capsys))


def test_an_end_of_its_own_is_told_last(tmp_path: Path, capsys: Output) -> None:
    engine, _ = timed_engine()
    engine.add(prompt(8), 3)
    engine.run()
    journal = written(engine, tmp_path)
    assert ending(capsys, journal) == ("length", "length", None)
    assert "3 tokens generated. It ended at the most tokens that it could have (length). after for what" in said(
        capsys, journal
    )


def test_a_request_that_was_refused_is_told_with_the_reason(tmp_path: Path, capsys: Output) -> None:
    engine, _ = timed_engine()
    with pytest.raises(PromptTooLong):
        engine.add_request(prompt(600), None, request_id="long")
    engine.add(prompt(8), 3)
    engine.run()
    journal = written(engine, tmp_path / "one")
    assert refused(capsys, journal, "long") == (
        f"nano-trace: {journal}: request 'long' was refused: prompt (PromptTooLong); it took no time in the engine"
    )
    other, _ = timed_engine()
    other.events[0].run_id = "other"  # type: ignore[union-attr]
    other.core.started.run_id = "other"
    other.add(prompt(8), 3)
    other.run()
    beside = written(other, tmp_path / "two")
    assert "one: 'long' was refused: prompt (PromptTooLong)" in refused(capsys, journal, beside, "long")
    assert read_latency(journal).refused["long"].field == "prompt"


def test_a_journal_of_refusals_alone_says_so(tmp_path: Path, capsys: Output) -> None:
    writer = JournalWriter(tmp_path, "run")
    writer.make_keyframe = empty_keyframe
    writer.append([started(), RequestRefused(1, "r", "prompt", "PromptTooLong"), stopped()])
    writer.close()
    assert "holds no request but 'r' was refused: prompt (PromptTooLong)" in refused(capsys, tmp_path)
