"""nano-trace explain says how many requests could not be ranked, and never that one ended which did not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nanolens.inspector.trace_cli import main
from planted_causes import prompt, steps, written
from timed_engine import timed_engine

Output = pytest.CaptureFixture[str]


def said(capsys: Output, *arguments: object) -> str:
    assert main(["explain", *map(str, arguments)]) == 0
    return " ".join(capsys.readouterr().out.split())


def as_json(capsys: Output, *arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(capsys, *arguments, "--json"))
    return found


def open_ones(path: Path, run_id: str = "test", num_open: int = 2) -> Path:
    """A run in which one request ended, and others did not: all but the last of these have a first token."""
    engine, _ = timed_engine()
    engine.events[0].run_id = engine.core.started.run_id = run_id  # type: ignore[union-attr]
    engine.add_request(prompt(8), None, request_id="whole")
    steps(engine, 3)
    engine.core.abort("whole")
    for number in range(num_open - 1):
        engine.add_request(prompt(8), None, request_id=f"open-{number}")
    steps(engine, 4)
    engine.add_request(prompt(8), None, request_id="new")
    return written(engine, path)


def test_how_many_have_not_ended_and_are_left_out_is_said(tmp_path: Path, capsys: Output) -> None:
    journal, other = open_ones(tmp_path / "a"), open_ones(tmp_path / "b", "other")
    for ranking in ([], ["--slowest", 9], ["--p99"]):
        assert "3 requests, 2 of which have not ended and are left out" in said(capsys, journal, *ranking)
    assert "3 requests, 1 of which has no first token and is left out" in said(capsys, journal, "--by", "ttft")
    assert "6 requests, 4 of which have not ended and are left out" in said(capsys, journal, other)
    assert as_json(capsys, journal)["left_out"] == 2
    assert as_json(capsys, journal, other, "--by", "ttft")["left_out"] == 2


def test_of_one_that_is_named_nothing_is_left_out(tmp_path: Path, capsys: Output) -> None:
    journal = open_ones(tmp_path)
    assert "left out" not in said(capsys, journal, "open-0")
    assert as_json(capsys, journal, "open-0")["left_out"] == 0


def test_a_first_token_is_no_end(tmp_path: Path, capsys: Output) -> None:
    journal = open_ones(tmp_path)
    for by in ("e2e", "ttft"):
        for name, ended in (("whole", True), ("open-0", False)):
            (one,) = as_json(capsys, journal, name, "--by", by)["requests"]
            assert one["ended"] is ended
