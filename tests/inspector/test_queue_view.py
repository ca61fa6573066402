"""The Queue view on the screen: order and reasons, holders of blocks, filter, keys."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from made_views import keyframe, made_view, sequence, waiting
from nanolens.inspector.queue_rows import queue_rows
from nanolens.inspector.tui.live_table import LiveTable
from nanolens.inspector.tui.queue_view import QueueView
from nanolens.inspector.view import View
from view_apps import ViewApp, screen_text
from views import big_view, view_of_fake_run


def short_of_blocks() -> View:
    """Seq 7 is short of blocks, 8 and 6 wait behind it; 1 and 2 hold the pool."""
    seqs = [
        sequence(1, [0, 1, 2, 3]), sequence(2, [4]), waiting(6, "head_of_line", num_prompt_tokens=4),
        waiting(7, "no_blocks", num_prompt_tokens=20), waiting(8, "head_of_line", priority=3),
    ]  # fmt: skip
    state = keyframe(seqs, num_blocks=7, free=[5, 6], policy="priority")
    state.waiting = [7, 8, 6]
    return made_view(state)


def drive(view: View, script: Callable[[ViewApp, Any], Awaitable[None]], size: tuple[int, int] = (120, 20)) -> None:
    """Run a script on an app that shows a view."""

    async def run() -> None:
        app = ViewApp(QueueView(), view)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await script(app, pilot)

    asyncio.run(run())


def cells(app: ViewApp, title: str) -> list[list[str]]:
    """The rows below a header, split into words."""
    lines = screen_text(app).splitlines()
    head = next(i for i, line in enumerate(lines) if line.split()[:2] == title.split())
    return [line.split() for line in lines[head + 1 :] if line.strip()]


def test_the_queue_stands_in_its_order_with_reasons_and_needs() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        rows = cells(app, "# seq")[:3]
        assert [row[:4] for row in rows] == [
            ["1", "7", "r7", "no_blocks"], ["2", "8", "r8", "head_of_line"], ["3", "6", "r6", "head_of_line"],
        ]  # fmt: skip
        assert rows[0][4:8] == ["2.00s", "0", "20", "≤6"]

    drive(short_of_blocks(), script)


def test_it_says_what_the_head_needs_and_who_holds_most() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        text = screen_text(app)
        assert text.startswith(
            "seq 7 waits: blocks are short: it needs at most 6, 2 free; most are held by seq 1 (4 blocks)\n"
            "3 waiting, priority"
        )
        assert [row[:2] + row[5:7] for row in cells(app, "seq request")] == [
            ["1", "r1", "4", "4"], ["2", "r2", "1", "1"],
        ]  # fmt: skip

    drive(short_of_blocks(), script)


def test_enter_opens_the_sequence_and_w_changes_to_the_holders() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        await pilot.press("down", "enter")
        assert app.said == [8] and app.widget.selected_seq == 8 and app.widget.selected_id == "r8"
        await pilot.press("w", "down", "enter")
        assert app.said == [8, 2] and app.widget.selected_seq == 2 and app.widget.selected_id == "r2"
        await pilot.press("w", "enter")
        assert app.said == [8, 2, 8]

    drive(short_of_blocks(), script)


def test_a_filter_leaves_out_what_does_not_meet_it() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        queue = app.widget
        assert queue.apply_filter("reason:head_of_line needs<3") == ""
        assert [row[1] for row in queue.exported().rows] == [6]
        await pilot.pause()
        assert "only reason:head_of_line needs<3" in screen_text(app)
        assert "did you mean reason" in queue.apply_filter("reasn:no_blocks")
        assert "no_blocks" in queue.apply_filter("reason=blocks")
        assert queue.apply_filter("waits>1s") == "" and len(queue.exported().rows) == 3
        assert queue.apply_filter("r8") == "" and [row[1] for row in queue.exported().rows] == [8]
        assert queue.apply_filter("waits>9s") == ""
        await pilot.pause()
        assert "nothing that waits meets the filter" in screen_text(app)
        assert queue.apply_filter("") == "" and len(queue.exported().rows) == 3

    drive(short_of_blocks(), script)


def test_the_queue_can_be_sorted_and_comes_back_to_its_order() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        await pilot.press("full_stop", "full_stop")  # seq
        assert [row[1] for row in app.widget.exported().rows] == [6, 7, 8]
        await pilot.press("minus")
        assert [row[1] for row in app.widget.exported().rows] == [8, 7, 6]
        await pilot.press("minus", "comma")  # the place
        assert [row[1] for row in app.widget.exported().rows] == [7, 8, 6]

    drive(short_of_blocks(), script)


def test_the_cursor_follows_its_sequence_as_the_queue_moves_on() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        await pilot.press("down", "down")
        assert app.widget.selected_seq == 6
        state = keyframe([waiting(6, "no_blocks"), waiting(9, "head_of_line")], num_blocks=7)
        app.widget.show(made_view(state))
        await pilot.pause()
        assert app.widget.selected_seq == 6 and "seq 6 waits" in screen_text(app)

    drive(short_of_blocks(), script)


def test_an_order_that_is_not_sure_says_so() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        assert "1 waiting, sjf; the order is as last seen" in screen_text(app)

    drive(made_view(keyframe([waiting(1, "no_blocks")], policy="sjf"), is_order_sure=False), script)


def test_an_empty_queue_says_that_nothing_waits() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        assert screen_text(app).startswith("nothing waits\n0 waiting, fcfs")
        assert app.widget.selected_seq is None and app.widget.selected_id == ""
        await pilot.press("enter")
        assert app.said == []

    drive(made_view(keyframe([])), script)


def test_a_run_of_a_fake_engine_shows_its_queue_at_80_columns() -> None:
    view = view_of_fake_run()

    async def script(app: ViewApp, pilot: Any) -> None:
        text = screen_text(app)
        for row in queue_rows(view):
            assert row.request in text and row.reason in text
        assert "who holds blocks" in text

    drive(view, script, (80, 17))


def test_many_that_wait_cost_the_lines_on_the_screen() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        table = app.widget.query_one("#queue", LiveTable)
        assert len(table.rows) == 100
        await pilot.press("end")
        assert app.widget.selected_seq == table.keys[-1]
        app.widget.show(big_view(1000, 8, 60))
        await pilot.pause()
        assert app.widget.selected_seq is not None

    drive(big_view(1000, 8, 50), script)
