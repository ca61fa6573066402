"""`nano-trace top`: what was planted in the slowest requests comes out on top, beside the median ones."""

from __future__ import annotations

import csv
import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from journals import busy_engine, stopped, writer_of
from nanolens.inspector.latency_reading import read_latency
from nanolens.inspector.request_table import request_table
from nanolens.inspector.tail_culprits import tail_culprits
from nanolens.inspector.tail_report import tail_report
from nanolens.inspector.trace_cli import main
from nanolens.telemetry.culprit import Culprit
from nanolens.telemetry.events import EngineContinued, EnginePaused, StepFinished
from nanolens.telemetry.latency import Breakdown
from planted_causes import prompt, written
from planted_runs import MS, Planted, jittered, planted_events, planted_journal
from timed_engine import timed_engine

BASE = Planted()
HOUR = 3_600_000_000_000


def run_of(path: Path, slow: Planted, count: int = 300, slow_ones: int = 3, base: Planted = BASE) -> Path:
    """A journal in which some requests, in random places, are slow ones."""
    requests = jittered(count, base, seed=1)
    for place in random.Random(2).sample(range(count), slow_ones):
        requests[place] = slow
    return planted_journal(path / "j", requests)


def top(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["top", *map(str, arguments), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["top", *map(str, arguments)]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("part", "slow", "more"),
    [
        ("queue_no_blocks", replace(BASE, wait=500 * MS), 490 * MS),
        ("queue_sequence_cap", replace(BASE, wait=500 * MS, reason="sequence_cap"), 500 * MS),
        ("queue_head_of_line", replace(BASE, wait=500 * MS, reason="head_of_line"), 500 * MS),
        ("host_gap", replace(BASE, host=101 * MS), 500 * MS),
        ("own_decode", replace(BASE, outputs=60), 1100 * MS),
    ],
)
def test_the_planted_part_leads_the_excess_of_the_slowest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str, slow: Planted, more: int
) -> None:
    found = top(capsys, run_of(tmp_path, slow))
    assert next(iter(found["excess"])) == part
    assert found["excess"][part] == pytest.approx(more, rel=0.05)
    assert found["slowest"]["requests"] == 3
    assert {named["part"] for named in found["named"][:3]} == {part}


def test_parts_of_both_groups_add_up_to_their_means(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = run_of(tmp_path, replace(BASE, wait=500 * MS))
    for by in ("e2e", "ttft"):
        found = top(capsys, journal, "--by", by)
        for group in ("slowest", "median"):
            assert sum(found[group]["parts"].values()) == pytest.approx(found[group]["mean"])
        assert sum(found["excess"].values()) == pytest.approx(found["slowest"]["mean"] - found["median"]["mean"])


def test_the_median_is_a_tenth_of_the_requests_around_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    requests = [replace(BASE, wait=(i + 1) * MS) for i in range(200)]
    found = top(capsys, planted_journal(tmp_path / "j", requests))
    assert found["median"]["requests"] == 20
    assert found["median"]["parts"]["queue_no_blocks"] == pytest.approx(100.5 * MS)
    assert found["slowest"]["parts"]["queue_no_blocks"] == pytest.approx(199.5 * MS)
    assert found["slow_from"] == found["p99"] + 1 * MS


def test_by_ttft_ranks_by_the_time_to_the_first_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    requests = [*jittered(98, BASE, seed=1), replace(BASE, outputs=50), replace(BASE, wait=90 * MS)]
    journal = planted_journal(tmp_path / "j", requests)
    assert top(capsys, journal)["named"][0]["request"] == "req-98"
    assert top(capsys, journal, "--by", "ttft")["named"][0]["request"] == "req-99"


def test_culprits_of_the_slowest_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the busy engine's run those who held the blocks, or preempted."""
    busy_engine(tmp_path / "j").core.close()
    found = top(capsys, tmp_path / "j")
    assert found["culprits"]
    requests = {b.request.request for b in read_latency(tmp_path / "j").latency.breakdowns()}
    for culprit in found["culprits"]:
        assert culprit["part"] in found["excess"]
        assert culprit["request"] in requests | {""}
        assert 0 < culprit["share"] <= 1.0 + 1e-6
    assert "culprits of the slowest 1" in said(capsys, tmp_path / "j")


def test_many_small_culprits_are_told_of_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Finder:
        def __init__(self, latency: object) -> None: ...

        def find(self, breakdown: Breakdown, part: str, by: str) -> list[Culprit]:
            each = breakdown.parts[part] // 400
            return [Culprit("runner", f"r{i}", i, each, "ran") for i in range(400)]

    monkeypatch.setattr("nanolens.inspector.tail_culprits.CulpritFinder", Finder)
    latency = read_latency(planted_journal(tmp_path / "j", [BASE] * 2)).latency
    (found,) = tail_culprits(latency, list(latency.breakdowns()), ["queue_no_blocks"])
    assert (found.kind, found.request, found.requests) == ("runners", "", 2)
    assert found.share == pytest.approx(1.0)
    assert found.words == "400 of them, none with more than 0.2%"


def test_heads_of_the_queue_are_no_culprits_beside_those_they_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Finder:
        def __init__(self, latency: object) -> None: ...

        def find(self, breakdown: Breakdown, part: str, by: str) -> list[Culprit]:
            whole = breakdown.parts[part]
            return [Culprit("holder", "a", 1, whole, "held"), Culprit("head", "b", 2, whole, "stood at the head")]

    monkeypatch.setattr("nanolens.inspector.tail_culprits.CulpritFinder", Finder)
    latency = read_latency(planted_journal(tmp_path / "j", [BASE] * 2)).latency
    found = tail_culprits(latency, list(latency.breakdowns()), ["queue_no_blocks"])
    assert [(c.kind, c.request, c.requests) for c in found] == [("holder", "a", 2)]


def test_rows_of_the_slowest_are_those_of_the_whole_table(tmp_path: Path) -> None:
    """Requests that never had a token are passed over by ttft, and keep their rows."""
    requests = [replace(BASE, outputs=0)] * 3 + [replace(BASE, wait=i * MS) for i in (90, 10, 20)]
    table = request_table(read_latency(planted_journal(tmp_path / "j", requests)).latency.breakdowns(), 0)
    report = tail_report(table, "ttft")
    assert (report.requests, report.slow_rows) == (3, [3])
    assert table.request[3] == report.named[0].request == "req-3"


def test_a_prompt_of_a_bands_first_length_is_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    requests = [replace(BASE, prompt=prompt) for prompt in (63, 64, 255, 256)]
    found = top(capsys, planted_journal(tmp_path / "j", requests))["cohorts"]["prompt tokens"]
    assert [(c["label"], c["requests"]) for c in found] == [("0-63", 1), ("64-255", 2), ("256-1023", 1)]


def test_the_time_after_an_abort_is_neither_the_hosts_nor_the_devices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last step goes on for 3 ms after its only sequence has ended."""
    events = planted_events([replace(BASE, device=9 * MS, host=1 * MS)])
    last = next(i for i in reversed(range(len(events))) if isinstance(events[i], StepFinished))
    step, end = events[last], events[last + 1 : last + 4]
    for event in end:
        event.t -= 3 * MS  # type: ignore[union-attr]
    step.wasted = [0]  # type: ignore[union-attr]
    events[last : last + 4] = [*end, step]
    writer = writer_of(tmp_path / "j")
    writer.append(events[1:])
    writer.close()
    found = top(capsys, tmp_path / "j")["host"]
    assert (found["host"], found["device"]) == (5 * MS, 42 * MS)


def test_a_paused_engine_is_not_the_hosts_doing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = planted_events([replace(BASE, device=9 * MS, host=20 * MS)])
    first = next(i for i in range(len(events)) if isinstance(events[i], StepFinished))
    t, step = events[first].t, events[first].step  # type: ignore[union-attr]
    events[first + 1 : first + 1] = [EnginePaused(t, step, "operator"), EngineContinued(t + 15 * MS, step, 0)]
    writer = writer_of(tmp_path / "j")
    writer.append(events[1:])
    writer.close()
    found = top(capsys, tmp_path / "j")
    assert (found["host"]["host"], found["host"]["device"]) == (85 * MS, 45 * MS)
    assert found["slowest"]["parts"]["engine_paused"] == 15 * MS


def test_colours_mark_a_cohort_with_many_of_the_slowest_on_a_terminal_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = run_of(tmp_path, replace(BASE, prompt=2000, wait=500 * MS))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    lines = said(capsys, journal).splitlines()
    assert next(line for line in lines if "1024-4095" in line).startswith("\x1b[33m")
    assert next(line for line in lines if "0-63" in line).startswith("0-63")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in said(capsys, journal)


def test_cohorts_count_every_request_and_where_the_slowest_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = replace(BASE, prompt=2000, wait=500 * MS, priority=5)
    found = top(capsys, run_of(tmp_path, slow))["cohorts"]
    by_prompt = {c["label"]: c for c in found["prompt tokens"]}
    assert (by_prompt["0-63"]["requests"], by_prompt["0-63"]["slowest"]) == (297, 0)
    assert (by_prompt["1024-4095"]["requests"], by_prompt["1024-4095"]["slowest"]) == (3, 3)
    assert by_prompt["1024-4095"]["part"] == "queue_no_blocks"
    assert by_prompt["0-63"]["part"] == "own_decode"
    assert [(c["label"], c["requests"], c["slowest"]) for c in found["priority"]] == [("0", 297, 0), ("5", 3, 3)]


def test_hours_are_those_of_the_wall_clock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    requests = [replace(BASE, idle=HOUR // 2)] * 4
    events = planted_events(requests)
    events[0].wall_offset_ns = 1_700_000_000_000_000_000 // HOUR * HOUR  # type: ignore[union-attr]
    writer = writer_of(tmp_path / "j")
    writer.append(events)
    writer.close()
    hours = top(capsys, tmp_path / "j")["cohorts"]["hour"]
    assert [(c["label"], c["requests"]) for c in hours] == [("2023-11-14 22h UTC", 2), ("2023-11-14 23h UTC", 2)]


def test_what_siblings_copied_is_no_miss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two siblings find 20 of 22 tokens each, copy one, and compute the last."""
    engine, _ = timed_engine()
    engine.add(prompt(22), 4, n=3, temperature=1.0)
    engine.run()
    journal = written(engine, tmp_path / "j")
    assert top(capsys, journal)["cache"] == {
        "queried": 66, "hit": 40, "never_seen": 20, "evicted": 0, "sub_block": 4, "copied": 2,
    }  # fmt: skip
    assert main(["top", str(journal)]) == 0
    assert "40 of 66 prompt tokens hit (61%), 2 copied from siblings; missed" in capsys.readouterr().out


def test_cache_misses_are_counted_by_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = planted_journal(tmp_path / "j", [Planted(prompt=64, hit=16, evicted=32), Planted(prompt=36)])
    assert top(capsys, journal)["cache"] == {
        "queried": 100, "hit": 16, "never_seen": 52, "evicted": 32, "sub_block": 0, "copied": 0,
    }  # fmt: skip
    assert "16 of 100 prompt tokens hit (16%); missed 52 never seen (52%), 32 evicted" in " ".join(
        said(capsys, journal).split()
    )


def test_the_recompute_tax_is_what_preempted_sequences_computed_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    busy_engine(tmp_path / "j").core.close()
    reading = read_latency(tmp_path / "j")
    tracks = reading.latency.tracks.tracks.values()
    found = top(capsys, tmp_path / "j")["recompute"]
    assert found["preemptions"] == {"no_blocks": sum(len(track.preemptions) for track in tracks)}
    assert 0 < found["recomputed_tokens"] < found["prefill_tokens"]
    table = request_table(reading.latency.breakdowns(), 0)
    assert found["total_ns"] == table.e2e.sum()
    assert 0 < found["part_ns"]["preempted"] < found["total_ns"]


def test_the_hosts_share_leaves_out_the_time_in_which_nothing_ran(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = planted_journal(tmp_path / "j", [replace(BASE, device=9 * MS, host=1 * MS, wait=50 * MS)] * 10)
    found = top(capsys, journal)["host"]
    assert (found["host"], found["device"], found["steps"]) == (50 * MS, 450 * MS, 50)
    assert "host share: 10.0% of the time in which sequences ran" in said(capsys, journal)


def test_the_words_say_who_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, run_of(tmp_path, replace(BASE, wait=500 * MS)))
    words = " ".join(out.split())
    assert "The slowest 3 requests take 605ms, the median ones 116ms." in words
    assert "More of it went to queue_no_blocks +490ms" in words
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out


def test_equal_requests_have_no_tail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "There is no tail." in said(capsys, planted_journal(tmp_path / "j", [BASE] * 50))


def test_one_request_is_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "The slowest request takes 115ms" in said(capsys, planted_journal(tmp_path / "j", [BASE]))


def test_csv_writes_a_row_a_request_beside_the_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = planted_journal(tmp_path / "j", [BASE] * 5)
    assert "The slowest request" in said(capsys, journal, "--csv", tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        assert [row["request"] for row in csv.DictReader(file)] == [f"req-{i}" for i in range(5)]


def test_a_wide_terminal_gets_wide_bars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = run_of(tmp_path, replace(BASE, wait=500 * MS))
    widths = []
    for columns in ("40", "120"):
        monkeypatch.setenv("COLUMNS", columns)
        out = said(capsys, journal)
        widths.append(next(line for line in out.splitlines() if line.startswith("queue_no_blocks  ")).count("█"))
        assert max(map(len, out.splitlines())) <= max(80, int(columns))
    assert widths[0] + 40 == widths[1]


def test_nonsense_is_told_of_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    idle, young = tmp_path / "idle", tmp_path / "young"
    writer = writer_of(idle)
    writer.append([stopped()])
    writer.close()
    writer = writer_of(young)
    writer.append(planted_events([BASE])[1:4])
    writer.close()
    (tmp_path / "empty").mkdir()
    good = planted_journal(tmp_path / "good", [BASE])
    cases: list[tuple[list[object], str]] = [
        ([tmp_path / "gone"], "no such file or directory"),
        ([tmp_path / "empty"], "holds no journal"),
        ([idle], "holds no request"),
        ([young], "no request of the run has ended"),
        ([good, "--run", "other"], "holds no run 'other'"),
        ([good, "--csv", tmp_path], "is a directory; give a file"),
    ]
    for arguments, words in cases:
        assert main(["top", *map(str, arguments)]) == 2
        captured = capsys.readouterr()
        assert (captured.out, words in captured.err, captured.err.count("\n")) == ("", True, 1), captured.err


def test_a_torn_journal_is_read_to_where_it_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = writer_of(tmp_path / "j")
    events = planted_events([BASE] * 3)
    cut = next(i for i, e in enumerate(events) if getattr(e, "request", "") == "req-2")
    writer.append(events[1:cut])
    writer.append(events[cut:])
    writer.close()
    file = next((tmp_path / "j").iterdir())
    file.write_bytes(file.read_bytes()[:-7])
    out = " ".join(said(capsys, tmp_path / "j").split())
    assert "run run: 2 requests" in out
    assert "an unfinished frame of" in out


def test_a_journal_that_contradicts_itself_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = planted_events([BASE] * 2)
    del events[1:3]
    writer = writer_of(tmp_path / "j")
    writer.append(events[1:])
    writer.close()
    assert main(["top", str(tmp_path / "j")]) == 2
    assert "contradicts itself" in capsys.readouterr().err
