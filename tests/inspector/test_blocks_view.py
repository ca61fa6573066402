"""The Blocks view on the screen: the map, its cursor, its colours, its filter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from made_views import NOW, SECOND, keyframe, made_view, sequence
from nanolens.inspector.tui.block_canvas import AGE_COLOURS, LRU_COLOURS, OWNER_COLOURS, BlockCanvas
from nanolens.inspector.tui.blocks_view import BlocksView
from nanolens.inspector.view import View
from view_apps import ViewApp, screen_text
from views import big_view, view_of_fake_run


def small(**options: Any) -> View:
    """Blocks 0, 1 of seq 1; 1, 2 of seq 2; 3 cached, filled by seq 8; 4 to 7 free; host slot 0 of seq 9."""
    seqs = [
        sequence(1, [0, 1], arrived_t=NOW - 90 * SECOND), sequence(2, [1, 2]), sequence(9, [-1], status="PAUSED"),
    ]  # fmt: skip
    settings = {"num_blocks": 8, "free": [7, 3, 6, 5, 4], "cached": {1: 1, 3: 8}, "host_blocks": 2, "disk_blocks": 3}
    return made_view(keyframe(seqs, **(settings | options)))


def drive(
    view: View, script: Callable[[ViewApp, Any], Awaitable[None]], size: tuple[int, int] = (80, 20)
) -> BlocksView:
    """Run a script on an app that shows a view."""
    blocks = BlocksView()

    async def run() -> None:
        app = ViewApp(blocks, view)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await script(app, pilot)

    asyncio.run(run())
    return blocks


def colour_at(blocks: BlocksView, x: int, y: int) -> str:
    """Colour of a character of the map."""
    at = 0
    for segment in blocks.query_one(BlockCanvas).render_line(y):
        at += segment.cell_length
        if at > x:
            assert segment.style is not None and segment.style.color is not None
            return segment.style.color.name
    raise AssertionError(f"no character {x}")


def test_the_map_shows_pool_and_swap_space_and_counts_them() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        lines = screen_text(app).splitlines()
        assert lines[0].startswith("· free 4  □ cached 1  ■ used 2  ◆ shared 1  of 8  host 1/2  disk 0/3")
        assert lines[2:7] == [
            "   0 ■ ◆ ■ □ · · · ·", "host memory: 2 slots", "   0 ■ ·", "swap file: 3 slots", "   2 · · ·",
        ]  # fmt: skip

    drive(small(), script)


def test_the_cursor_names_block_owners_hash_and_filler() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        await pilot.press("right")
        lines = screen_text(app).splitlines()
        assert lines[-2] == "block 1  shared, 2 references  age 1m30s  hash 0000000000000001 filled by seq 1"
        assert lines[-1] == "seq 1 r1 logical 1  seq 2 r2 logical 0"
        await pilot.press("right")
        assert screen_text(app).splitlines()[-1] == "seq 2 r2 RUNNING, logical 1 (tokens 4-7)"
        await pilot.press("right")
        assert "block 3  free, content cached, 1 to be reused before it  hash" in screen_text(app)
        await pilot.press("end", "up", "left")
        assert "slot 0  used, in host memory" in screen_text(app)

    drive(small(), script)


def test_arrows_stop_at_the_ends_and_step_over_headings() -> None:
    seen = []

    async def script(app: ViewApp, pilot: Any) -> None:
        for key in ("left", "up", "down", "down", "down", "right", "home", "end", "pageup", "pagedown"):
            await pilot.press(key)
            seen.append(app.widget.cursor)

    drive(small(), script)
    assert seen == [0, 0, -1, -3, -3, -4, 0, -5, 2, -5]


def test_enter_opens_the_owner_and_of_a_free_block_who_filled_it() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        await pilot.press("right", "right", "enter")
        await pilot.press("right", "enter")
        await pilot.press("right", "enter")
        assert app.said == [2, 8]
        assert app.widget.selected_seq is None and app.widget.selected_id == "block 4"

    drive(small(), script)


def test_n_goes_round_the_table_of_the_owner() -> None:
    seen = []

    async def script(app: ViewApp, pilot: Any) -> None:
        for key in ("n", "n", "N", "N"):
            await pilot.press(key)
            seen.append(app.widget.cursor)

    drive(made_view(keyframe([sequence(1, [0, 5, -1])], num_blocks=8, host_blocks=1)), script)
    assert seen == [5, -1, 5, 0]


def test_a_click_moves_the_cursor_and_a_second_one_opens_the_owner() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        await pilot.click(BlockCanvas, offset=(5 + 2 * 2, 0))
        assert app.widget.cursor == 2 and app.said == []
        await pilot.click(BlockCanvas, offset=(5, 2), times=2)
        assert app.widget.cursor == -1 and app.said == [9]
        await pilot.click(BlockCanvas, offset=(60, 0))
        assert app.widget.cursor == -1

    drive(small(), script)


def test_c_changes_between_owners_and_ages() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        blocks = app.widget
        assert colour_at(blocks, 5 + 2 * 2, 0) == OWNER_COLOURS[2]
        await pilot.press("c")
        assert colour_at(blocks, 5 + 2 * 2, 0) == AGE_COLOURS[1]  # 5 s
        assert colour_at(blocks, 5 + 2 * 1, 0) == AGE_COLOURS[3]  # 90 s
        assert colour_at(blocks, 5 + 2 * 7, 0) == LRU_COLOURS[0]
        assert colour_at(blocks, 5 + 2 * 4, 0) == LRU_COLOURS[4]
        assert "by age (c)" in screen_text(app)
        await pilot.press("c")
        assert "by owner (c)  ■ seq 1: 2 blocks, RUNNING decode" in screen_text(app)

    drive(small(), script)


def test_without_colours_owners_and_ages_are_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def script(app: ViewApp, pilot: Any) -> None:
        assert screen_text(app).splitlines()[2] == "   0 1 ◆ 2 □ · · · ·"
        await pilot.press("c")
        assert screen_text(app).splitlines()[2] == "   0 3 3 1 □ · · · ·"

    drive(small(), script)


def test_a_filter_leaves_bright_what_meets_it() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        blocks = app.widget
        assert blocks.apply_filter("seq:2") == ""
        await pilot.pause()
        assert [row[0] for row in blocks.exported().rows] == ["block 1", "block 2"]
        assert colour_at(blocks, 5 + 2 * 2, 0) == OWNER_COLOURS[2]
        assert "only seq:2" in screen_text(app)
        assert blocks.apply_filter("kind:hared") == ""
        assert "did you mean kind=shared" in blocks.apply_filter("kind=shard")
        assert "there is no field refs" in blocks.apply_filter("refs>1")
        assert blocks.apply_filter("") == ""
        assert len(blocks.exported().rows) == 9

    drive(small(), script)


def test_cursor_and_scroll_stay_when_the_pool_changes() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        blocks, canvas = app.widget, app.widget.query_one(BlockCanvas)
        await pilot.press("pagedown", "pagedown", "right")
        cursor, scroll = blocks.cursor, canvas.scroll_offset
        blocks.show(big_view(400, 16, 60))
        await pilot.pause()
        assert blocks.cursor == cursor > 500 and canvas.scroll_offset == scroll and scroll.y > 0

    drive(big_view(400, 16, 50), script)


def test_only_lines_on_the_screen_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    line_of = BlockCanvas._line

    def counted(canvas: BlockCanvas, y: int) -> Any:
        drawn.append(y)
        return line_of(canvas, y)

    monkeypatch.setattr(BlockCanvas, "_line", counted)

    async def script(app: ViewApp, pilot: Any) -> None:
        drawn.clear()
        app.widget.show(big_view(1600, 64, 60))
        await pilot.pause()
        assert 0 < len(drawn) <= 20 and max(drawn) < 20
        drawn.clear()
        await pilot.press("right")
        await pilot.pause()
        assert len(drawn) <= 2  # 64 blocks of the owner lie in one line or two

    drive(big_view(1600, 64, 50), script)


def test_the_map_is_as_wide_as_the_screen() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        canvas = app.widget.query_one(BlockCanvas)
        assert canvas.per_line == 72
        await pilot.resize_terminal(160, 40)
        await pilot.pause()
        assert canvas.per_line == 152

    drive(big_view(400, 16), script)


def test_another_run_with_a_smaller_pool_takes_the_cursor_into_it() -> None:
    async def script(app: ViewApp, pilot: Any) -> None:
        await pilot.press("end")
        app.widget.show(made_view(keyframe([sequence(1, [0])], num_blocks=4)))
        await pilot.pause()
        assert app.widget.cursor == 3
        assert "block 3  free, 2 to be reused before it" in screen_text(app)

    drive(small(), script)


def test_a_run_of_a_fake_engine_shows_its_shared_blocks() -> None:
    view = view_of_fake_run()

    async def script(app: ViewApp, pilot: Any) -> None:
        assert "host 4/4  disk 4/4" in screen_text(app)
        rows = app.widget.exported().rows
        tables = {seq.seq: seq.block_table for seq in view.keyframe.sequences}
        for name, kind, references, seqs, *_ in rows:
            number = int(name.split()[1])
            entry = number if name.startswith("block") else -1 - number
            owners = sorted(seq for seq, table in tables.items() if entry in table)
            assert (references, seqs) == (len(owners), " ".join(map(str, owners))), name
            assert (kind == "shared") == (len(owners) > 1)

    drive(view, script)
