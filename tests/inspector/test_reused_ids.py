"""A request's id that is used again after its end: every use counts, and each can be asked for."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from nanolens.inspector.trace_cli import main
from nanolens.telemetry.events import AnyEvent
from planted_runs import MS, Planted, planted_events, write_events

Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One id three times, with waits of 1, 900 and 30 ms, and one request of another id."""
    events: list[AnyEvent] = planted_events([Planted(wait=wait * MS) for wait in (1, 900, 30, 5)])
    for event in events:
        if getattr(event, "request", "") in ("req-0", "req-1", "req-2"):
            event.request = "same"  # type: ignore[union-attr]
    return write_events(tmp_path_factory.mktemp("journal"), events)


def explained(capsys: Output, journal: Path, *arguments: object) -> list[dict[str, Any]]:
    assert main(["explain", str(journal), *map(str, arguments), "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["requests"]
    return found


def test_each_use_is_explained_where_it_is_asked_for(journal: Path, capsys: Output) -> None:
    for number, wait in ((1, 1), (2, 900), (3, 30)):
        (one,) = explained(capsys, journal, "same", "--use", number)
        assert (one["use"], one["uses"], one["parts"]["queue_no_blocks"]) == (number, 3, wait * MS)
    assert explained(capsys, journal, "same") == explained(capsys, journal, "same", "--use", 3)
    assert [(one["use"], one["uses"]) for one in explained(capsys, journal, "req-3")] == [(1, 1)]


def test_the_text_says_which_use_it_is(journal: Path, capsys: Output) -> None:
    assert main(["explain", str(journal), "same"]) == 0
    assert "Its id was used 3 times; this is use 3 (--use N shows another)." in capsys.readouterr().out


def test_the_slowest_are_found_among_all_uses(journal: Path, capsys: Output) -> None:
    found = explained(capsys, journal, "--slowest", 9)
    assert [(one["request"], one["use"]) for one in found] == [("same", 2), ("same", 3), ("req-3", 1), ("same", 1)]


@pytest.mark.parametrize(("arguments", "why"), [
    (["same", "--use", "4"], "--use 4: 'same' was used 3 times"),
    (["req-3", "--use", "2"], "--use 2: 'req-3' was used once"),
    (["--use", "1"], "name the request too"),
])  # fmt: skip
def test_a_use_that_is_not_there_is_refused(journal: Path, arguments: list[str], why: str, capsys: Output) -> None:
    assert main(["explain", str(journal), *arguments]) == 2
    assert why in capsys.readouterr().err


def test_spans_tell_them_apart_too(journal: Path, tmp_path: Path, capsys: Output) -> None:
    spans = tmp_path / "spans.json"
    assert main(["export", str(journal), "--once", "--remote", "--file", str(spans)]) == 0
    capsys.readouterr()
    assert main(["explain", "--spans", str(spans), "same", "--use", "2", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["requests"]
    assert (one["use"], one["uses"], one["parts"]["queue_no_blocks"]) == (2, 3, 900 * MS)


def test_top_counts_each_use_and_names_the_slowest_by_it(journal: Path, capsys: Output) -> None:
    assert main(["top", str(journal), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["requests"], found["live"]) == (4, 0)
    assert [(named["request"], named["use"]) for named in found["named"][:2]] == [("same", 2), ("same", 3)]
    assert main(["top", str(journal)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "2 requests came with an id that was used before; each use counts as its own" in text
    assert "same --use 2 " in text


def test_compare_and_csv_count_each_use(journal: Path, tmp_path: Path, capsys: Output) -> None:
    assert main(["compare", str(journal), str(journal), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["a"]["requests"], found["a"]["live"]) == (4, 0)
    assert main(["export", str(journal), "--csv", str(tmp_path / "out.csv")]) == 0
    assert "used before" in capsys.readouterr().err
    with (tmp_path / "out.csv").open(newline="") as file:
        assert [row["request"] for row in csv.DictReader(file)] == ["same", "same", "same", "req-3"]
