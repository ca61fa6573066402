"""Threads take turns quickly while nano-inspect runs, and its garbage collector finds little to walk."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import pytest

from nanolens.inspector import inspect_cli
from nanolens.inspector.short_pauses import OLDEST, SWITCH_S, YOUNG, short_pauses
from nanolens.inspector.tui.app import NanoInspectApp
from screens import record

AS_SET = pytest.approx(SWITCH_S, rel=0.01)


def now() -> tuple[float, tuple[int, int, int], int]:
    return sys.getswitchinterval(), gc.get_threshold(), gc.get_freeze_count()


def test_all_is_as_it_was_afterwards() -> None:
    gc.unfreeze()  # engines that were built in this process have frozen what loading left
    before = now()
    with pytest.raises(ZeroDivisionError), short_pauses():
        interval, thresholds, frozen = now()
        assert interval == AS_SET and before[0] > SWITCH_S
        assert thresholds[0] == YOUNG and thresholds[2] == OLDEST and frozen > before[2]
        raise ZeroDivisionError
    assert now() == before


def test_a_collection_of_everything_walks_only_what_came_since() -> None:
    with short_pauses():
        assert len(gc.get_objects()) < 1000 < gc.get_freeze_count()


def test_the_program_runs_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    record(tmp_path / "journal")
    monkeypatch.setattr(NanoInspectApp, "run", lambda app: seen.append(now()))
    monkeypatch.setattr(inspect_cli, "_has_screen", lambda: True)
    assert inspect_cli.main([str(tmp_path / "journal")]) == 0
    ((interval, _, frozen),) = seen
    assert interval == AS_SET and frozen > 0
