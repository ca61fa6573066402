"""A table whose rows change several times a second: it draws what is seen, and repaints the lines that differ.

The cursor follows the key of its row, the scroll offset stays. Knows nothing of what the rows mean.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, ClassVar, Generic

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from .columns import Column, Row, in_order
from .painted_table import PaintedTable


class LiveTable(PaintedTable[Row], Generic[Row], can_focus=True):
    """A table of any number of rows. A refresh costs the sort, and the lines on the screen.

    Args:
        columns: its columns; the first one stays in place when the others scroll.
        sort: the column that it is sorted by at first; None: as given.
        sortable: whether keys and clicks on the header change that.
        follow_end: the cursor that stands on the last row stays on the last row.
        caption: a line above the header.
        empty: what stands in place of the rows when there are none.

    Attributes:
        rows: as shown.
        keys: of these.
        cursor: index of the row under the cursor.
        sort: index of the column that it is sorted by, or None.
        reverse: whether the greatest comes first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home", "edge(-1)", "First", show=False),
        Binding("end", "edge(1)", "Last", show=False),
        Binding("left,h", "sideways(-8)", "Left", show=False),
        Binding("right,l", "sideways(8)", "Right", show=False),
        Binding("enter", "choose", "Open", show=False),
        Binding("comma", "sort_by(-1)", "Sort column left", show=False),
        Binding("full_stop", "sort_by(1)", "Sort column right", show=False),
        Binding("minus", "reverse", "Reverse", show=False),
    ]

    class OfRow(Message):
        """Something about the row with the key `key`; None where there is no row."""

        def __init__(self, table: LiveTable[Any], key: Hashable | None) -> None:
            super().__init__()
            self.table, self.key = table, key

        @property
        def control(self) -> LiveTable[Any]:
            """The table that sent it."""
            return self.table

    class CursorMoved(OfRow):
        """The cursor stands on another row."""

    class Chosen(OfRow):
        """Enter, or a second click."""

    def __init__(
        self,
        columns: Sequence[Column[Row]],
        *,
        sort: int | None = None,
        reverse: bool = False,
        sortable: bool = True,
        follow_end: bool = False,
        caption: str = "",
        empty: str = "nothing here",
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        super().__init__(columns, caption, empty, id, classes)
        self.sort, self.reverse = sort, reverse
        self._sortable, self._follow_end = sortable, follow_end
        self._given: tuple[Sequence[Hashable], Sequence[Row]] = ((), ())

    @property
    def cursor_key(self) -> Hashable | None:
        """Key of the row under the cursor."""
        return self.keys[self.cursor] if self.keys else None

    @property
    def cursor_row(self) -> Row | None:
        """The row under the cursor."""
        return self.rows[self.cursor] if self.rows else None

    def set_rows(self, keys: Sequence[Hashable], rows: Sequence[Row]) -> None:
        """Show these rows instead; `keys` say which row is which. Lines that stay as they are aren't painted again."""
        key, index = self.cursor_key, self.cursor
        was_seen = bool(self.keys) and self._is_seen(index)
        at_end = self._follow_end and index >= len(self.keys) - 1
        count = len(self.rows)
        self._given = (keys, rows)
        column = None if self.sort is None else self.columns[self.sort]
        self.keys, self.rows = in_order(keys, rows, column, self.reverse)
        if at_end:
            index = len(self.keys) - 1
        elif key is not None and not (index < len(self.keys) and self.keys[index] == key):
            index = _index_of(self.keys, key, index)
        self.cursor = max(0, min(index, len(self.keys) - 1))
        if len(self.rows) != count:
            self._resize_content()
        if was_seen or at_end:
            self._show_cursor()
        self._repaint()
        if self.cursor_key != key:
            self.post_message(self.CursorMoved(self, self.cursor_key))

    def set_columns(self, columns: Sequence[Column[Row]]) -> None:
        """Show the same rows by other columns; the one that they are sorted by stays that, where it is still there."""
        sort = None if self.sort is None else self.columns[self.sort].name
        self.columns = list(columns)
        self.sort = next((at for at, column in enumerate(columns) if column.name == sort), None)
        self._resize_content()
        self._repaint()

    def move_to(self, key: Hashable) -> bool:
        """Put the cursor on the row with this key; False where there is none."""
        index = _index_of(self.keys, key, -1)
        if index >= 0:
            self._move_to(index)
        return index >= 0

    def sort_by(self, column: int | None, reverse: bool = False) -> None:
        """Sort by a column, or show the rows as they are given."""
        self.sort, self.reverse = column, reverse
        self.set_rows(*self._given)
        if column:
            self._show_column(column)

    def on_resize(self) -> None:
        """A cursor that follows the end is seen, however high the table is now."""
        if self._follow_end and self.cursor >= len(self.keys) - 1:
            self.call_after_refresh(self._show_cursor)

    # Keys

    def action_move(self, by: int) -> None:
        """Move the cursor by rows."""
        self._move_to(self.cursor + by)

    def action_page(self, by: int) -> None:
        """Move the cursor by screens."""
        self._move_to(self.cursor + by * max(1, self._height - 1))

    def action_edge(self, which: int) -> None:
        """Move the cursor to the first row (-1) or to the last one (1)."""
        self._move_to(0 if which < 0 else len(self.rows) - 1)

    def action_sideways(self, by: int) -> None:
        """Scroll the columns."""
        self.scroll_to(x=self.scroll_x + by, animate=False, force=True)

    def action_choose(self) -> None:
        """Say that the row under the cursor was chosen."""
        if self.keys:
            self.post_message(self.Chosen(self, self.cursor_key))

    def action_sort_by(self, by: int) -> None:
        """Sort by the column to the left (-1) or to the right (1)."""
        if self._sortable:
            start = min(0, -by) if self.sort is None else self.sort
            self.sort_by((start + by) % len(self.columns), self.reverse)

    def action_reverse(self) -> None:
        """Turn the order round."""
        if self._sortable:
            self.sort_by(self.sort, not self.reverse)

    # Mouse

    def on_click(self, event: events.Click) -> None:
        """The header sorts, a row takes the cursor, a second click on it chooses it."""
        line = event.y - self._head
        if line == -1 and self._sortable:
            column = self._column_at(event.x)
            if column is not None:
                self.sort_by(column, not self.reverse if column == self.sort else False)
        elif line >= 0 and (index := line + self.scroll_offset.y) < len(self.rows):
            self._move_to(index)
            if event.chain == 2:
                self.action_choose()

    # Places

    def _move_to(self, index: int) -> None:
        index = max(0, min(index, len(self.rows) - 1))
        if index != self.cursor:
            left, self.cursor = self.cursor, index
            self._show_cursor()
            self._repaint_rows(left, index)  # a scroll paints every line itself
            self.post_message(self.CursorMoved(self, self.cursor_key))
        else:
            self._show_cursor()


def _index_of(keys: Sequence[Hashable], key: Hashable, default: int) -> int:
    try:
        return keys.index(key)
    except ValueError:
        return default
