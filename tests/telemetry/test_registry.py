"""The registry of what runs: announced, found by another process, pruned when its process or its files are gone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from journals import started, writer_of
from nanolens.engine.llm import LLM
from nanolens.telemetry import registry
from nanolens.telemetry.events import EngineStarted

NOBODY = 1 << 22  # beyond any process's number
ANNOUNCE = """
import sys, time
from nanolens.telemetry.registry import announced_server
with announced_server("http://127.0.0.1:1", "m", "gone"):
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NANOLENS_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def here(run: str = "run") -> EngineStarted:
    return EngineStarted(time.monotonic_ns(), run, 0, os.getpid(), "0", "fake", {}, 8, 4, 100, 64)


def test_a_server_is_announced_for_as_long_as_it_runs(own_folder: Path) -> None:
    with registry.announced_server("http://127.0.0.1:8000", "m", "run", "journal"):
        (found,) = registry.servers()
        assert (found.url, found.model, found.run, found.pid) == ("http://127.0.0.1:8000", "m", "run", os.getpid())
        assert found.journal == os.path.abspath("journal")
    assert registry.servers() == []
    assert list((own_folder / "servers").iterdir()) == []


def test_the_folder_is_the_users_alone(own_folder: Path) -> None:
    with registry.announced_server("http://127.0.0.1:8000", "m", "run"):
        assert (own_folder / "servers").stat().st_mode & 0o077 == 0


def test_a_killed_server_is_forgotten(own_folder: Path) -> None:
    child = subprocess.Popen([sys.executable, "-P", "-c", ANNOUNCE], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    assert [found.run for found in registry.servers()] == ["gone"]
    child.kill()
    child.wait()
    child.stdout.close()
    assert len(list((own_folder / "servers").iterdir())) == 1
    assert registry.servers() == []
    assert list((own_folder / "servers").iterdir()) == []


def test_a_journal_stays_announced_while_it_is_on_disk(tmp_path: Path) -> None:
    writer_of(tmp_path / "journal", "old").close()
    registry.announce_journal(replace(started("old"), pid=NOBODY), str(tmp_path / "journal"))
    (found,) = registry.journals()
    assert (found.path, found.run, found.model, found.is_running) == (str(tmp_path / "journal"), "old", "fake", False)
    for path in (tmp_path / "journal").iterdir():
        path.unlink()
    assert registry.journals() == []


def test_a_journal_that_is_about_to_be_written_is_found(tmp_path: Path) -> None:
    registry.announce_journal(here(), str(tmp_path / "not_yet"))
    assert [found.is_running for found in registry.journals()] == [True]


def test_old_announcements_of_journals_make_room(
    tmp_path: Path, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "MAX_JOURNALS", 3)
    for number in range(5):
        registry.announce_journal(here(f"run{number}"), str(tmp_path))
    assert sorted(path.stem for path in (own_folder / "journals").iterdir()) == ["run2", "run3", "run4"]


def test_what_is_no_announcement_is_passed_over(own_folder: Path) -> None:
    with registry.announced_server("http://127.0.0.1:8000", "m", "run"):
        (own_folder / "servers" / "other.json").write_text('{"type": "other"}')
        (own_folder / "servers" / "broken.json").write_text("{")
        assert [found.run for found in registry.servers()] == ["run"]


def test_a_folder_that_can_not_be_written_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NANOLENS_STATE_DIR", str(tmp_path / "file" / "below"))
    registry.announce_journal(here(), str(tmp_path))
    with registry.announced_server("http://127.0.0.1:8000", "m", "run"):
        assert registry.servers() == []


def test_an_engine_announces_its_journal_and_one_without_a_journal_nothing(tmp_path: Path) -> None:
    with LLM("dummy:llama-tiny", device="cpu", num_blocks=16, block_size=4):
        assert registry.journals() == []
    with LLM("dummy:llama-tiny", device="cpu", num_blocks=16, block_size=4, journal=str(tmp_path / "journal")) as llm:
        llm.generate([[1, 2, 3]])
        (found,) = registry.journals()
        assert (found.path, found.pid) == (str(tmp_path / "journal"), os.getpid())
        assert found.run == llm.engine.core.started.run_id


def test_the_place_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NANOLENS_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", "/somewhere")
    assert registry.state_folder() == Path("/somewhere/nanolens")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert registry.state_folder() == Path("/home/me/.local/state/nanolens")
