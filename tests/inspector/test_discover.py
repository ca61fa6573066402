"""What is found on this machine: servers that run, journals alive, ended and dead."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from journals import busy_engine, started, stopped, writer_of
from nanolens.errors import InspectError
from nanolens.inspector.sources.discover import find_journals, find_servers, journals_in
from nanolens.inspector.sources.journal_source import JournalSource
from nanolens.inspector.sources.opening import is_url, open_source
from nanolens.inspector.sources.server_source import ServerSource
from nanolens.telemetry import registry
from nanolens.telemetry.events import EngineStarted
from nanolens.telemetry.journal import JournalWriter
from serve import Server


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANOLENS_STATE_DIR", str(tmp_path / "state"))


def living(run: str) -> EngineStarted:
    return EngineStarted(time.monotonic_ns(), run, 0, os.getpid(), "0", "fake", {}, 8, 4, 100, 64)


def dead(run: str) -> EngineStarted:
    return EngineStarted(1, run, 0, 1 << 22, "0", "fake", {}, 8, 4, 100, 64)  # no process has such a number


def journal(directory: Path, first: EngineStarted, ends: bool = False) -> None:
    writer = JournalWriter(directory, first.run_id)
    writer.append([first])
    if ends:
        writer.append([stopped()])
    writer.close()


def test_runs_are_live_ended_or_dead(tmp_path: Path) -> None:
    journal(tmp_path, living("one"))
    journal(tmp_path, living("two"), ends=True)
    journal(tmp_path, dead("three"))
    found = {each.run: each for each in journals_in(tmp_path)}
    assert {run: each.state for run, each in found.items()} == {"one": "live", "two": "ended", "three": "dead"}
    assert (found["one"].model, found["one"].pid, found["one"].path) == ("fake", os.getpid(), str(tmp_path))
    assert abs(found["one"].written - time.time()) < 60 and found["one"].num_bytes > 0


def test_a_run_of_many_segments_is_one_journal(tmp_path: Path) -> None:
    busy_engine(tmp_path, segment_bytes=4000).close()
    (found,) = journals_in(tmp_path)
    assert found.state == "ended"
    assert found.num_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_live_journals_come_first_then_the_newest(tmp_path: Path, own_folder: None) -> None:
    for name, first in (("a", dead("old")), ("b", dead("new")), ("c/d", living("live"))):
        journal(tmp_path / name, first)
    os.utime(next((tmp_path / "a").iterdir()), (1, 1))
    os.utime(next((tmp_path / "c/d").iterdir()), (2, 2))
    assert [each.run for each in find_journals(tmp_path)] == ["live", "new", "old"]


def test_announced_journals_are_found_from_anywhere(tmp_path: Path, own_folder: None) -> None:
    journal(tmp_path / "far" / "away" / "down" / "here", living("run"))
    (tmp_path / "elsewhere").mkdir()
    assert find_journals(tmp_path / "elsewhere") == []
    registry.announce_journal(living("run"), str(tmp_path / "far" / "away" / "down" / "here"))
    assert [each.run for each in find_journals(tmp_path / "elsewhere")] == ["run"]


def test_what_is_no_journal_is_passed_over(tmp_path: Path, own_folder: None) -> None:
    (tmp_path / "foreign-000001.journal").write_bytes(b"something else")
    (tmp_path / "empty-000001.journal").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("")
    assert find_journals(tmp_path) == []
    assert find_journals(tmp_path / "missing") == []


def test_a_running_server_is_found_with_its_journal(tiny_server: Server) -> None:
    found = [each for each in find_servers() if each.url == tiny_server.url]
    assert [(each.model, each.pid, each.journal) for each in found] == [
        ("test", tiny_server.process.pid, str(tiny_server.journal))
    ]
    assert found[0].run in [each.run for each in find_journals() if each.state == "live"]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("http://127.0.0.1:8000", True), ("https://host", True), ("localhost:8000", True), ("runs/today", False),
        ("run-000001.journal", False), ("/a:1/b:2", False), ("C:", False),
    ],
)  # fmt: skip
def test_urls_and_paths_are_told_apart(target: str, expected: bool) -> None:
    assert is_url(target) is expected


def test_a_file_whose_name_looks_like_a_host_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "host:80").mkdir()
    assert not is_url("host:80")


def test_a_target_opens_as_what_it_is(tmp_path: Path) -> None:
    writer_of(tmp_path).close()
    journal_source, server_source = open_source(str(tmp_path)), open_source("127.0.0.1:9")
    assert isinstance(journal_source, JournalSource) and isinstance(server_source, ServerSource)
    journal_source.close()
    server_source.close()


def test_a_run_is_asked_of_journals_alone(tmp_path: Path) -> None:
    writer_of(tmp_path, started("mine").run_id).close()
    source = open_source(str(tmp_path), run="mine")
    assert "mine" in source.title
    source.close()
    with pytest.raises(InspectError, match="holds no run 'other'"):
        open_source(str(tmp_path), run="other")
    with pytest.raises(InspectError, match="a server has one run"):
        open_source("http://127.0.0.1:9", run="mine")
