"""nano-trace explain, as a user runs it: on journals of planted causes, on their spans, and on nonsense."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import planted_causes
from journals import empty_keyframe, started, stopped
from nanolens.inspector.explained import ranked
from nanolens.inspector.trace_cli import main
from nanolens.telemetry.journal import JournalWriter
from planted_causes import latency_of, written

Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def short_pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal in which req-2 waits for blocks."""
    return written(planted_causes.short_pool()[0], tmp_path_factory.mktemp("short_pool"))


def explain(*arguments: object) -> int:
    """The exit code of `nano-trace explain`."""
    try:
        return main(["explain", *map(str, arguments)])
    except SystemExit as error:
        return int(error.code or 0)


def said(capsys: Output, *arguments: object) -> list[str]:
    """The lines that it prints."""
    assert explain(*arguments) == 0
    return capsys.readouterr().out.splitlines()


def as_json(capsys: Output, *arguments: object) -> dict[str, Any]:
    found = json.loads("\n".join(said(capsys, *arguments, "--json")))
    assert isinstance(found, dict)
    return found


def refused(capsys: Output, *arguments: object) -> str:
    """The one line of an error."""
    assert explain(*arguments) == 2
    out = capsys.readouterr()
    assert out.out == "" and "Traceback" not in out.err
    return out.err.splitlines()[-1]


def spans_of(journal: Path, path: Path, capsys: Output) -> Path:
    assert main(["export", str(journal), "--once", "--remote", "--file", str(path)]) == 0
    capsys.readouterr()
    return path


def test_a_request_is_explained_in_sentences_first(short_pool: Path, capsys: Output) -> None:
    lines = said(capsys, short_pool, "req-2")
    assert " ".join(lines[:2]) == (
        "req-2 took 64.5 ms: 83% of it (53.2 ms) waiting for free blocks, held by req-0 (76%) and req-1 (24%)."
    )
    assert lines[2].startswith("Its own work took 17%")


def test_then_comes_the_waterfall_with_steps_and_blocks(short_pool: Path, capsys: Output) -> None:
    lines = said(capsys, short_pool, "req-2")
    begin = next(i for i, line in enumerate(lines) if line.split() == ["after", "for", "what", "steps", "blocks"])
    rows = [line.split("  ") for line in lines[begin + 1 : lines.index("", begin)]]
    assert [" ".join("  ".join(row).split()[2:4]) for row in rows] == [
        "WAITING (next", "WAITING (no_blocks)", "RUNNING prefill", "RUNNING decode",
    ]  # fmt: skip
    bars = [line.index(next(c for c in line if c in "█▉▊▋▌▍▎▏")) for line in lines[begin + 2 : begin + 5]]
    assert bars == sorted(bars)  # each stands where the one before ends


def test_and_the_parts_with_their_culprits(short_pool: Path, capsys: Output) -> None:
    text = "\n".join(said(capsys, short_pool, "req-2"))
    assert "queue_no_blocks  53.2ms  83%" in text
    assert "     76% req-0 held 76% of the blocks in use\n     24% req-1 held 24% of the blocks in use" in text
    assert "half of them are off by less than 0." in text.replace("\n", " ")


def test_json_holds_all_of_it_and_adds_up(short_pool: Path, capsys: Output) -> None:
    found = as_json(capsys, short_pool, "--slowest", 3)
    assert (found["version"], found["run"], found["by"]) == (1, "test", "e2e")
    assert found["model"]["num_steps"] > 10
    totals = [one["total_ns"] for one in found["requests"]]
    assert len(totals) == 3 and totals == sorted(totals, reverse=True)
    for one in found["requests"]:
        assert sum(one["parts"].values()) == one["total_ns"]
        assert sum(piece["duration_ns"] for piece in one["evidence"]) == one["total_ns"]
        assert one["verdict"]["headline"].startswith(one["request"])
    late = next(one for one in found["requests"] if one["request"] == "req-2")
    assert [c["request"] for c in late["culprits"]["queue_no_blocks"]] == ["req-0", "req-1"]


def test_by_ttft_ends_with_the_first_token(short_pool: Path, capsys: Output) -> None:
    whole = as_json(capsys, short_pool, "req-2")["requests"][0]
    first = as_json(capsys, short_pool, "req-2", "--by", "ttft")["requests"][0]
    assert first["total_ns"] < whole["total_ns"] and "own_decode" not in first["parts"]
    assert sum(first["parts"].values()) == first["total_ns"]
    assert first["verdict"]["headline"].startswith("The first token of req-2 took 62.")


def test_without_a_request_the_slowest_is_explained(short_pool: Path, capsys: Output) -> None:
    slowest = as_json(capsys, short_pool)["requests"]
    assert [one["request"] for one in slowest] == ["req-0"]
    assert as_json(capsys, short_pool, "--p99")["requests"] == slowest


def test_the_99th_percentile_is_the_nearest_rank() -> None:
    totals = {f"r{i}": i for i in range(1, 201)}
    assert ranked(totals, 1, True) == ["r198"]
    assert ranked(totals, 2, False) == ["r200", "r199"]
    assert ranked({"only": 1}, 1, True) == ["only"]


@pytest.mark.parametrize("columns", [80, 100, 160])
def test_lines_fit_the_terminal(columns: int, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for case in planted_causes.CASES:
        journal = written(case()[0], tmp_path / case.__name__)
        lines = said(capsys, journal, "--slowest", 9)
        assert max(map(len, lines)) <= columns


def test_colours_only_on_a_terminal_without_no_color(short_pool: Path) -> None:
    def on_terminal(**more: str) -> str:
        ours, theirs = pty.openpty()
        environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm"} | more
        command = [sys.executable, "-P", "-m", "nanolens.inspector.trace_cli", "explain", str(short_pool)]
        process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)
        text = b""
        try:
            while chunk := os.read(ours, 65536):
                text += chunk
        except OSError:
            pass
        os.close(ours)
        assert process.wait(60) == 0
        return text.decode()

    assert "\x1b[1m" in on_terminal()
    assert "\x1b" not in on_terminal(NO_COLOR="1")


def test_explaining_loads_neither_torch_nor_an_engine(short_pool: Path) -> None:
    code = (
        "import sys; from nanolens.inspector.trace_cli import main; "
        f"main(['explain', {str(short_pool)!r}, '--json']); "
        "sys.exit(any(m == 'torch' or m.startswith('nanolens.engine') for m in sys.modules))"
    )
    run = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")


def test_a_name_with_a_terminals_commands_is_made_harmless(tmp_path: Path, capsys: Output) -> None:
    engine, _ = planted_causes.timed_engine()
    engine.add_request(planted_causes.prompt(8), None, request_id="evil\u202e\u2066name")
    engine.run()
    text = "\n".join(said(capsys, written(engine, tmp_path)))
    assert "evil" in text and "\u202e" not in text


# Spans


def test_spans_tell_the_waits_and_who_ran_meanwhile(short_pool: Path, tmp_path: Path, capsys: Output) -> None:
    spans = spans_of(short_pool, tmp_path / "spans.json", capsys)
    lines = said(capsys, "--spans", spans, "req-2")
    assert " ".join(lines[:2]).startswith(
        "req-2 took 64.5 ms: 83% of it (53.2 ms) waiting for free blocks, held by req-0 ("
    )
    assert "spans do not tell apart" in " ".join(lines)


def test_spans_name_the_preemptor(tmp_path: Path, capsys: Output) -> None:
    journal = written(planted_causes.priority_preemption()[0], tmp_path / "journal")
    spans = spans_of(journal, tmp_path / "spans.json", capsys)
    one = as_json(capsys, "--spans", spans, "req-0")["requests"][0]
    assert one["verdict"]["headline"] == (
        "req-0 took 141.1 ms: 82% of it (115.1 ms) after it lost its place to req-1: priority, 5 blocks and "
        "20 computed tokens lost in step 6."
    )
    assert one["culprits"]["preempted"][0]["request"] == "req-1"


@pytest.mark.parametrize("case", planted_causes.CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("by", ["e2e", "ttft"])
def test_parts_from_spans_add_up_to_what_the_journal_says(case: Any, by: str, tmp_path: Path, capsys: Output) -> None:
    """To some microseconds: spans carry waits in seconds. What a reader took comes after the spans."""
    engine = case()[0]
    spans = spans_of(written(engine, tmp_path / "journal"), tmp_path / "spans.json", capsys)
    latency = latency_of(engine)
    found = {one["request"]: one for one in as_json(capsys, "--spans", spans, "--slowest", 9, "--by", by)["requests"]}
    assert set(found) == set(latency.tracks.requests)
    for breakdown in latency.breakdowns():
        one, late = found[breakdown.request.request], breakdown.parts.get("back_pressure", 0)
        total = breakdown.ttft_ns if by == "ttft" else breakdown.total_ns - late
        assert one["total_ns"] == pytest.approx(total, abs=20_000)
        assert sum(one["parts"].values()) == one["total_ns"]
        assert min(one["parts"].values()) > 0
        of_journal = breakdown.ttft_parts if by == "ttft" else breakdown.parts
        for part in ("queue_no_blocks", "queue_sequence_cap", "queue_token_budget", "preempted", "paused"):
            assert one["parts"].get(part, 0) == pytest.approx(of_journal.get(part, 0), abs=20_000)


def test_half_a_line_at_the_end_of_spans_is_left_out(short_pool: Path, tmp_path: Path, capsys: Output) -> None:
    spans = spans_of(short_pool, tmp_path / "spans.json", capsys)
    whole = said(capsys, "--spans", spans)
    with spans.open("ab") as file:
        file.write(b'{"resourceSpans":[{"reso')
    assert said(capsys, "--spans", spans) == whole


# Nonsense


def test_a_request_that_is_not_there(short_pool: Path, tmp_path: Path, capsys: Output) -> None:
    expected = "holds no request 'nobody'; it has req-0, req-1, req-2"
    assert refused(capsys, short_pool, "nobody") == f"nano-trace: {short_pool}: {expected}"
    spans = spans_of(short_pool, tmp_path / "spans.json", capsys)
    assert expected in refused(capsys, "--spans", spans, "nobody")


def test_a_journal_without_requests(tmp_path: Path, capsys: Output) -> None:
    writer = JournalWriter(tmp_path, "run")
    writer.make_keyframe = empty_keyframe
    writer.append([started(), stopped()])
    writer.close()
    assert "holds no request" in refused(capsys, tmp_path)


def test_nothing_to_read(tmp_path: Path, capsys: Output) -> None:
    assert "holds no journal" in refused(capsys, tmp_path)
    assert "no such file or directory" in refused(capsys, tmp_path / "gone")
    assert "give a journal, or --spans FILE" in refused(capsys)
    assert "can't be read (No such file" in refused(capsys, "--spans", tmp_path / "gone")


def test_a_torn_journal_is_explained_as_far_as_it_goes(short_pool: Path, tmp_path: Path, capsys: Output) -> None:
    (segment,) = short_pool.iterdir()
    torn = tmp_path / segment.name
    torn.write_bytes(segment.read_bytes()[:10])
    assert "ends within its header" in refused(capsys, tmp_path)
    torn.write_bytes(segment.read_bytes()[:200])
    assert "holds neither engine.started nor a keyframe" in refused(capsys, tmp_path)
    torn.write_bytes(segment.read_bytes()[:-50])
    lines = said(capsys, tmp_path, "req-2")
    assert lines[0].startswith("req-2 took 64.5 ms: 83%") or " taken " in lines[0]
    assert "an unfinished frame of" in " ".join(lines)


def test_only_requests_that_live_are_named_before_they_are_explained(tmp_path: Path, capsys: Output) -> None:
    engine, _ = planted_causes.timed_engine()
    engine.add(planted_causes.prompt(8), 10)
    planted_causes.steps(engine, 4)
    journal = written(engine, tmp_path)
    assert "no request has ended; name one" in refused(capsys, journal)
    assert " taken " in said(capsys, journal, "req-0")[0]


def test_a_request_without_a_first_token_has_no_time_to_it(tmp_path: Path, capsys: Output) -> None:
    engine, _ = planted_causes.timed_engine()
    engine.add(planted_causes.prompt(8), 10)
    journal = written(engine, tmp_path)
    assert "'req-0' has no first token" in refused(capsys, journal, "req-0", "--by", "ttft")
    assert "no request has a first token" in refused(capsys, journal, "--by", "ttft")


def test_flags_that_contradict_each_other(short_pool: Path, capsys: Output) -> None:
    assert "one or the other" in refused(capsys, short_pool, "req-0", "--p99")
    assert "not allowed with argument" in refused(capsys, short_pool, "--slowest", 2, "--p99")
    assert "must be a whole number of at least 1" in refused(capsys, short_pool, "--slowest", 0)
    assert "must be a whole number of at least 1" in refused(capsys, short_pool, "--slowest", "many")
    assert "not both" in refused(capsys, short_pool, "req-0", "--spans", "x")


def test_a_file_that_holds_no_spans(tmp_path: Path, capsys: Output) -> None:
    for content in (b"hello\n", b'{"resourceSpans":[]}\n', b'{"a":1}\n', b"", b'{"resourceSpans":[{"scopeSpans":3}]}'):
        (tmp_path / "spans").write_bytes(content)
        assert "export --file" in refused(capsys, "--spans", tmp_path / "spans")


def test_a_run_that_is_not_there(short_pool: Path, tmp_path: Path, capsys: Output) -> None:
    assert "holds no run 'other'" in refused(capsys, short_pool, "--run", "other")
    spans = spans_of(short_pool, tmp_path / "spans.json", capsys)
    assert "of run 'other'" in refused(capsys, "--spans", spans, "--run", "other")


def test_where_none_has_ended_those_that_live_are_named(tmp_path: Path, capsys: Output) -> None:
    engine, _ = planted_causes.timed_engine()
    engine.add_request(planted_causes.prompt(8), None, request_id="hung")
    engine.step()
    journal = written(engine, tmp_path)
    assert main(["explain", str(journal)]) == 2
    assert capsys.readouterr().err.endswith("no request has ended; name one of those under way: hung\n")
    assert " taken " in said(capsys, journal, "hung")[0]
