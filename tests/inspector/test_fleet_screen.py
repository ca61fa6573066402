"""The screen of a fleet: rows, sorting, in and out of a replica, one that is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from fake_source import FakeSource
from nanolens.errors import InspectError
from nanolens.inspector.fleet_rows import Fleet, Sample, fleet_row
from nanolens.inspector.sources.http_stream import IsFleet
from nanolens.inspector.tui import fleet_screen
from nanolens.inspector.tui.app import NanoInspectApp
from nanolens.inspector.tui.fleet_screen import FleetScreen
from nanolens.inspector.tui.inspect_screen import InspectScreen
from nanolens.inspector.tui.live_table import LiveTable
from nanolens.inspector.tui.picker_screen import Choice, PickerScreen

URL = "http://127.0.0.1:8000"
PATIENCE_S = 60.0
SIZES = {"80x24": (80, 24), "160x50": (160, 50)}
CHOICE = Choice(URL, None, "server", "live", "m", "")


class FakeFleet:
    """Replicas by id -> how many wait; a test changes them."""

    url = URL

    def __init__(self) -> None:
        self.waiting = {"aaa": 2, "bbb": 9, "ccc": 4}
        self.gone: Sequence[str] = ()
        self.skew_ns: int | None = None
        self.fail, self.trouble = "", ""
        self.opened: list[str] = []
        self.source = FakeSource()
        self.closed = 0

    def look(self) -> Fleet:
        if self.fail:
            raise InspectError(self.fail)
        rows = [self._row(name, False) for name in self.waiting] + [self._row(name, True) for name in self.gone]
        return Fleet(self.url, rows, {"prefix": 3, "load": 1}, self.trouble)

    def _row(self, name: str, gone: bool) -> Any:
        counts = {"WAITING": self.waiting.get(name, 0), "RUNNING": 3, "PAUSED": 1}
        blocks, totals = {"free": 120, "total": 370}, {"preemptions": 5, "prefix_queried_tokens": 8}
        snapshot = {"model": "llama-tiny", "counts": counts, "blocks": blocks, "totals": totals}
        return fleet_row({"id": name, "run": "r"}, [Sample(0, snapshot, self.skew_ns)], 2_000_000, gone)

    def open(self, replica: str) -> FakeSource:
        self.opened.append(replica)
        self.source = FakeSource()
        return self.source

    def close(self) -> None:
        self.closed += 1


class Front(FakeSource):
    """What looks like a server, and is the front of a fleet."""

    def start(self) -> None:
        raise IsFleet(URL)


class Scene:
    """A running app whose first screen is the fleet."""

    def __init__(self, app: NanoInspectApp, pilot: Pilot[Any]) -> None:
        self.app, self.pilot = app, pilot

    @property
    def table(self) -> LiveTable[Any]:
        return self.app.screen.query_one(LiveTable)

    @property
    def told(self) -> list[str]:
        return [each.message for each in self.app._notifications]

    def lines(self) -> list[str]:
        """The screen as text."""
        return ["".join(each.text for each in strip) for strip in self.app.screen._compositor.render_strips()]

    def words(self, name: str) -> str:
        return str(self.app.screen.query_one(name, Static).render())

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def until(self, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, (self.app.screen_stack, self.told)
            await self.pilot.pause(0.02)

    async def until_fleet(self) -> None:
        await self.until(lambda: isinstance(self.app.screen, FleetScreen) and self.table.keys)


def play(
    scenario: Callable[[Scene], Awaitable[None]],
    fleet: FakeFleet,
    size: tuple[int, int] = (80, 24),
    picks: bool = False,
) -> NanoInspectApp:
    """Run a scenario; with `picks`, from the list of servers on."""
    if picks:
        app = NanoInspectApp(
            None, 0.05, find=lambda: [CHOICE], open_choice=lambda choice: Front(), find_fleet=lambda url: fleet
        )
    else:
        app = NanoInspectApp(Front(), 0.05, find_fleet=lambda url: fleet)

    async def run() -> None:
        async with app.run_test(size=size, notifications=True) as pilot:
            await scenario(Scene(app, pilot))

    asyncio.run(run())
    return app


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
        assert ("model" in head) == (size == "160x50")
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
        assert "skew" not in [column.name for column in scene.table.columns]
        fleet.skew_ns = 1_500_000
        await scene.until(lambda: "skew" in [column.name for column in scene.table.columns])

    fleet = FakeFleet()
    play(scenario, fleet)


def test_a_front_that_is_lost_is_stale() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.until_fleet()
        fleet.trouble = f"{URL}: no connection"
        await scene.until(lambda: scene.words("#trouble") == f"STALE {URL}: no connection")
        assert len(scene.table.keys) == 3

    fleet = FakeFleet()
    play(scenario, fleet)


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
