"""Journals that this user may not reach: words and exit status 2 from every command, as for what is no journal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanolens.errors import JournalError
from nanolens.inspector.inspect_cli import main as inspect
from nanolens.inspector.trace_cli import main as trace
from nanolens.telemetry.reader import JournalReader
from nanolens.telemetry.segment_files import is_there, kind_of
from planted_causes import short_pool, written

NOBODY = 65534
COMMANDS = ("tail", "check", "top", "explain", "replay")


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A journal in a folder that may not be searched, beside one that may be read."""
    written(short_pool()[0], tmp_path / "open")
    written(short_pool()[0], tmp_path / "locked" / "r1")
    for path in (tmp_path / "open").iterdir():
        path.chmod(0o644)
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS:  # what they import is read before the rights go
        trace([command, "open"])
    trace(["compare", "open", "open"])
    trace(["export", "open", "--perfetto", "trace"])
    (tmp_path / "locked").chmod(0)
    is_root = os.geteuid() == 0
    if is_root:
        tmp_path.chmod(0o755)
        os.seteuid(NOBODY)
    yield Path("locked/r1")
    if is_root:
        os.seteuid(0)
    (tmp_path / "locked").chmod(0o755)


def refused(capsys: pytest.CaptureFixture[str], *command: str) -> tuple[int, str]:
    capsys.readouterr()
    status = trace(command)
    return status, capsys.readouterr().err.splitlines()[-1]


def test_every_command_says_that_it_cannot_be_read(locked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = (2, f"nano-trace: {locked}: can't be read (Permission denied)")
    for command in COMMANDS:
        assert refused(capsys, command, str(locked)) == wanted
    assert refused(capsys, "compare", "open", str(locked)) == wanted
    assert refused(capsys, "export", str(locked), "--csv", "-") == wanted
    assert refused(capsys, "export", str(locked), "--perfetto", "-") == wanted


def test_the_last_of_several_names_is_a_journal_then(locked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = (2, f"nano-trace: {locked}: can't be read (Permission denied)")
    assert refused(capsys, "explain", "open", str(locked)) == wanted
    assert refused(capsys, "explain", "open", str(locked), "req-0") == wanted


def test_nano_inspect_says_so_too(locked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect([str(locked), "--once"]) == 1
    assert f"{locked}: can't be read (Permission denied)" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["n" * 300, "a\0b"])
def test_a_name_that_no_file_can_have_is_told_in_words(name: str) -> None:
    with pytest.raises(JournalError, match="can't be read"):
        JournalReader(name)
    assert not is_there(name)


def test_what_lies_at_a_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    names = (".", "file", "pipe", "nothing", "file/below")
    assert [kind_of(tmp_path / name) for name in names] == ["folder", "file", "other", "", ""]
