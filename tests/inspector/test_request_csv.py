"""`nano-trace export --csv`: a row a request, whose parts add up; clear errors."""

from __future__ import annotations

import contextlib
import csv
from collections import Counter
from pathlib import Path

import pytest

from journals import busy_engine, writer_of
from nanolens.inspector.latency_reading import read_latency
from nanolens.inspector.trace_cli import main
from nanolens.telemetry.events import RequestArrived, RequestFinished, SequencePreempted
from nanolens.telemetry.latency import PARTS as ALL_PARTS
from nanolens.telemetry.reader import JournalReader
from planted_runs import MS, Planted, planted_events, planted_journal

PARTS = tuple(part for part in ALL_PARTS if part not in ("rank_skew", "stalled_step"))  # one rank, nothing held it up


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Preemptions, n > 1, aborts."""
    path = tmp_path_factory.mktemp("journal")
    busy_engine(path).core.close()
    return path


def test_parts_of_each_row_add_up_to_its_times(busy: Path, tmp_path: Path) -> None:
    assert main(["export", str(busy), "--csv", str(tmp_path / "out.csv")]) == 0
    rows = table(tmp_path / "out.csv")
    assert len(rows) == 24
    for row in rows:
        assert sum(int(row[f"{part}_ns"]) for part in PARTS) == int(row["e2e_ns"])
        assert sum(int(row[f"ttft_{part}_ns"]) for part in PARTS) == int(row["ttft_ns"] or 0)
    assert {row["finish_reason"] for row in rows} >= {"length", "abort"}
    assert {int(row["sequences"]) for row in rows} == {1, 2}
    assert any(int(row["preemptions"]) for row in rows)


def test_preemptions_and_tokens_are_those_of_all_sequences(busy: Path, tmp_path: Path) -> None:
    owner: dict[int, str] = {}
    preempted, generated = Counter[str](), Counter[str]()
    for event in (event for frame in JournalReader(busy).frames() for event in frame.events):
        if isinstance(event, RequestArrived):
            owner |= dict.fromkeys(event.seqs, event.request)
        elif isinstance(event, SequencePreempted):
            preempted[owner[event.seq]] += 1
        elif isinstance(event, RequestFinished):
            generated[event.request] = event.num_output_tokens
    assert main(["export", str(busy), "--csv", str(tmp_path / "out.csv")]) == 0
    rows = {row["request"]: row for row in table(tmp_path / "out.csv")}
    assert {name: int(row["preemptions"]) for name, row in rows.items()} == {name: preempted[name] for name in rows}
    assert {name: int(row["output_tokens"]) for name, row in rows.items()} == {name: generated[name] for name in rows}
    latency = read_latency(busy).latency
    several = [b for b in latency.breakdowns() if sum(map(bool, (track.preemptions for track in b.siblings))) > 1]
    assert several  # else those of the sequence that ended last are all there are


def test_a_row_holds_what_was_planted(tmp_path: Path) -> None:
    planted = [Planted(prompt=48, outputs=3, wait=7 * MS, hit=16, priority=2), Planted(outputs=1)]
    journal = planted_journal(tmp_path / "j", planted)
    assert main(["export", str(journal), "--csv", str(tmp_path / "out.csv")]) == 0
    first, second = table(tmp_path / "out.csv")
    expected = {
        "request": "req-0", "arrived_ns": "1000", "ended": "1", "finish_reason": "length", "priority": "2",
        "sequences": "1", "prompt_tokens": "48", "output_tokens": "3", "cached_tokens": "16", "preemptions": "0",
        "e2e_ns": str(70 * MS), "ttft_ns": str(28 * MS), "itl_ns": str(21 * MS), "queue_no_blocks_ns": str(7 * MS),
        "host_gap_ns": str(3 * MS), "own_prefill_ns": str(20 * MS), "own_decode_ns": str(40 * MS),
        "ttft_queue_no_blocks_ns": str(7 * MS), "ttft_own_decode_ns": "0",
    }  # fmt: skip
    assert {name: first[name] for name in expected} == expected
    assert (second["itl_ns"], second["request"]) == ("", "req-1")


def test_a_request_that_lives_has_a_row_up_to_the_journals_end(tmp_path: Path) -> None:
    events = planted_events([Planted(), Planted()])
    writer = writer_of(tmp_path / "j")
    cut = next(i for i, e in enumerate(events) if type(e).__name__ == "StepPlanned" and e.step == 8)  # type: ignore[union-attr]
    writer.append(events[1:cut])
    writer.close()
    assert main(["export", str(tmp_path / "j"), "--csv", str(tmp_path / "out.csv")]) == 0
    rows = table(tmp_path / "out.csv")
    assert [(row["ended"], row["finish_reason"]) for row in rows] == [("1", "length"), ("0", "")]


def test_a_dash_is_the_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = planted_journal(tmp_path / "j", [Planted()] * 2)
    assert main(["export", str(journal), "--csv", "-"]) == 0
    captured = capsys.readouterr()
    assert [line.split(",")[0] for line in captured.out.splitlines()] == ["request", "req-0", "req-1"]
    assert captured.err == "nano-trace export: run run: 2 requests written\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--csv", "no/such/folder/x.csv"], "can't be written (No such file or directory)"),
        (["--csv", "x.csv", "--file", "spans"], "--csv goes alone; leave --file out"),
        (["--csv", "x.csv", "--metrics-port", "0"], "--csv goes alone; leave --metrics-port out"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    journal = planted_journal(tmp_path / "j", [Planted()])
    with contextlib.chdir(tmp_path):
        assert main(["export", str(journal), *arguments]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1
    assert not (tmp_path / "x.csv").exists()


def test_a_name_that_a_spreadsheet_would_run_is_quoted(tmp_path: Path) -> None:
    events = planted_events([Planted()])
    for event in events:
        if getattr(event, "request", ""):
            event.request = "=1+1"  # type: ignore[union-attr]
    writer = writer_of(tmp_path / "j")
    writer.append(events[1:])
    writer.close()
    assert main(["export", str(tmp_path / "j"), "--csv", str(tmp_path / "out.csv")]) == 0
    assert table(tmp_path / "out.csv")[0]["request"] == "'=1+1"
