"""The Sequences view under a pilot: in place, sorted, filtered, chosen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from textual.app import App, ComposeResult
from textual.pilot import Pilot

from nanolens.inspector.tui.messages import SequenceChosen
from nanolens.inspector.tui.sequences_view import SequencesView
from nanolens.inspector.units import duration
from views import big_view, view_of_fake_run

Check = Callable[["SequencesApp", Pilot[None]], Awaitable[None]]


class SequencesApp(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self.shown = SequencesView()
        self.chosen: list[int] = []

    def compose(self) -> ComposeResult:
        yield self.shown

    def on_mount(self) -> None:
        self.shown.focus()

    def on_sequence_chosen(self, message: SequenceChosen) -> None:
        self.chosen.append(message.seq)


def with_view(check: Check, size: tuple[int, int] = (160, 50)) -> None:
    async def work() -> None:
        app = SequencesApp()
        async with app.run_test(size=size) as pilot:
            await check(app, pilot)

    asyncio.run(work())


def lines(app: SequencesApp) -> list[str]:
    return [app.shown.render_line(y).text.rstrip() for y in range(app.shown.size.height)]


def requests(app: SequencesApp) -> list[str]:
    return [line.split()[1] for line in lines(app)[2:] if line]


def test_it_shows_each_sequence_with_what_is_known_of_it() -> None:
    async def check(app: SequencesApp, pilot: Pilot[None]) -> None:
        view = view_of_fake_run()
        app.shown.show(view)
        await pilot.pause()
        seen = lines(app)
        assert seen[0] == "9 live sequences: 2 waiting, 3 running, 4 paused"
        assert seen[1].split() == [
            "▲id", "request", "state", "phase", "wait", "reason", "age", "prio", "prompt", "cached", "computed",
            "output", "blocks", "residency", "preempt", "TTFT", "ITL",
        ]  # fmt: skip
        low = next(line for line in seen if " low " in line)
        age = duration(view.keyframe.t - next(seq.status_t for seq in view.keyframe.sequences if seq.seq == 5))
        assert low.split() == [
            "5", "low", "WAITING", "decode", "head_of_line", age, "5", "10", "0", "13", "4", "4", "host", "1",
            "10.4ms", "-",
        ]  # fmt: skip

    with_view(check)


def test_a_filter_leaves_rows_out_and_says_so() -> None:
    async def check(app: SequencesApp, pilot: Pilot[None]) -> None:
        app.shown.show(view_of_fake_run())
        assert app.shown.apply_filter("state:waiting reason:no_blocks") == ""
        assert requests(app) == ["behind"]
        assert lines(app)[0].endswith("· 1 shown: state:waiting reason:no_blocks")
        app.shown.show(view_of_fake_run(30))
        assert requests(app) == ["dropped"]
        assert app.shown.apply_filter("") == ""
        assert len(requests(app)) == 9

    with_view(check)


def test_a_wrong_filter_is_told_and_the_one_before_stays() -> None:
    async def check(app: SequencesApp, pilot: Pilot[None]) -> None:
        app.shown.show(view_of_fake_run())
        app.shown.apply_filter("twins")
        assert "did you mean blocks?" in app.shown.apply_filter("block>3")
        assert requests(app) == ["twins", "twins"]

    with_view(check)


def test_a_filter_that_nothing_meets_says_how_many_there_are() -> None:
    async def check(app: SequencesApp, pilot: Pilot[None]) -> None:
        app.shown.show(view_of_fake_run())
        app.shown.apply_filter("blocks>1000")
        assert lines(app)[2] == "none of 9 sequences meets the filter"
        assert app.shown.selected_seq is None and app.shown.selected_id == ""
        await pilot.press("enter")
        assert app.chosen == []

    with_view(check)


def test_enter_and_a_double_click_choose_a_sequence() -> None:
    async def check(app: SequencesApp, pilot: Pilot[None]) -> None:
        app.shown.show(view_of_fake_run())
        await pilot.pause()
        await pilot.press("down", "down", "enter")
        await pilot.double_click(SequencesView, offset=(5, 2))
        assert app.chosen == [2, 0]

    with_view(check)


def test_the_cursor_and_the_scroll_stay_while_rows_change() -> None:
    async def check(app: SequencesApp, pilot: Pilot[None]) -> None:
        app.shown.show(big_view(steps=50))
        app.shown.move_to(600)
        await pilot.pause()
        scroll = app.shown.scroll_offset
        app.shown.show(big_view(steps=60))
        await pilot.pause()
        assert (app.shown.selected_seq, app.shown.scroll_offset) == (600, scroll)
        assert app.shown.selected_id == "request-000600"

    with_view(check)


def test_sorting_by_a_number_sorts_by_its_value() -> None:
    async def check(app: SequencesApp, pilot: Pilot[None]) -> None:
        app.shown.show(view_of_fake_run())
        await pilot.press(*["full_stop"] * 11, "minus")
        await pilot.pause()
        blocks = [row.blocks for row in app.shown.rows]
        assert blocks == sorted(blocks, reverse=True) and blocks[0] == 7
        app.shown.show(view_of_fake_run(20))
        blocks = [row.blocks for row in app.shown.rows]
        assert blocks == sorted(blocks, reverse=True)

    with_view(check)


def test_a_narrow_screen_keeps_the_id_and_scrolls_the_rest() -> None:
    async def check(app: SequencesApp, pilot: Pilot[None]) -> None:
        app.shown.show(view_of_fake_run())
        await pilot.pause()
        assert "WAITING" in "".join(lines(app)) and "TTFT" not in "".join(lines(app))
        await pilot.press("comma")
        await pilot.pause()
        assert "ITL" in lines(app)[1]
        assert [line[:6].strip() for line in lines(app)[2:11]] == ["2", "3", "4", "0", "1", "5", "6", "7", "8"]

    with_view(check, size=(80, 24))


def test_an_engine_without_sequences_says_so() -> None:
    async def check(app: SequencesApp, pilot: Pilot[None]) -> None:
        app.shown.show(view_of_fake_run(1))  # engine.started alone
        await pilot.pause()
        assert lines(app)[0] == "0 live sequences" and lines(app)[2] == "no live sequences"

    with_view(check)


def test_an_export_is_what_is_shown() -> None:
    async def check(app: SequencesApp, pilot: Pilot[None]) -> None:
        app.shown.show(view_of_fake_run())
        app.shown.apply_filter("twins")
        table = app.shown.exported()
        assert [row[1] for row in table.rows] == ["twins", "twins"]

    with_view(check)
