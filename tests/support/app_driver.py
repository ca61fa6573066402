"""Runs nano-inspect's app without a terminal, on a fake source, for one scenario."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from textual.pilot import Pilot
from textual.widgets import Static

from fake_source import FakeSource
from nanolens.inspector.tui.app import NanoInspectApp
from nanolens.inspector.tui.inspect_screen import InspectScreen

PATIENCE_S = 60.0  # other programs may use the machine too
Scenario = Callable[["Driver"], Awaitable[None]]


class Driver:
    """What a scenario works with.

    Attributes:
        app: that runs.
        pilot: presses keys.
        source: that it shows.
        now: seconds on the screen's clock, which stands still.
    """

    def __init__(self, app: NanoInspectApp, pilot: Pilot[Any], source: FakeSource) -> None:
        self.app, self.pilot, self.source = app, pilot, source
        self.now = 100.0

    @property
    def screen(self) -> InspectScreen:
        for screen in reversed(self.app.screen_stack):
            if isinstance(screen, InspectScreen):
                return screen
        raise AssertionError("there is no main screen")

    @property
    def view(self) -> str:
        """Name of the view that is shown."""
        return self.screen._switcher.current or ""

    @property
    def frame(self) -> int:
        """Number of the frame that is shown."""
        return self.screen._view.moment.segment if self.screen._view else 0

    @property
    def calls(self) -> list[tuple[Any, ...]]:
        """What the control was told."""
        return self.source.control.calls if self.source.control else []

    @property
    def told(self) -> list[str]:
        """What the user was told."""
        return [notification.message for notification in self.app._notifications]

    def text(self, part: str) -> str:
        """header, tabs, time or footer as text."""
        return str(getattr(self.screen, f"_{part}").render())

    def dialog(self) -> str:
        """All texts of the screen on top."""
        return "\n".join(str(each.render()) for each in self.app.screen.query(Static))

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def type(self, text: str) -> None:
        names = {" ": "space", "=": "equals_sign", ":": "colon", "-": "minus", "+": "plus", "<": "less_than_sign",
                 ">": "greater_than_sign", ".": "full_stop", "_": "underscore"}  # fmt: skip
        await self.press(*(names.get(char, char) for char in text))

    async def until(self, holds: Callable[[], object], what: str = "") -> None:
        """Wait for something to hold."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if holds():
                return
            await self.pilot.pause(0.02)
        raise AssertionError(f"never: {what or holds}; {self.view=} {self.frame=} {self.told=}")


def drive(
    scenario: Scenario,
    source: FakeSource | None = None,
    size: tuple[int, int] = (80, 24),
    export_dir: Path | None = None,
    interval: float = 0.05,
    toasts: bool = False,
) -> NanoInspectApp:
    """Run a scenario from the first view on, with or without toasts on the screen; gives the app after its end."""
    source = source or FakeSource()
    app = NanoInspectApp(source, interval, export_dir=export_dir)

    async def run() -> None:
        async with app.run_test(size=size, notifications=toasts) as pilot:
            driver = Driver(app, pilot, source)
            await pilot.pause()
            if isinstance(app.screen, InspectScreen):
                driver.screen.now = lambda: driver.now
            if not (source.trouble or source.fail_start):
                await driver.until(lambda: driver.view == "sequences", "the first view")
            await scenario(driver)

    asyncio.run(run())
    return app
