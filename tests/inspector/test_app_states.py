"""nano-inspect's app: how the source does, and how it begins and ends."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import msgspec
import pytest

from app_driver import Driver, drive
from fake_source import FakeSource
from nanolens.inspector.tui.app import NanoInspectApp
from nanolens.inspector.tui.inspect_screen import InspectScreen
from nanolens.inspector.tui.picker_screen import Choice, PickerScreen
from nanolens.inspector.view import SourceStatus


@pytest.mark.parametrize(
    ("state", "badge"),
    [("stale", "STALE 1m"), ("dead", "DEAD"), ("ended", "ENDED"), ("connecting", "CONNECTING"), ("live", "LIVE")],
)
def test_the_badge_says_how_the_source_does(state: str, badge: str) -> None:
    source = FakeSource()
    source.status_now = SourceStatus(state, time.time() - 70)  # type: ignore[arg-type]

    async def scenario(driver: Driver) -> None:
        await driver.until(lambda: badge in driver.text("header"))

    drive(scenario, source)


def test_a_lost_connection_shows_and_goes() -> None:
    async def scenario(driver: Driver) -> None:
        driver.source.status_now = SourceStatus("stale", time.time(), "connection refused")
        await driver.until(lambda: "STALE" in driver.text("header"))
        assert "connection refu" in driver.text("tabs")
        driver.source.status_now = SourceStatus("live", time.time())
        await driver.until(lambda: "LIVE" in driver.text("header"))

    drive(scenario)


def test_a_frozen_screen_still_tells_how_the_source_does() -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("space")
        driver.source.status_now = SourceStatus("dead", time.time())
        await driver.until(lambda: "FROZEN" in driver.text("header") and "DEAD" in driver.text("header"))

    drive(scenario)


def test_a_paused_engine_says_by_what() -> None:
    source = FakeSource()
    source.change = lambda view: replace(
        view, keyframe=msgspec.structs.replace(view.keyframe, engine_paused="breakpoint 3")
    )

    async def scenario(driver: Driver) -> None:
        assert "PAUSED breakpoint 3" in driver.text("header")

    drive(scenario, source)


def test_until_there_is_something_to_show_it_says_what_is_wrong() -> None:
    source = FakeSource()
    source.trouble = "the journal holds no whole frame yet"

    async def scenario(driver: Driver) -> None:
        await driver.until(lambda: "no whole frame" in str(driver.screen._waiting.render()))
        await driver.press("space", "left_square_bracket", "g", "2", "question_mark", "escape")
        source.trouble = ""
        await driver.until(lambda: driver.view == "detail")

    drive(scenario, source)


def test_trouble_in_between_is_told_once_and_the_last_view_stays() -> None:
    async def scenario(driver: Driver) -> None:
        driver.source.trouble = "damaged there"
        await driver.until(lambda: driver.told)
        await driver.pilot.pause(0.5)
        assert driver.told == ["damaged there"] and driver.view == "sequences"

    drive(scenario)


def test_a_source_that_can_not_be_opened_ends_the_app_with_its_words() -> None:
    source = FakeSource()
    source.fail_start = "nothing answers at http://127.0.0.1:1"

    async def scenario(driver: Driver) -> None:
        await driver.until(lambda: driver.app.return_code == 1)

    assert drive(scenario, source).return_value == source.fail_start
    assert source.closed == 1


def test_q_ends_the_app_and_the_source_is_closed() -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("q")

    app = drive(scenario, source := FakeSource())
    assert app.return_code == 0 and source.closed == 1


CHOICES = [
    Choice("http://127.0.0.1:8000", None, "server", "live", "smollm2", "pid 1"),
    Choice("/runs/journal", "r1", "journal", "dead", "smollm2", "run r1"),
]


def choosing(keys: list[str], source: FakeSource, found: list[Choice]) -> tuple[list[Choice], list[str], str]:
    """Presses keys in the picker: what was opened, what was told, the class of the screen then."""
    opened: list[Choice] = []

    def open_choice(choice: Choice) -> FakeSource:
        opened.append(choice)
        return source

    app = NanoInspectApp(None, 0.05, find=lambda: found, open_choice=open_choice)
    ends: list[str] = []

    async def run() -> None:
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.pause(0.2)
            for key in keys:
                await pilot.press(key)
                await pilot.pause(0.2)
            ends.append(type(app.screen).__name__)

    asyncio.run(run())
    return opened, [each.message for each in app._notifications], ends[0]


def test_without_a_source_one_is_chosen() -> None:
    opened, _, screen = choosing(["down", "enter"], FakeSource(), CHOICES)
    assert opened == [CHOICES[1]] and screen == InspectScreen.__name__


def test_another_one_can_be_opened() -> None:
    source = FakeSource()
    opened, _, screen = choosing(["enter", "o", "down", "enter"], source, CHOICES)
    assert opened == CHOICES and screen == InspectScreen.__name__


def test_one_that_can_not_be_opened_leads_back_to_the_choice() -> None:
    source = FakeSource()
    source.fail_start = "not a nanolens server"
    opened, told, screen = choosing(["enter"], source, CHOICES)
    assert opened and screen == PickerScreen.__name__ and "not a nanolens server" in told


def test_when_nothing_is_found_it_says_what_to_do() -> None:
    _, _, screen = choosing([], FakeSource(), [])
    assert screen == PickerScreen.__name__
