"""The lines of a table: those that are seen are drawn, those that differ are painted again. Knows no keys, no mouse."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import ClassVar, Generic

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from .columns import Column, Row, fitted, widths_of

GAP = 1  # cells between columns


class PaintedTable(ScrollView, Generic[Row]):
    """Columns, rows in the order in which they are seen, and a cursor; as `LiveTable` describes them.

    Each line of the widget is kept until something that it shows may have changed.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "table--header", "table--sorted", "table--caption", "table--cursor", "table--good",
        "table--warn", "table--bad", "table--dim", "table--accent", "table--note",
    }  # fmt: skip
    DEFAULT_CSS = """
    PaintedTable {
        background: $surface;
        color: $foreground;
        height: 1fr;
        scrollbar-size-vertical: 1;
        scrollbar-size-horizontal: 1;
        & > .table--header { background: $panel; color: $foreground; text-style: bold; }
        & > .table--sorted { background: $panel; color: $accent; text-style: bold; }
        & > .table--caption { color: $text-muted; }
        & > .table--cursor { background: $block-cursor-blurred-background; text-style: none; }
        & > .table--good { color: $text-success; }
        & > .table--warn { color: $text-warning; }
        & > .table--bad { color: $text-error; text-style: bold; }
        & > .table--dim { color: $text-muted; }
        & > .table--accent { color: $text-accent; }
        & > .table--note { color: $text-secondary; }
        &:focus > .table--cursor { background: $primary 45%; text-style: bold; }
    }
    """

    def __init__(
        self, columns: Sequence[Column[Row]], caption: str, empty: str, id: str | None, classes: str | None
    ) -> None:
        super().__init__(id=id, classes=classes)
        self.columns = list(columns)
        self.sort: int | None = None
        self.reverse = False
        self.rows: list[Row] = []
        self.keys: list[Hashable] = []
        self.cursor = 0
        self._caption, self._empty = caption, empty
        self._lines: dict[int, Strip] = {}  # line of the widget -> what stands there

    @property
    def caption(self) -> str:
        """The line above the header; "" takes none."""
        return self._caption

    @caption.setter
    def caption(self, text: str) -> None:
        was, self._caption = self._caption, text
        if bool(was) != bool(text):
            self._resize_content()
        if was != text:
            self._repaint()

    @property
    def empty(self) -> str:
        """What stands in place of the rows when there are none."""
        return self._empty

    @empty.setter
    def empty(self, text: str) -> None:
        if text != self._empty:
            self._empty = text
            self._repaint()

    # Painting

    def render_line(self, y: int) -> Strip:
        """One line of what is seen. A scrollbar that comes or goes changes the width without any other sign."""
        strip = self._lines.get(y)
        if strip is None or strip.cell_length != self.scrollable_content_region.width:
            strip = self._lines[y] = self._line(y)
        return strip

    def on_resize(self) -> None:
        """Another width moves the columns."""
        self._resize_content()
        self._lines.clear()

    def on_mount(self) -> None:
        """Know the size of what there is before the first painting."""
        self._resize_content()

    def on_focus(self) -> None:
        """The cursor looks otherwise with the focus."""
        self._forget_lines()

    def on_blur(self) -> None:
        """And without it."""
        self._forget_lines()

    def notify_style_update(self) -> None:
        """Another theme, or another state of the widget, colours every line anew."""
        super().notify_style_update()
        self._lines.clear()

    def watch_scroll_x(self, old_value: float, new_value: float) -> None:
        """Other columns are seen."""
        self._lines.clear()
        super().watch_scroll_x(old_value, new_value)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Other rows are seen. The scrollbar knows, though it may be shown only at the next layout."""
        self._lines.clear()
        self.vertical_scrollbar.position = new_value
        super().watch_scroll_y(old_value, new_value)

    @property
    def _head(self) -> int:
        """Lines above the rows."""
        return 2 if self._caption else 1

    @property
    def _height(self) -> int:
        """Rows that fit on the screen."""
        return max(0, self.scrollable_content_region.height - self._head)

    def _forget_lines(self) -> None:
        self._lines.clear()
        self.refresh()

    def _resize_content(self) -> None:
        width = sum(column.width + GAP for column in self.columns)
        self.virtual_size = Size(width, len(self.rows) + self._head)

    def _repaint(self) -> None:
        """Paint the lines that are not what they were."""
        if not self.size:
            return
        before, self._lines = self._lines, {}
        width = self.size.width
        changed = [y for y in range(self.size.height) if self.render_line(y) != before.get(y)]
        if changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))

    def _repaint_rows(self, *indices: int) -> None:
        """Paint the lines of these rows, as far as they are seen and are not what they were."""
        lines = [index - self.scroll_offset.y + self._head for index in indices if self._is_seen(index)]
        before = {y: self._lines.pop(y, None) for y in lines}
        changed = [y for y in lines if self.render_line(y) != before[y]]
        if changed:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    def _line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        if y == self._head - 1:
            return self._header(width)
        if y < self._head:
            return Strip([Segment(fitted(self._caption, width), self._style("caption"))], width)
        index = y - self._head + self.scroll_offset.y
        if index < len(self.rows):
            return self._row(index, width)
        words = self._empty if not self.rows and y == self._head else ""
        return Strip([Segment(fitted(words, width), self._style("dim") if words else self.rich_style)], width)

    def _header(self, width: int) -> Strip:
        cells = []
        for i, (column, size) in enumerate(zip(self.columns, widths_of(self.columns, width), strict=True)):
            mark = ("▼" if self.reverse else "▲") if i == self.sort else ""
            style = self._style("sorted" if mark else "header")
            name = mark + column.name if column.align == "right" else column.name + mark
            cells.append(Segment(fitted(name, size, column.align) + " ", style))
        return self._placed(cells, width, self._style("header"))

    def _row(self, index: int, width: int) -> Strip:
        row, base = self.rows[index], self.rich_style
        over = self._style("cursor") if index == self.cursor else None
        cells = []
        for column, size in zip(self.columns, widths_of(self.columns, width), strict=True):
            tone = column.tone(row) if column.tone else ""
            style = self._style(tone) if tone else base
            text = fitted(column.text(row), size, column.align) + " "
            cells.append(Segment(text, style + Style(bgcolor=over.bgcolor, bold=over.bold) if over else style))
        return self._placed(cells, width, base + Style(bgcolor=over.bgcolor) if over else base)

    def _placed(self, cells: list[Segment], width: int, blank: Style) -> Strip:
        """The first cell in its place, the others moved by the scroll offset."""
        first, rest = Strip(cells[:1]), Strip(cells[1:])
        x = self.scroll_offset.x
        room = max(0, width - first.cell_length)
        return Strip.join([first, rest.crop_extend(x, x + room, blank)]).crop_extend(0, width, blank)

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"table--{name}")

    # Places

    def _is_seen(self, index: int) -> bool:
        top = self.scroll_offset.y
        return top <= index < top + self._height

    def _show_cursor(self) -> None:
        """Scroll just so far that the cursor is seen."""
        top, height = self.scroll_offset.y, self._height
        if not height:
            return
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False, force=True)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False, force=True)

    def _show_column(self, column: int) -> None:
        """Scroll sideways until a column is seen, behind the fixed one."""
        widths = [size + GAP for size in widths_of(self.columns, self.size.width)]
        begin, room = sum(widths[1:column]), self.scrollable_content_region.width - widths[0]
        if begin < self.scroll_x or begin + widths[column] > self.scroll_x + room:
            self.scroll_to(x=begin, animate=False, force=True)

    def _column_at(self, x: int) -> int | None:
        widths = [size + GAP for size in widths_of(self.columns, self.scrollable_content_region.width)]
        if x >= widths[0]:
            x += self.scroll_offset.x
        for index, width in enumerate(widths):
            if x < width:
                return index
            x -= width
        return None
