"""What a key costs on a large engine, in lines that are drawn and rows that are made."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from app_driver import Driver, drive
from fake_source import FakeSource
from nanolens.inspector import sequence_rows, step_rows
from nanolens.inspector.tui.live_table import LiveTable
from nanolens.inspector.tui.painted_table import PaintedTable
from nanolens.inspector.view import View
from nanolens.telemetry.state import EngineState
from views import big_view


def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Calls from now on of what makes rows, draws lines and copies states."""
    counts: Counter[str] = Counter()

    def count(owner: Any, name: str, words: str) -> None:
        own = getattr(owner, name)

        def call(*args: Any, **more: Any) -> Any:
            counts[words] += 1
            return own(*args, **more)

        monkeypatch.setattr(owner, name, call)

    count(PaintedTable, "_line", "lines")
    count(LiveTable, "set_rows", "made")
    count(sequence_rows, "_row", "made")
    count(step_rows, "_line", "made")
    count(EngineState, "to_keyframe", "made")
    return counts


@pytest.mark.parametrize("key", "1456")
def test_a_key_that_moves_the_cursor_draws_the_lines_it_leaves_and_comes_to_and_makes_no_row(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    big, source = big_view(1000, 64), FakeSource()

    def change(view: View) -> View:
        return big

    source.change = change
    counts = counted(monkeypatch)

    async def scenario(driver: Driver) -> None:
        await driver.press(key, "home")
        await driver.pilot.pause(0.1)
        for move in ("down", "up"):
            counts.clear()
            await driver.press(move)
            assert counts["made"] == 0 and counts["lines"] <= 3, (key, move, counts)
            assert counts["lines"] > 0

    drive(scenario, source, size=(160, 50), interval=60.0)
