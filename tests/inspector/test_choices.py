"""What the picker lists: servers and journals in words."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from nanolens.inspector import choices
from nanolens.inspector.sources.discover import FoundJournal, FoundServer
from nanolens.inspector.tui.picker_screen import COLUMNS

SERVER = FoundServer("http://127.0.0.1:8000", "smollm2", "20261130T000802-1e5465", 4711, time.time() - 7800, "/j")
JOURNAL = FoundJournal("/j", "20261130T000802-1e5465", "smollm2", "dead", 4711, time.time(), 3 << 20)


def test_a_server_is_opened_by_its_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices.time, "time", lambda: SERVER.since + 7800)
    choice = choices.of_server(SERVER)
    assert (choice.target, choice.run, choice.state) == ("http://127.0.0.1:8000", None, "live")
    assert choice.note == "up 2h10m, pid 4711"


def test_a_journal_is_opened_by_its_directory_and_run() -> None:
    choice = choices.of_journal(JOURNAL)
    assert (choice.target, choice.run, choice.state) == ("/j", JOURNAL.run, "dead")
    assert "3.0 MiB, 1e5465" in choice.note


def test_servers_stand_before_journals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "find_journals", lambda: [JOURNAL])
    monkeypatch.setattr(choices, "find_servers", lambda: [SERVER])
    assert [choice.kind for choice in choices.find_choices()] == ["server", "journal"]


def test_paths_of_the_home_directory_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    journal = choices.of_journal(JOURNAL)
    at_home = journal.__class__("/home/me/run", None, "journal", "dead", "m", "")
    assert COLUMNS[0].text(at_home) == "~/run" and COLUMNS[0].text(journal) == "/j"
