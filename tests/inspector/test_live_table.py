"""The live table: cursor by key, scroll, sort, mouse, and what is painted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import pytest
from textual.app import App, ComposeResult
from textual.geometry import Region
from textual.pilot import Pilot

from nanolens.inspector.tui.columns import Column, fitted, in_order, widths_of
from nanolens.inspector.tui.live_table import LiveTable


class Item(NamedTuple):
    name: str
    size: int | None
    words: str = "-"


COLUMNS: list[Column[Item]] = [
    Column("name", lambda item: item.name, 6),
    Column("size", lambda item: str(item.size), 5, "right", key=lambda item: item.size),
    Column("words", lambda item: item.words, 10, tone=lambda item: "bad" if item.words == "!" else "", grow=1),
]
SIZE = (40, 12)  # 11 rows below the header


class TableApp(App[None]):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.table: LiveTable[Item] = LiveTable(COLUMNS, **options)  # type: ignore[arg-type]
        self.heard: list[tuple[str, object]] = []

    def compose(self) -> ComposeResult:
        yield self.table

    def on_mount(self) -> None:
        self.table.focus()

    def on_live_table_cursor_moved(self, event: LiveTable.CursorMoved) -> None:
        self.heard.append(("moved", event.key))

    def on_live_table_chosen(self, event: LiveTable.Chosen) -> None:
        self.heard.append(("chosen", event.key))


def with_table(
    check: Callable[[TableApp, Pilot[None]], Awaitable[None]], size: tuple[int, int] = SIZE, **options: object
) -> None:
    async def work() -> None:
        app = TableApp(**options)
        async with app.run_test(size=size) as pilot:
            await check(app, pilot)

    asyncio.run(work())


def put(app: TableApp, names: list[int]) -> None:
    app.table.set_rows(names, [Item(f"row{n}", 100 - n) for n in names])


def seen(app: TableApp) -> list[str]:
    return [app.table.render_line(y).text.rstrip() for y in range(app.table.size.height)]


def names_seen(app: TableApp) -> list[str]:
    return [line.split()[0] for line in seen(app)[1:] if line.startswith("row")]


def test_it_draws_only_the_rows_that_are_seen() -> None:
    async def check(app: TableApp, pilot: Pilot[None]) -> None:
        asked: list[str] = []
        app.table.set_columns([Column("name", lambda item: asked.append(item.name) or item.name, 8)])
        put(app, list(range(100_000)))
        await pilot.pause()
        assert names_seen(app) == [f"row{n}" for n in range(11)]
        assert len(set(asked)) == 11

    with_table(check)


def test_the_cursor_stays_on_its_key_when_rows_before_it_come_and_go() -> None:
    async def check(app: TableApp, pilot: Pilot[None]) -> None:
        put(app, [3, 4, 5, 6])
        await pilot.press("down", "down")
        assert app.table.cursor_key == 5
        put(app, [1, 2, 4, 5, 6])
        assert (app.table.cursor_key, app.table.cursor) == (5, 3)
        put(app, [5, 6])
        assert (app.table.cursor_key, app.table.cursor) == (5, 0)

    with_table(check)


def test_the_cursor_takes_the_next_row_when_its_own_is_gone() -> None:
    async def check(app: TableApp, pilot: Pilot[None]) -> None:
        put(app, [1, 2, 3])
        await pilot.press("down")
        put(app, [1, 3])
        assert app.table.cursor_key == 3
        put(app, [1])
        assert app.table.cursor_key == 1
        put(app, [])
        assert app.table.cursor_key is None
        await pilot.press("enter", "down", "end")
        assert ("chosen", None) not in app.heard

    with_table(check)


def test_the_scroll_offset_stays_while_the_cursor_is_out_of_sight() -> None:
    async def check(app: TableApp, pilot: Pilot[None]) -> None:
        put(app, list(range(100)))
        app.table.scroll_to(y=50, animate=False, force=True)
        await pilot.pause()
        for count in (100, 101, 99):
            put(app, list(range(count)))
            await pilot.pause()
            assert app.table.scroll_offset.y == 50
            assert names_seen(app)[0] == "row50"
        assert app.table.cursor == 0

    with_table(check)


def test_a_cursor_that_was_seen_stays_in_sight() -> None:
    async def check(app: TableApp, pilot: Pilot[None]) -> None:
        put(app, list(range(100)))
        app.table.move_to(20)
        await pilot.pause()
        put(app, [*range(1000, 1040), *range(100)])
        await pilot.pause()
        assert app.table.cursor_key == 20
        assert "row20" in names_seen(app)

    with_table(check)


def test_fewer_rows_than_were_scrolled_past_are_still_seen() -> None:
    async def check(app: TableApp, pilot: Pilot[None]) -> None:
        put(app, list(range(100)))
        await pilot.press("end")
        put(app, [1, 2, 3])
        await pilot.pause()
        assert names_seen(app) == ["row1", "row2", "row3"]

    with_table(check)


@pytest.mark.parametrize(
    ("keys", "cursor"),
    [
        (["down", "down", "up"], 1),
        (["j", "j", "k"], 1),
        (["pagedown"], 10),
        (["pagedown", "pageup"], 0),
        (["end"], 99),
        (["end", "home"], 0),
        (["up"], 0),
    ],
    ids=str,
)
def test_keys_move_the_cursor_and_it_is_seen(keys: list[str], cursor: int) -> None:
    async def check(app: TableApp, pilot: Pilot[None]) -> None:
        put(app, list(range(100)))
        await pilot.press(*keys)
        await pilot.pause()
        assert app.table.cursor == cursor
        assert f"row{cursor}" in names_seen(app)

    with_table(check)


def test_the_sort_keys_go_over_the_columns_and_turn_the_order() -> None:
    async def check(app: TableApp, pilot: Pilot[None]) -> None:
        put(app, [3, 1, 2])
        assert names_seen(app) == ["row3", "row1", "row2"]
        await pilot.press("full_stop")
        assert names_seen(app) == ["row1", "row2", "row3"]
        await pilot.press("full_stop")
        assert names_seen(app) == ["row3", "row2", "row1"] and "▲" in seen(app)[0]
        await pilot.press("minus")
        assert names_seen(app) == ["row1", "row2", "row3"] and "▼" in seen(app)[0]
        await pilot.press("comma", "comma")
        assert app.table.sort == 2

    with_table(check)


def test_rows_stay_sorted_by_their_column_when_other_columns_come_and_go() -> None:
    async def check(app: TableApp, pilot: Pilot[None]) -> None:
        put(app, [3, 1, 2])
        app.table.sort_by(1)
        app.table.set_columns([COLUMNS[0], COLUMNS[2], COLUMNS[1]])
        assert app.table.sort == 2
        app.table.set_columns(COLUMNS[:1])
        assert app.table.sort is None

    with_table(check)


def test_a_table_that_is_not_sortable_leaves_the_order() -> None:
    async def check(app: TableApp, pilot: Pilot[None]) -> None:
        put(app, [3, 1, 2])
        await pilot.press("full_stop", "minus")
        await pilot.click(LiveTable, offset=(1, 0))
        assert names_seen(app) == ["row3", "row1", "row2"]

    with_table(check, sortable=False)


def test_new_values_move_a_row_and_the_cursor_with_it() -> None:
    async def check(app: TableApp, pilot: Pilot[None]) -> None:
        app.table.set_rows(["a", "b", "c"], [Item("rowa", 1), Item("rowb", 2), Item("rowc", 3)])
        assert app.table.cursor_key == "a"
        app.table.set_rows(["a", "b", "c"], [Item("rowa", 9), Item("rowb", 2), Item("rowc", 3)])
        assert names_seen(app) == ["rowb", "rowc", "rowa"]
        assert (app.table.cursor_key, app.table.cursor) == ("a", 2)

    with_table(check, sort=1)


def test_a_click_takes_the_cursor_and_a_second_one_chooses() -> None:
    async def check(app: TableApp, pilot: Pilot[None]) -> None:
        put(app, list(range(30)))
        app.table.scroll_to(y=5, animate=False, force=True)
        await pilot.pause()
        await pilot.click(LiveTable, offset=(3, 2))
        assert app.table.cursor_key == 6
        await pilot.double_click(LiveTable, offset=(3, 3))
        assert ("chosen", 7) in app.heard

    with_table(check)


def test_a_click_on_the_header_sorts_and_then_turns() -> None:
    async def check(app: TableApp, pilot: Pilot[None]) -> None:
        put(app, [1, 2])
        await pilot.click(LiveTable, offset=(10, 0))
        assert (app.table.sort, app.table.reverse) == (1, False)
        await pilot.click(LiveTable, offset=(10, 0))
        assert (app.table.sort, app.table.reverse) == (1, True)

    with_table(check)


def test_enter_chooses_and_moves_are_told() -> None:
    async def check(app: TableApp, pilot: Pilot[None]) -> None:
        put(app, [7, 8])
        await pilot.press("down", "enter")
        assert app.heard == [("moved", 7), ("moved", 8), ("chosen", 8)]

    with_table(check)


def test_the_first_column_stays_when_the_others_scroll() -> None:
    async def check(app: TableApp, pilot: Pilot[None]) -> None:
        put(app, [1])
        await pilot.press("right")
        await pilot.pause()
        assert app.table.scroll_offset.x == 4  # as far as there is something to see
        assert seen(app)[1] == "row1   9 -"  # of 99
        assert seen(app)[0].startswith("name   ")

    with_table(check, size=(20, 12))


def test_sorting_by_a_column_out_of_sight_scrolls_to_it() -> None:
    async def check(app: TableApp, pilot: Pilot[None]) -> None:
        put(app, [1])
        await pilot.press("comma")
        await pilot.pause()
        assert app.table.sort == 2 and "words▲" in seen(app)[0]

    with_table(check, size=(20, 12))


def test_only_lines_that_differ_are_painted_again() -> None:
    async def check(app: TableApp, pilot: Pilot[None]) -> None:
        rows = [Item(f"row{n}", n) for n in range(8)]
        app.table.set_rows(list(range(8)), rows)
        await pilot.pause()
        painted: list[Region] = []
        refresh = app.table.refresh
        app.table.refresh = lambda *regions, **how: (painted.extend(regions), refresh(*regions, **how))[1]  # type: ignore
        rows[5] = Item("row5", 500)
        app.table.set_rows(list(range(8)), rows)
        assert [region.y for region in painted] == [6]
        assert "500" in seen(app)[6]

    with_table(check)


def test_a_move_is_painted_when_nothing_is_known_of_the_lines_before() -> None:
    async def check(app: TableApp, pilot: Pilot[None]) -> None:
        put(app, [1, 2])
        await pilot.pause()
        app.table.notify_style_update()
        painted: list[Region] = []
        refresh = app.table.refresh
        app.table.refresh = lambda *regions, **how: (painted.extend(regions), refresh(*regions, **how))[1]  # type: ignore
        app.table.action_move(1)
        assert {1, 2} <= {region.y for region in painted}

    with_table(check)


def test_the_end_is_followed_while_the_cursor_is_there() -> None:
    async def check(app: TableApp, pilot: Pilot[None]) -> None:
        put(app, list(range(50)))
        await pilot.pause()
        assert app.table.cursor_key == 49 and names_seen(app)[-1] == "row49"
        put(app, list(range(20, 70)))
        await pilot.pause()
        assert app.table.cursor_key == 69 and names_seen(app)[-1] == "row69"
        await pilot.press("up")
        put(app, list(range(30, 80)))
        assert app.table.cursor_key == 68

    with_table(check, follow_end=True)


def test_a_caption_stands_above_the_header() -> None:
    async def check(app: TableApp, pilot: Pilot[None]) -> None:
        put(app, [1, 2])
        app.table.caption = "2 rows"
        await pilot.pause()
        assert seen(app)[0] == "2 rows" and seen(app)[1].startswith("name")
        await pilot.click(LiveTable, offset=(1, 3))
        assert app.table.cursor_key == 2
        app.table.caption = ""
        await pilot.pause()
        assert seen(app)[0].startswith("name")

    with_table(check)


def test_an_empty_table_says_so() -> None:
    async def check(app: TableApp, pilot: Pilot[None]) -> None:
        await pilot.pause()
        assert seen(app)[1] == "no sequences"
        put(app, [1])
        await pilot.pause()
        assert seen(app)[1].startswith("row1")

    with_table(check, empty="no sequences")


def test_control_characters_and_wide_letters_cannot_break_a_line() -> None:
    assert fitted("a\x1b[31mb\n", 9) == "a�[31mb� "
    assert fitted("[bold]x", 7) == "[bold]x"
    assert fitted("漢字漢字", 5) == "漢字…"
    assert fitted("漢字漢字", 4) == "漢 …" or len(fitted("漢字漢字", 4)) <= 4
    assert fitted("12", 4, "right") == "  12"
    assert fitted("12345", 4, "right") == "123…"
    assert fitted("x", 0) == ""


def test_spare_width_goes_to_the_columns_that_grow() -> None:
    assert widths_of(COLUMNS, 40) == [6, 5, 26]
    assert widths_of(COLUMNS, 20) == [6, 5, 10]


def test_rows_without_a_value_come_last_either_way() -> None:
    rows = [Item("a", None), Item("b", 2), Item("c", 1), Item("d", 2)]
    assert in_order("abcd", rows, COLUMNS[1], reverse=False)[0] == ["c", "b", "d", "a"]
    assert in_order("abcd", rows, COLUMNS[1], reverse=True)[0] == ["b", "d", "c", "a"]
    assert in_order("abcd", rows, None, reverse=True)[0] == ["d", "c", "b", "a"]
