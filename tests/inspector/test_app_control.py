"""nano-inspect's app as a debugger: what it asks, what it does to the engine, and what it says."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import msgspec
import pytest
from textual.widgets import Input, OptionList

from app_driver import Driver, drive
from fake_source import FakeSource
from nanolens.inspector.tui.breakpoints_screen import BreakpointsScreen
from nanolens.inspector.tui.dialogs import ConfirmScreen
from nanolens.inspector.view import SourceStatus, View


def paused(view: View) -> View:
    return replace(view, keyframe=msgspec.structs.replace(view.keyframe, engine_paused="operator"))


async def asked(driver: Driver) -> str:
    await driver.until(lambda: isinstance(driver.app.screen, ConfirmScreen), "a question")
    await driver.pilot.pause()
    return driver.dialog()


@pytest.mark.parametrize("refusal", ["n", "escape", "q"])
def test_pausing_the_engine_asks_first_and_no_means_no(refusal: str) -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("P")
        assert "Pause the engine at step 28?" in await asked(driver)
        assert driver.calls == []
        await driver.press(refusal)
        await driver.until(lambda: driver.app.screen is driver.screen)
        assert driver.calls == []

    drive(scenario)


def test_pausing_the_engine_is_done_and_told() -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("P")
        assert driver.source.title in await asked(driver)
        await driver.press("y")
        await driver.until(lambda: driver.calls == [("pause_engine",)])
        await driver.until(lambda: "the engine is paused" in driver.told)

    drive(scenario)


def test_a_paused_engine_is_continued_by_the_same_key() -> None:
    source = FakeSource()
    source.change = paused

    async def scenario(driver: Driver) -> None:
        assert "PAUSED" in driver.text("header")
        await driver.press("P")
        assert "Let it go on?" in await asked(driver)
        await driver.press("y")
        await driver.until(lambda: driver.calls == [("continue_engine",)])

    drive(scenario, source)


@pytest.mark.parametrize(("keys", "steps"), [(["s"], 1), (["1", "0", "s"], 10), (["5", "s"], 5)])
def test_the_engine_is_stepped_as_often_as_the_count_says(keys: list[str], steps: int) -> None:
    source = FakeSource()
    source.change = paused

    async def scenario(driver: Driver) -> None:
        await driver.press(*keys)
        assert f"do {steps} step" in await asked(driver)
        await driver.press("y")
        await driver.until(lambda: driver.calls == [("step_engine", steps)])
        assert driver.view == "sequences"

    drive(scenario, source)


def test_steps_of_a_paused_engine_can_be_agreed_to_once_and_for_all() -> None:
    source = FakeSource()
    source.change = paused

    async def scenario(driver: Driver) -> None:
        await driver.press("s")
        await asked(driver)
        await driver.press("a")
        await driver.until(lambda: len(driver.calls) == 1)
        await driver.press("s")
        await driver.until(lambda: len(driver.calls) == 2)
        source.change = lambda view: view  # it runs again: that is another question
        await driver.press("s")
        assert "and pause?" in await asked(driver)

    drive(scenario, source)


def test_many_steps_are_asked_for_whatever_was_agreed_to() -> None:
    source = FakeSource()
    source.change = paused

    async def scenario(driver: Driver) -> None:
        await driver.press("s")
        assert "up to 100 steps" in await asked(driver)
        await driver.press("a")
        await driver.until(lambda: driver.calls == [("step_engine", 1)])
        await driver.press("1", "0", "0", "s")
        await driver.until(lambda: driver.calls[1:] == [("step_engine", 100)])
        await driver.press("1", "0", "1", "s")
        words = await asked(driver)
        assert "do 101 steps" in words and "do not ask again" not in words
        await driver.press("a")
        assert isinstance(driver.app.screen, ConfirmScreen) and len(driver.calls) == 2

    drive(scenario, source)


def test_steps_that_are_asked_for_at_once_are_done_one_after_the_other() -> None:
    source = FakeSource()
    source.change = paused
    assert source.control is not None
    under_way, most, done = 0, 0, []

    def step(steps: int) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        source.change = lambda view: view  # what the screen sees until the pause after the step has come to it
        time.sleep(0.05 if len(done) % 2 else 0.01)
        done.append(steps)
        under_way -= 1
        threading.Timer(0.05, lambda: setattr(source, "change", paused)).start()

    source.control.step_engine = step  # type: ignore[method-assign]

    async def scenario(driver: Driver) -> None:
        await driver.press("s")
        await asked(driver)
        await driver.press("a")
        await driver.until(lambda: done == [1])
        await driver.pilot.press("s", "2", "s", "s", "3", "s")
        await driver.until(lambda: done == [1, 1, 2, 1, 3], f"{done=}")
        assert most == 1 and driver.app.screen is driver.screen

    drive(scenario, source)


def other_run(view: View) -> View:
    started = msgspec.structs.replace(view.keyframe.started, run_id="another")
    return replace(view, keyframe=msgspec.structs.replace(view.keyframe, started=started))


@pytest.mark.parametrize("key", ["P", "s", "b", "p", "x"])
def test_a_run_that_is_over_is_looked_at_and_not_steered(key: str) -> None:
    source = FakeSource()

    def change(view: View) -> View:
        if view.is_live:
            return other_run(view)
        return replace(view, status=SourceStatus("replaced", 0.0, "run test is over, the server runs another now"))

    async def scenario(driver: Driver) -> None:
        await driver.press("space")
        source.change = change
        await driver.until(lambda: "OLD RUN" in driver.text("header"))
        assert "run test is over" in driver.text("tabs") and "pause" not in driver.text("footer")
        await driver.press(key)
        await driver.until(lambda: any("run test is over" in words for words in driver.told))
        assert driver.calls == [] and driver.app.screen is driver.screen
        await driver.press("g")
        await driver.until(lambda: "OLD RUN" not in driver.text("header"))
        assert "another" in driver.text("header")

    drive(scenario, source, size=(160, 30))


def test_what_is_asked_for_is_done_to_the_run_on_the_screen_alone() -> None:
    source = FakeSource()
    assert source.control is not None
    control = source.control

    async def scenario(driver: Driver) -> None:
        await driver.press("home", "down", "down", "x")
        await asked(driver)
        assert control.runs == [source.view().keyframe.started.run_id]
        await driver.press("n")
        await driver.press("space")
        await driver.until(lambda: driver.screen.is_frozen)
        source.change = lambda view: other_run(view) if view.is_live else view  # nobody has seen it yet
        await driver.press("x")
        await driver.until(lambda: any("the server runs another now" in words for words in driver.told))
        assert driver.calls == [] and driver.app.screen is driver.screen

    drive(scenario, source)


def test_pausing_can_not_be_agreed_to_for_all() -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("P")
        await asked(driver)
        await driver.press("a")
        assert isinstance(driver.app.screen, ConfirmScreen) and driver.calls == []

    drive(scenario)


def test_after_a_step_the_screen_is_live() -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("left_square_bracket")
        await driver.until(lambda: driver.frame < driver.source.last)
        await driver.press("s")
        await asked(driver)
        await driver.press("y")
        await driver.until(lambda: not driver.screen.is_frozen and driver.frame == driver.source.last)

    drive(scenario)


def test_what_the_server_refuses_is_told() -> None:
    source = FakeSource()
    assert source.control is not None
    source.control.refuse = "open to this machine alone"

    async def scenario(driver: Driver) -> None:
        await driver.press("P")
        await asked(driver)
        await driver.press("y")
        await driver.until(lambda: "open to this machine alone" in driver.told)

    drive(scenario, source)


@pytest.mark.parametrize("key", ["P", "s", "b", "p", "x"])
def test_a_journal_can_not_be_steered_and_says_so(key: str) -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press(key)
        await driver.until(lambda: driver.told)
        assert "attach to its server" in driver.told[0]
        assert driver.app.screen is driver.screen
        assert "pause" not in driver.text("footer")

    drive(scenario, FakeSource(can_steer=False), size=(200, 50))


@pytest.mark.parametrize(
    ("row", "key", "question", "call"),
    [
        (2, "p", "Pause seq 2 of request twins", ("pause_sequence", 2)),
        (0, "p", "Resume seq 0 of request sleeper", ("resume_sequence", 0)),
        (5, "x", "Abort seq 5 of request low", ("abort_sequence", 5)),
    ],
)
def test_the_sequence_under_the_cursor_is_steered(row: int, key: str, question: str, call: tuple[object, ...]) -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("home", *["down"] * row, key)
        assert question in await asked(driver)
        assert driver.calls == []
        await driver.press("y")
        await driver.until(lambda: driver.calls == [call])

    drive(scenario)


def test_a_priority_is_asked_for_and_checked() -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("home", "down", "down", "i")
        await driver.type("high")
        await driver.press("enter")
        assert driver.screen._prompt.is_asking
        driver.screen._prompt.query_one(Input).value = "-3"
        await driver.press("enter")
        assert "priority -3" in await asked(driver)
        await driver.press("y")
        await driver.until(lambda: driver.calls == [("set_priority", 2, -3)])

    drive(scenario)


def test_the_sequence_of_the_detail_view_is_steered_there() -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("home", "down", "down", "down", "enter")
        await driver.until(lambda: driver.view == "detail")
        await driver.press("x")
        assert "Abort seq 3" in await asked(driver)

    drive(scenario)


def test_a_breakpoint_is_checked_asked_for_and_added() -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("b")
        await driver.until(lambda: "None." in driver.dialog())
        await driver.press("a")
        field = driver.app.screen.query_one(Input)
        field.value = "on=preemptd"
        await driver.press("enter")
        assert "did you mean" in driver.dialog() and driver.calls == []
        field.value = "on=preempted"
        await driver.press("enter")
        assert "on=sequence.preempted" in await asked(driver)
        await driver.press("y")
        await driver.until(lambda: driver.calls == [("add_breakpoint", "on=sequence.preempted", "engine")])
        await driver.until(lambda: isinstance(driver.app.screen, BreakpointsScreen))
        await driver.until(lambda: driver.app.screen.query_one(OptionList).option_count == 1)
        await driver.press("escape")
        assert driver.app.screen is driver.screen

    drive(scenario)


def test_a_breakpoint_of_a_sequence_says_so() -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("b", "A")
        driver.app.screen.query_one(Input).value = "seq=2 on=preempted"
        await driver.press("enter")
        assert "sequence that it names" in await asked(driver)
        await driver.press("y")
        await driver.until(lambda: driver.calls[-1:] == [("add_breakpoint", "on=sequence.preempted seq=2", "sequence")])

    drive(scenario)


def test_a_breakpoint_is_removed() -> None:
    source = FakeSource()
    assert source.control is not None
    source.control.listed = {1: "on=sequence.preempted", 4: "free<10"}

    async def scenario(driver: Driver) -> None:
        await driver.press("b")
        await driver.until(lambda: driver.app.screen.query_one(OptionList).option_count == 2)
        await driver.press("d")
        assert "Remove breakpoint 4?" in await asked(driver)
        await driver.press("y")
        await driver.until(lambda: driver.calls == [("remove_breakpoint", 4)])
        await driver.until(lambda: isinstance(driver.app.screen, BreakpointsScreen))
        await driver.until(lambda: driver.app.screen.query_one(OptionList).option_count == 1)

    drive(scenario, source)
