"""Ids with what a terminal acts on: every command that prints lines replaces it, and an event stays one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanolens.inspector.describe import describe
from nanolens.inspector.inspect_cli import main as inspect
from nanolens.inspector.trace_cli import main
from nanolens.telemetry.events import Mark
from planted_causes import prompt, steps, written
from timed_engine import timed_engine

NAME = "\x1b[31mred\na\tb"
SHOWN = "\N{REPLACEMENT CHARACTER}[31mred\N{REPLACEMENT CHARACTER}a\N{REPLACEMENT CHARACTER}b"


@pytest.fixture
def journal(tmp_path: Path) -> tuple[Path, int]:
    """A run with such an id, and how many events it has."""
    engine, _ = timed_engine()
    engine.add_request(prompt(8), None, request_id=NAME)
    steps(engine, 4)
    return written(engine, tmp_path / "journal"), len(engine.events)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    out = capsys.readouterr().out
    assert all(line.isprintable() for line in out.split("\n"))
    return out.splitlines()


def test_tail_prints_one_line_an_event(journal: tuple[Path, int], capsys: pytest.CaptureFixture[str]) -> None:
    path, count = journal
    assert main(["tail", str(path)]) == 0
    told = lines(capsys)
    assert len(told) == count
    assert any(f"request {SHOWN} arrived" in line for line in told)


@pytest.mark.parametrize("command", [["explain"], ["top", "--by", "ttft"], ["check"], ["replay"]])
def test_the_other_commands_print_nothing_that_a_terminal_acts_on(
    command: list[str], journal: tuple[Path, int], capsys: pytest.CaptureFixture[str]
) -> None:
    name, *flags = command
    main([name, str(journal[0]), *([NAME] if name == "explain" else []), *flags])
    assert lines(capsys)


def test_nano_inspect_prints_nothing_of_the_kind(journal: tuple[Path, int], capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect([str(journal[0]), "--once"]) == 0
    assert SHOWN in " ".join(lines(capsys))


def test_what_an_event_says_is_one_line() -> None:
    assert describe(Mark(1, "a\nb\x07", "me")).isprintable()
