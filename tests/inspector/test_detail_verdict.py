"""The verdict in the Sequence detail, under a pilot: what it says, and whom one gets to from it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widget import Widget

from app_driver import Driver, drive
from fake_source import FakeSource
from nanolens.errors import InspectError
from nanolens.inspector.tui.detail_view import DetailView
from nanolens.inspector.tui.live_table import LiveTable
from nanolens.inspector.tui.messages import SequenceChosen, StepChosen
from nanolens.inspector.view import Blamed, Judgement, Moment
from nanolens.telemetry.culprit import Culprit
from views import judgement_of, story_of, view_of_fake_run

Check = Callable[["DetailApp", Pilot[None]], Awaitable[None]]
SAID = Judgement(
    5, "low", True, {"queue_no_blocks": 6_000_000, "own_decode": 3_000_000, "host_gap": 1_000_000},
    "low lives and has taken 10.0 ms: 60% of it (6.0 ms) waiting for free blocks, held by big (80%) and \x1b[2J (20%).",
    (),
    [
        Blamed("queue_no_blocks", Culprit("holder", "big", 4, 4_800_000, "held 80% of the blocks in use")),
        Blamed("queue_no_blocks", Culprit("holder", "gone", 20, 1_200_000, "held 20% of the blocks in use", 7)),
        Blamed("host_gap", Culprit("plan", "", -1, 1_000_000, "planning", 9)),
    ],
)  # fmt: skip


class DetailApp(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self.shown = DetailView()
        self.heard: list[tuple[str, int]] = []

    def compose(self) -> ComposeResult:
        yield self.shown

    def on_sequence_chosen(self, message: SequenceChosen) -> None:
        self.heard.append(("seq", message.seq))

    def on_step_chosen(self, message: StepChosen) -> None:
        self.heard.append(("step", message.step))


def with_verdict(check: Check, size: tuple[int, int] = (160, 50), verdict: Judgement | None = SAID) -> None:
    async def work() -> None:
        app = DetailApp()
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            app.shown.show_story(view_of_fake_run(), story_of(5))
            app.shown.show_verdict(verdict, "" if verdict else "not yet")
            await pilot.pause()
            await check(app, pilot)

    asyncio.run(work())


def lines(app: DetailApp, name: str) -> list[str]:
    widget = app.shown.query_one(f"#{name}", Widget)
    if not widget.display or not widget.size:
        return []
    return [strip.text.rstrip() for strip in widget.render_lines(widget.size.region)]


def test_the_first_sentence_the_parts_as_a_bar_and_culprits_are_shown() -> None:
    async def check(app: DetailApp, pilot: Pilot[None]) -> None:
        said = lines(app, "verdict")
        assert said[0].startswith("low lives and has taken 10.0 ms: 60% of it (6.0 ms) waiting for free blocks")
        bar = said[2].removeprefix("spent on  ")
        assert (bar.count("█"), bar.count("▓"), bar.count("▒")) == (89, 45, 16)
        assert said[3].split("  ")[5:] == ["█ queue no blocks 6.0ms 60%", "▓ own decode 3.0ms 30%",
                                           "▒ host gap 1.0ms 10%"]  # fmt: skip
        blamed = lines(app, "blamed")
        assert blamed[0] == "its time was spent on 3 culprits"
        assert blamed[2].split()[:7] == ["4.8ms", "48%", "queue", "no", "blocks", "4", "big"]

    with_verdict(check)


@pytest.mark.parametrize("width", [80, 110, 160])
def test_a_long_sentence_takes_two_lines_and_holds_no_command_of_a_terminal(width: int) -> None:
    async def check(app: DetailApp, pilot: Pilot[None]) -> None:
        said = lines(app, "verdict")
        assert len(said) == 4 and said[2].startswith("spent on") and "\x1b" not in "".join(said)
        assert " ".join(said[:2]).strip().endswith("(20%).")

    with_verdict(check, (width, 30))


def test_until_there_is_one_it_says_so() -> None:
    async def check(app: DetailApp, pilot: Pilot[None]) -> None:
        assert lines(app, "verdict")[0] == "not yet"
        assert lines(app, "blamed")[2] == "nobody"

    with_verdict(check, verdict=None)


@pytest.mark.parametrize(
    ("row", "heard"), [(0, [("seq", 4)]), (1, [("seq", 20), ("step", 7)]), (2, [("step", 9)])]
)  # fmt: skip
def test_enter_goes_to_the_culprit_while_it_lived(row: int, heard: list[tuple[str, int]]) -> None:
    async def check(app: DetailApp, pilot: Pilot[None]) -> None:
        app.shown.query_one("#blamed", LiveTable).focus()
        await pilot.press(*["down"] * row, "enter")
        await pilot.pause()
        assert app.heard == heard

    with_verdict(check)


def test_its_culprits_are_exported() -> None:
    async def check(app: DetailApp, pilot: Pilot[None]) -> None:
        await pilot.press("w", "w", "w")
        table = app.shown.exported()
        assert table.title == "sequence-5-culprits" and len(table.rows) == 3

    with_verdict(check)


def verdict_text(driver: Driver) -> str:
    return str(driver.screen.query_one("#verdict").render())


def test_the_detail_comes_with_its_verdict_and_that_of_an_earlier_moment() -> None:
    async def scenario(driver: Driver) -> None:
        await driver.press("down", "down", "enter")
        now = judgement_of(2)
        assert now is not None
        await driver.until(lambda: " ".join(verdict_text(driver).split()).startswith(now.headline[:60]))
        await driver.press("space")
        await driver.until(lambda: driver.screen.is_frozen)
        await driver.press("left_square_bracket")
        await driver.until(lambda: driver.frame < driver.source.last)
        then = judgement_of(2, driver.frame)
        assert then is not None and then.headline != now.headline
        await driver.until(lambda: " ".join(verdict_text(driver).split()).startswith(then.headline[:60]))

    drive(scenario, size=(120, 40))


def test_a_verdict_that_takes_its_time_holds_up_nothing_and_goes_to_no_other_sequence() -> None:
    gate = threading.Event()

    class Slow(FakeSource):
        def verdict(self, seq: int, moment: Moment, now_t: int = 0) -> Judgement | None:
            if seq == 2:
                gate.wait(20)
            return super().verdict(seq, moment, now_t)

    source = Slow()

    async def scenario(driver: Driver) -> None:
        await driver.press("down", "down", "enter")
        await driver.until(lambda: ("story", 2) in source.asked)
        await driver.press("escape", "down", "enter")
        await driver.until(lambda: ("story", 3) in source.asked)
        assert "looking" in verdict_text(driver)
        gate.set()
        other = judgement_of(3)
        assert other is not None
        await driver.until(lambda: " ".join(verdict_text(driver).split()).startswith(other.headline[:40]))

    try:
        drive(scenario, source)
    finally:
        gate.set()


def test_a_journal_that_does_not_tell_says_so_in_place_of_the_verdict() -> None:
    class Broken(FakeSource):
        def verdict(self, seq: int, moment: Moment, now_t: int = 0) -> Judgement | None:
            raise InspectError("the journal is damaged")

    async def scenario(driver: Driver) -> None:
        await driver.press("enter")
        await driver.until(lambda: "the journal is damaged" in verdict_text(driver))
        assert driver.view == "detail" and driver.told == []

    drive(scenario, Broken())
