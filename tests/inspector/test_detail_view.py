"""The Sequence detail view under a pilot."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widget import Widget

from nanolens.inspector.tui.detail_view import DetailView
from nanolens.inspector.tui.messages import MomentChosen, StepChosen
from views import story_of, view_of_fake_run

Check = Callable[["DetailApp", Pilot[None]], Awaitable[None]]


class DetailApp(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self.shown = DetailView()
        self.heard: list[object] = []

    def compose(self) -> ComposeResult:
        yield self.shown

    def on_step_chosen(self, message: StepChosen) -> None:
        self.heard.append(message.step)

    def on_moment_chosen(self, message: MomentChosen) -> None:
        self.heard.append(message.moment)

    def tell(self, seq: int, frames: int | None = None) -> None:
        self.shown.show_story(view_of_fake_run(frames), story_of(seq, frames))


def with_view(check: Check, size: tuple[int, int] = (160, 50)) -> None:
    async def work() -> None:
        app = DetailApp()
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await check(app, pilot)

    asyncio.run(work())


def lines(app: DetailApp, name: str) -> list[str]:
    widget = app.shown.query_one(f"#{name}", Widget)
    if not widget.display or not widget.size:
        return []
    return [strip.text.rstrip() for strip in widget.render_lines(widget.size.region)]


def test_it_shows_facts_blocks_statuses_and_events() -> None:
    async def check(app: DetailApp, pilot: Pilot[None]) -> None:
        app.tell(5)
        await pilot.pause()
        head = lines(app, "head")
        facts = re.sub(r"[\d.]+ms", "TIME", head[0])
        assert facts == "seq 5 of low · WAITING (head_of_line) for TIME · decode · prio 5 · 1× preempted"
        assert head[1].startswith("prompt 10 (0 cached) · computed 13/13 · output 4/30 · host · TTFT 10.4ms")
        assert head[2].startswith("statuses  ░") and "█" in head[2]
        parts = r"░ queued [\d.]+µs +1% +▓ prefill 9.6ms +13% +█ decode [\d.]+ms +25% +╳ preempted [\d.]+ms +\d\d%"
        assert re.fullmatch(parts, head[4].strip())
        blocks = lines(app, "blocks")
        assert blocks[0] == "block table: 4 blocks of 4 tokens"
        assert blocks[2].split() == ["0", "host", "0", "4/4", "1", "5", "-"]
        assert blocks[5].split()[3] == "1/4"
        states = lines(app, "states")
        assert [line.split()[0] for line in states[2:5]] == ["WAITING", "RUNNING", "WAITING"]
        assert any("preempted for seq 7 (priority, swap)" in line for line in lines(app, "events"))

    with_view(check)


def test_shared_blocks_name_who_shares_them() -> None:
    async def check(app: DetailApp, pilot: Pilot[None]) -> None:
        app.tell(4)
        await pilot.pause()
        blocks = lines(app, "blocks")
        assert blocks[0] == "block table: 7 blocks of 4 tokens, 2 shared"
        assert blocks[2].split()[:8] == ["0", "device", "9", "4/4", "3", "2", "2", "3"]

    with_view(check)


def test_another_view_changes_it_in_place() -> None:
    async def check(app: DetailApp, pilot: Pilot[None]) -> None:
        app.tell(4, 25)
        await pilot.pause()
        table = app.shown.query_one("#blocks")
        before = lines(app, "blocks")[0]
        app.shown.show(view_of_fake_run())
        await pilot.pause()
        assert lines(app, "blocks")[0] != before
        assert app.shown.query_one("#blocks") is table

    with_view(check)


def test_a_sequence_that_does_not_live_at_that_step_says_so() -> None:
    async def check(app: DetailApp, pilot: Pilot[None]) -> None:
        app.tell(8)
        app.tell(8, 5)
        await pilot.pause()
        assert lines(app, "head")[0] == "seq 8 does not live at step 4"
        assert lines(app, "blocks")[2] == "no blocks"
        assert lines(app, "events")[0] == "0 events"
        app.tell(8)
        await pilot.pause()
        assert lines(app, "head")[0].startswith("seq 8 of behind")

    with_view(check)


def test_without_a_sequence_it_says_how_to_choose_one() -> None:
    async def check(app: DetailApp, pilot: Pilot[None]) -> None:
        app.shown.show(view_of_fake_run())
        await pilot.pause()
        assert lines(app, "head")[0] == "choose a sequence: enter in Sequences"
        assert app.shown.selected_seq is None and app.shown.selected_id == ""

    with_view(check)


def test_choosing_another_one_never_shows_the_story_of_the_one_before() -> None:
    async def check(app: DetailApp, pilot: Pilot[None]) -> None:
        app.tell(5)
        app.shown.choose(7)
        await pilot.pause()
        assert lines(app, "head")[0].startswith("seq 7 of urgent")
        assert lines(app, "events")[0] == "0 events"
        assert (app.shown.selected_seq, app.shown.selected_id) == (7, "urgent")

    with_view(check)


def test_a_filter_picks_among_its_events() -> None:
    async def check(app: DetailApp, pilot: Pilot[None]) -> None:
        app.tell(5)
        assert app.shown.apply_filter("kind:preempted") == ""
        await pilot.pause()
        assert lines(app, "events")[0].endswith("1 shown: kind:preempted")
        assert len([line for line in lines(app, "events")[2:] if line]) == 1
        assert "there is no field block" in app.shown.apply_filter("block>1")
        assert app.shown.apply_filter("") == ""
        assert "shown" not in lines(app, "events")[0]

    with_view(check)


def test_enter_on_a_status_or_an_event_goes_to_its_moment() -> None:
    async def check(app: DetailApp, pilot: Pilot[None]) -> None:
        app.tell(5)
        story = story_of(5)
        assert story is not None
        await pilot.press("w", "up", "enter", "w", "home", "enter")
        await pilot.pause()
        assert app.heard == [story.stays[1].step, story.events[0].moment]

    with_view(check)


def test_a_narrow_screen_shows_one_table_at_a_time() -> None:
    async def check(app: DetailApp, pilot: Pilot[None]) -> None:
        app.tell(5)
        await pilot.pause()
        assert [line[:8] for line in lines(app, "head")] == ["seq 5 of", "prompt 1", "statuses", "its time", " " * 8]
        assert "ITL" in lines(app, "head")[1]
        seen = []
        for _ in range(5):
            seen.append([name for name in ("blocks", "states", "events", "blamed") if lines(app, name)])
            await pilot.press("w")
            await pilot.pause()
        assert seen == [["blocks"], ["states"], ["events"], ["blamed"], ["blocks"]]
        await pilot.resize_terminal(160, 50)
        await pilot.pause()
        assert all(lines(app, name) for name in ("blocks", "states", "events"))

    with_view(check, size=(80, 24))


def test_an_export_is_of_the_table_with_the_focus() -> None:
    async def check(app: DetailApp, pilot: Pilot[None]) -> None:
        app.tell(5)
        titles = []
        for _ in range(3):
            titles.append(app.shown.exported().title)
            await pilot.press("w")
        assert titles == ["sequence-5-blocks", "sequence-5-states", "sequence-5-events"]

    with_view(check)


def test_a_click_takes_the_focus_to_another_table() -> None:
    async def check(app: DetailApp, pilot: Pilot[None]) -> None:
        app.tell(5)
        await pilot.pause()
        await pilot.click("#events", offset=(5, 3))
        await pilot.pause()
        assert app.shown.exported().title == "sequence-5-events"

    with_view(check)
