"""nano-inspect's app: its views, how one gets from one to another, and filters."""

from __future__ import annotations

import pytest
from textual.widgets import Input, Static

from app_driver import Driver, drive
from nanolens.inspector.tui.prompt_line import PromptLine

NAMES = ["sequences", "detail", "blocks", "queue", "steps", "events"]
SIZES = [(80, 24), (160, 50), (320, 90)]


@pytest.mark.parametrize("number", range(1, 7))
def test_a_digit_shows_a_view(number: int) -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("3" if number != 3 else "4")
        driver.now += 1  # or it would be a count
        await driver.press(str(number))
        await driver.until(lambda: driver.view == NAMES[number - 1])

    drive(scenario)


def test_tab_goes_through_the_views_and_back() -> None:
    async def scenario(driver: Driver) -> None:
        seen = []
        for _ in NAMES:
            await driver.press("tab")
            seen.append(driver.view)
        assert seen == [*NAMES[1:], NAMES[0]]
        await driver.press("shift+tab")
        assert driver.view == "events"

    drive(scenario)


def test_a_click_on_a_tab_shows_its_view() -> None:
    async def scenario(driver: Driver) -> None:
        at = driver.text("tabs").index("Queue")
        await driver.pilot.click(driver.screen._tabs, offset=(at, 0))
        await driver.until(lambda: driver.view == "queue")

    drive(scenario)


def test_a_click_on_a_key_in_the_footer_does_what_it_does() -> None:
    async def scenario(driver: Driver) -> None:
        at = driver.text("footer").index("freeze")
        await driver.pilot.click(driver.screen._footer, offset=(at, 0))
        await driver.until(lambda: driver.screen.is_frozen)

    drive(scenario)


def test_enter_opens_the_sequence_under_the_cursor_and_escape_goes_back() -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("down", "down", "enter")
        await driver.until(lambda: driver.view == "detail")
        await driver.until(lambda: ("story", 2) in driver.source.asked)
        await driver.press("escape")
        assert driver.view == "sequences"

    drive(scenario)


def test_detail_by_its_key_shows_the_sequence_under_the_cursor() -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("down", "down", "down", "2")
        await driver.until(lambda: ("story", 3) in driver.source.asked)

    drive(scenario)


def test_the_focus_is_in_the_view_that_is_shown() -> None:
    async def scenario(driver: Driver) -> None:
        for name in NAMES:
            driver.screen.action_show_view(name)
            await driver.pilot.pause()
            focused = driver.screen.focused
            assert focused is not None and driver.screen.active in focused.ancestors_with_self, name

    drive(scenario)


def test_a_filter_applies_as_it_is_typed_and_enter_keeps_it() -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("slash")
        await driver.type("state:waiting")
        assert len(driver.screen.active.exported().rows) == 2
        await driver.press("enter")
        assert not driver.screen._prompt.is_asking
        assert "/state:waiting" in driver.text("tabs")
        await driver.press("escape")
        assert len(driver.screen.active.exported().rows) == 9
        assert "state:" not in driver.text("tabs")

    drive(scenario)


def test_escape_while_a_filter_is_typed_brings_back_the_one_before() -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("slash")
        await driver.type("twins")
        await driver.press("enter", "slash")
        await driver.type(" nothing")
        assert len(driver.screen.active.exported().rows) == 0
        await driver.press("escape")
        assert len(driver.screen.active.exported().rows) == 2

    drive(scenario)


def test_what_is_wrong_with_a_filter_stands_beside_it() -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("slash")
        await driver.type("blox>1")
        error = str(driver.screen._prompt.query_one(".prompt--error", Static).render())
        assert "blox" in error
        await driver.press("enter")
        assert driver.screen._prompt.is_asking

    drive(scenario)


def test_keys_typed_into_a_filter_do_nothing_else() -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("slash", "q", "5", "P", "space")
        assert driver.screen.query_one(PromptLine).query_one(Input).value == "q5P "
        assert driver.view == "sequences" and not driver.screen.is_frozen and not driver.calls

    drive(scenario)


@pytest.mark.parametrize("size", SIZES)
def test_every_part_fits_the_screen(size: tuple[int, int]) -> None:
    async def scenario(driver: Driver) -> None:
        for name in NAMES:
            driver.screen.action_show_view(name)
            await driver.pilot.pause()
            for part in ("header", "tabs", "time", "footer"):
                for line in driver.text(part).split("\n"):
                    assert len(line) <= size[0], (name, part, line)
            assert driver.screen.active.size.height >= size[1] - 7

    drive(scenario, size=size)


@pytest.mark.parametrize("size", SIZES)
def test_the_header_names_model_step_and_figures(size: tuple[int, int]) -> None:
    async def scenario(driver: Driver) -> None:
        header = driver.text("header")
        for words in ("fake", "step 28", "LIVE", "free", "running 3", "waiting 2", "hit", "preempt"):
            assert words in header
        if size[0] >= 160:
            assert "free blocks 1/24" in header and "+4 paused" in header

    drive(scenario, size=size)


def test_the_footer_names_back_in_the_detail_view_alone() -> None:
    async def scenario(driver: Driver) -> None:
        assert "esc" not in driver.text("footer")
        await driver.press("enter")
        await driver.until(lambda: "esc back" in driver.text("footer"))

    drive(scenario)
