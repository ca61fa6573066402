"""Runs nano-inspect's app without a terminal, on a fake fleet, for one scenario."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from textual.pilot import Pilot
from textual.widgets import Static

from fake_fleet import URL, FakeFleet, Front
from nanolens.inspector.tui.app import NanoInspectApp
from nanolens.inspector.tui.fleet_screen import FleetScreen
from nanolens.inspector.tui.live_table import LiveTable
from nanolens.inspector.tui.picker_screen import Choice

PATIENCE_S = 60.0  # other programs may use the machine too
SIZES = {"80x24": (80, 24), "160x50": (160, 50)}
CHOICE = Choice(URL, None, "server", "live", "m", "")


class Scene:
    """A running app whose first screen is the fleet, or the list that leads to it."""

    def __init__(self, app: NanoInspectApp, pilot: Pilot[Any]) -> None:
        self.app, self.pilot = app, pilot

    @property
    def table(self) -> LiveTable[Any]:
        return self.app.screen.query_one(LiveTable)

    @property
    def columns(self) -> list[str]:
        return [column.name for column in self.table.columns]

    @property
    def told(self) -> list[str]:
        return [each.message for each in self.app._notifications]

    @property
    def footer(self) -> str:
        return str(self.app.screen._footer.render())  # type: ignore[attr-defined]

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
    export_dir: Path | None = None,
) -> NanoInspectApp:
    """Run a scenario; with `picks`, from the list of servers on."""
    if picks:
        app = NanoInspectApp(
            None, 0.05, find=lambda: [CHOICE], open_choice=lambda choice: Front(), find_fleet=lambda url: fleet
        )
    else:
        app = NanoInspectApp(Front(), 0.05, find_fleet=lambda url: fleet, export_dir=export_dir)

    async def run() -> None:
        async with app.run_test(size=size, notifications=True) as pilot:
            await scenario(Scene(app, pilot))

    asyncio.run(run())
    return app
