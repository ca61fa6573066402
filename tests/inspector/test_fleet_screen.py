"""The screen of a fleet: rows, in and out of a replica, one that is gone. Its keys are test_fleet_habits.py's."""

from __future__ import annotations

import pytest

from fake_fleet import URL, FakeFleet
from fake_source import FakeSource
from fleet_driver import SIZES, Scene, play
from nanolens.inspector.fleet_rows import fleet_text
from nanolens.inspector.tui import fleet_screen
from nanolens.inspector.tui.fleet_screen import TROUBLES, FleetScreen
from nanolens.inspector.tui.inspect_screen import InspectScreen
from nanolens.inspector.tui.picker_screen import PickerScreen


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_screen, "LOOK_S", 0.05)


@pytest.mark.parametrize("size", SIZES)
def test_a_front_opens_as_rows_that_fit(size: str) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.until_fleet()
        await scene.pilot.pause()
        lines = scene.lines()
        assert lines[0].strip() == f"{URL} · llama-tiny"
        (head,) = (line for line in lines if line.strip().startswith("replica"))
        for name in ("state", "queue", "running", "paused", "free", "hit", "tok/s", "preempt", "skew", "sign"):
            assert name in head
        assert ("model" in head and "run" in head) == (size == "160x50")
        (row,) = (line for line in lines if line.strip().startswith("bbb"))
        assert row.split()[:9] == ["bbb", "live", "9", "3", "1", "120/370", "0%", "-", "5"]
        assert "waiting 15" in scene.words("#words") and "prefix 75%" in scene.words("#words")

    fleet = FakeFleet()
    fleet.skew_ns = 1_500_000
    play(scenario, fleet, SIZES[size])
    assert fleet.closed


def test_rows_are_sorted_and_the_cursor_stays_with_its_row() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.until_fleet()
        await scene.press("down")
        scene.table.sort_by(2)
        assert scene.table.keys == ["aaa", "ccc", "bbb"] and scene.table.cursor_key == "bbb"
        fleet.waiting["bbb"] = 0
        await scene.until(lambda: scene.table.keys == ["bbb", "aaa", "ccc"])
        assert scene.table.cursor_key == "bbb"

    fleet = FakeFleet()
    play(scenario, fleet)


def test_enter_opens_a_replica_and_esc_comes_back() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.until_fleet()
        await scene.press("down", "enter")
        await scene.until(lambda: isinstance(scene.app.screen, InspectScreen) and scene.app.screen.shown)
        assert fleet.opened == ["bbb"]
        source = fleet.source
        await scene.press("2", "escape")  # from the detail first
        assert isinstance(scene.app.screen, InspectScreen) and "fleet" in str(scene.app.screen._footer.render())
        await scene.press("escape")
        await scene.until_fleet()
        assert scene.table.cursor_key == "bbb"
        await scene.until(lambda: source.closed)

    fleet = FakeFleet()
    play(scenario, fleet)


def test_one_that_dies_is_shown_as_gone_and_is_not_opened() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.until_fleet()
        del fleet.waiting["aaa"]
        fleet.gone = ["aaa"]
        fleet.waiting["ddd"] = 1
        await scene.until(lambda: scene.table.keys == ["bbb", "ccc", "ddd", "aaa"])
        await scene.press("end", "enter")
        assert scene.told == ["replica aaa is gone"] and fleet.opened == []

    fleet = FakeFleet()
    play(scenario, fleet)


def test_a_replica_that_can_not_be_opened_leaves_the_fleet() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.until_fleet()
        scene.app.open_replica(source)
        await scene.until(lambda: scene.told)
        assert scene.told == ["there is no replica"] and isinstance(scene.app.screen, FleetScreen)

    source = FakeSource()
    source.fail_start = "there is no replica"
    play(scenario, FakeFleet())


def test_skew_is_a_column_where_there_are_ranks() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.until_fleet()
        assert "skew" not in scene.columns
        scene.table.sort_by(scene.columns.index("model"))
        fleet.skew_ns = 1_500_000
        await scene.until(lambda: "skew" in scene.columns)
        assert scene.table.sort == scene.columns.index("model")

    fleet = FakeFleet()
    play(scenario, fleet)


def test_a_front_that_is_lost_is_stale_and_troubles_leave_room_for_the_rows() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.until_fleet()
        fleet.trouble = f"{URL}: no connection"
        await scene.until(lambda: scene.words("#trouble") == f"STALE {URL}: no connection")
        assert len(scene.table.keys) == 3
        fleet.waiting = dict.fromkeys(map(str, range(9)), 0)
        fleet.troubles = dict.fromkeys(fleet.waiting, "killed")
        await scene.until(lambda: scene.words("#trouble").endswith(f"and {1 + 9 - TROUBLES} more"))

    fleet = FakeFleet()
    play(scenario, fleet)


def test_the_screen_and_once_say_the_same() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.until_fleet()
        shown = [line.split() for line in scene.lines()]
        for line in fleet_text(fleet.look()).splitlines()[4:]:
            assert line.split() in shown

    fleet = FakeFleet()
    fleet.skew_ns = 1_500_000
    play(scenario, fleet, SIZES["160x50"])


def test_a_fleet_that_can_not_be_looked_at_ends_the_program_in_words() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.until(lambda: not scene.app.is_running or scene.app.return_code is not None)

    fleet = FakeFleet()
    fleet.fail = "an API key is needed"
    app = play(scenario, fleet)
    assert (app.return_value, app.return_code) == ("an API key is needed", 1)


def test_from_the_list_to_a_fleet_and_back() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.until(lambda: isinstance(scene.app.screen, PickerScreen) and scene.table.keys)
        await scene.press("enter")
        await scene.until_fleet()
        await scene.press("enter")
        await scene.until(lambda: isinstance(scene.app.screen, InspectScreen) and scene.app.screen.shown)
        await scene.press("o")
        await scene.until(lambda: isinstance(scene.app.screen, PickerScreen))
        assert not scene.app.has_fleet

    play(scenario, FakeFleet(), picks=True)
