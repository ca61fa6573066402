"""nano-inspect's app: freezing, going back and forth, and the time bar."""

from __future__ import annotations

import pytest
from textual.widgets import Input, Static

from app_driver import Driver, drive
from fake_source import FakeSource
from nanolens.inspector.view import View


def test_space_freezes_and_space_again_goes_live() -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("space")
        assert driver.screen.is_frozen and "FROZEN" in driver.text("header")
        at = driver.frame
        driver.source.last -= 1  # the newest moment is another one now
        await driver.pilot.pause(0.3)
        assert driver.frame == at
        await driver.press("space")
        await driver.until(lambda: driver.frame == at - 1)
        assert "LIVE" in driver.text("header")

    drive(scenario)


def test_brackets_go_a_step_back_and_on() -> None:
    async def scenario(driver: Driver) -> None:
        last = driver.source.last
        await driver.press("left_square_bracket", "left_square_bracket")
        await driver.until(lambda: driver.frame == last - 2)
        assert driver.screen.is_frozen
        await driver.press("right_square_bracket")
        await driver.until(lambda: driver.frame == last - 1)
        await driver.press("g")
        await driver.until(lambda: driver.frame == last and not driver.screen.is_frozen)

    drive(scenario)


def test_a_count_goes_so_many_steps_and_the_view_stays() -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("1", "2")
        assert "count 12" in driver.text("time")
        await driver.press("left_square_bracket")
        await driver.until(lambda: driver.frame == driver.source.last - 12)
        assert driver.view == "sequences"
        assert ("move", -12) in driver.source.asked

    drive(scenario)


def test_a_count_that_begins_with_a_views_key_takes_that_view_back() -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("3", "left_square_bracket")
        await driver.until(lambda: driver.frame == driver.source.last - 3)
        assert driver.view == "sequences"

    drive(scenario)


def test_braces_go_to_the_events_of_the_kind() -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("left_curly_bracket")
        await driver.until(lambda: driver.frame < driver.source.last)
        assert ("find", "on=sequence.preempted", False) in driver.source.asked
        at = driver.frame
        await driver.press("left_curly_bracket")
        await driver.until(lambda: driver.frame < at)
        await driver.press("right_curly_bracket")
        await driver.until(lambda: driver.frame == at)

    drive(scenario)


def test_no_such_event_is_told_and_the_moment_stays() -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("right_curly_bracket")
        await driver.until(lambda: driver.told)
        assert "no event that meets on=sequence.preempted after" in driver.told[0]
        assert driver.frame == driver.source.last

    drive(scenario)


def test_no_such_event_is_told_each_time_that_it_is_asked_for() -> None:
    async def scenario(driver: Driver) -> None:
        for count in (1, 2):
            await driver.press("right_curly_bracket")
            await driver.until(lambda count=count: len(driver.told) == count)

    drive(scenario)


def test_the_kind_of_event_is_asked_for_and_checked() -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("e")
        field = driver.screen._prompt.query_one(Input)
        assert field.value == "on=preempted"
        field.value = "on=preemptd"
        await driver.press("enter")
        assert "did you mean" in str(driver.screen._prompt.query_one(".prompt--error", Static).render())
        field.value = "on=status to=PAUSED"
        await driver.press("enter", "left_curly_bracket")
        await driver.until(lambda: ("find", "on=sequence.status to=PAUSED", False) in driver.source.asked)
        assert "on=status to=PAUSED" in driver.text("time")

    drive(scenario, size=(160, 50))


def test_any_event_is_an_empty_kind() -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("e")
        driver.screen._prompt.query_one(Input).value = ""
        await driver.press("enter", "left_curly_bracket")
        await driver.until(lambda: ("find", None, False) in driver.source.asked)

    drive(scenario)


@pytest.mark.parametrize(
    ("typed", "asked"),
    [("step 12", ("at_step", 12)), ("12", ("at_step", 12)), ("-10", ("move", -10)), ("first", None), ("-20ms", None)],
)
def test_a_place_in_time_is_asked_for(typed: str, asked: tuple[str, int] | None) -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("t")
        await driver.type(typed)
        await driver.press("enter")
        await driver.until(lambda: driver.frame < driver.source.last)
        assert asked is None or asked in driver.source.asked
        assert typed != "first" or driver.frame == 1

    drive(scenario)


def test_no_place_in_time_is_told_beside_it() -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("t")
        await driver.type("soon")
        await driver.press("enter")
        assert "no place in time" in str(driver.screen._prompt.query_one(".prompt--error", Static).render())
        await driver.press("escape")
        assert not driver.screen._prompt.is_asking and not driver.screen.is_frozen

    drive(scenario)


def test_a_click_on_the_time_bar_goes_there() -> None:
    async def scenario(driver: Driver) -> None:
        line = driver.text("time")
        place = line.rindex("━") - 6  # the run's steps stand close to its end
        await driver.pilot.click(driver.screen._time, offset=(place, 0))
        await driver.until(lambda: 1 < driver.frame < driver.source.last)
        assert driver.screen.is_frozen
        await driver.until(lambda: "●" in driver.text("time")[place - 12 : place + 2])

    drive(scenario)


def test_a_drag_on_the_time_bar_follows_the_mouse() -> None:
    async def scenario(driver: Driver) -> None:
        bar, line = driver.screen._time, driver.text("time")
        last = line.rindex("━")
        await driver.pilot.mouse_down(bar, offset=(last - 3, 0))
        await driver.until(lambda: driver.frame < driver.source.last)
        at = driver.frame
        await driver.pilot.hover(bar, offset=(last - 40, 0))
        await driver.until(lambda: driver.frame < at)
        await driver.pilot.mouse_up(bar, offset=(last - 40, 0))
        at = driver.frame
        await driver.pilot.hover(bar, offset=(last - 2, 0))
        await driver.pilot.pause(0.2)
        assert driver.frame == at

    drive(scenario)


def test_everything_on_the_screen_shows_the_moment() -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("t")
        await driver.type("12")
        await driver.press("enter")
        await driver.until(lambda: driver.screen.is_frozen and driver.frame < driver.source.last)
        shown: list[View] = []
        for name in ("sequences", "blocks", "queue", "steps", "events"):
            driver.screen.action_show_view(name)
            await driver.pilot.pause()
            shown.append(driver.screen._view)  # type: ignore[arg-type]
        assert {view.keyframe.step for view in shown} == {12}
        assert "step 12" in driver.text("header") and "step 12 of 28" in driver.text("time")

    drive(scenario)


def test_a_chosen_step_is_gone_to() -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("5", "home", "enter")
        await driver.until(lambda: any(call[0] == "at_step" for call in driver.source.asked))
        await driver.until(lambda: driver.screen.is_frozen)

    drive(scenario)


def test_a_frozen_screen_learns_how_far_the_journal_has_come() -> None:
    source = FakeSource()

    async def scenario(driver: Driver) -> None:
        await driver.press("space")
        source.change = lambda view: view.__class__(
            **{name: getattr(view, name) for name in view.__slots__} | {"last": view.last._replace(step=1234)}
        )
        await driver.until(lambda: "step 28 of 1,234" in driver.text("time"))

    drive(scenario, source)


def test_a_frozen_moment_that_is_deleted_is_said_to_be_gone_and_brackets_lead_to_what_is_kept() -> None:
    async def scenario(driver: Driver) -> None:
        driver.source.last -= 5
        await driver.until(lambda: driver.frame == driver.source.last)
        await driver.press("2")
        await driver.until(lambda: ("verdict", driver.screen._seq) in driver.source.asked)
        driver.now += 10  # the 2 was no count
        await driver.press("space")
        frozen = driver.frame
        before = driver.text("time")
        assert "GONE" not in driver.text("header")
        await driver.until(lambda: not driver.screen.shown.is_live)  # type: ignore[union-attr]
        statuses = driver.screen.active._states.caption  # type: ignore[union-attr]
        driver.source.last += 5
        driver.source.first = frozen + 3
        await driver.until(lambda: "GONE" in driver.text("header"))
        assert "FROZEN" in driver.text("header") and driver.frame == frozen and driver.told == []
        assert "no longer on disk: g live, [ ] oldest kept" in driver.text("time") != before
        assert driver.screen.active._states.caption == statuses  # type: ignore[union-attr]
        behind = driver.screen.shown.last.t  # type: ignore[union-attr]
        assert behind == driver.source.view().keyframe.t
        await driver.press("right_square_bracket")
        await driver.until(lambda: driver.frame == driver.source.first)
        assert "GONE" not in driver.text("header") and "FROZEN" in driver.text("header")
        assert "oldest kept" not in driver.text("time") and driver.told == []

    drive(scenario, size=(80, 24))


def test_from_a_moment_that_is_gone_g_goes_live() -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("left_square_bracket")
        await driver.until(lambda: driver.frame == driver.source.last - 1)
        driver.source.first = driver.source.last
        await driver.until(lambda: "GONE" in driver.text("header"))
        await driver.press("g")
        await driver.until(lambda: "LIVE" in driver.text("header") and driver.frame == driver.source.last)
        assert "GONE" not in driver.text("header")

    drive(scenario)
