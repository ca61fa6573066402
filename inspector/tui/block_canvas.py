"""The block map as it is drawn: one character a place, a cursor, the lines on the screen alone. Knows no views."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ..block_rows import BlockMap, Kind, Line, MapLayout

GLYPHS: dict[Kind, str] = {
    "free": "·", "cached": "□", "used": "■", "shared": "◆", "host": "■", "disk": "■", "empty": "·",
}  # fmt: skip
SYMBOLS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"  # of owners and ages, where colours are off
OWNER_COLOURS = (
    "#4e9af1", "#f2a33a", "#5cb85c", "#e0605c", "#a678de", "#3fc1c9", "#e377c2", "#b5a642", "#8c9eff", "#ff8a65",
    "#2eb398", "#c0ca33",
)  # fmt: skip
AGE_COLOURS = ("#2eb398", "#9acd32", "#e6c229", "#f17105", "#e0315b")
LRU_COLOURS = ("#e8edf2", "#bcc5ce", "#939ea9", "#6f7a86", "#525c66")
GROUP = 8  # places in a line come in groups of so many, so that a place's number can be counted out

Test = Callable[[BlockMap, int], bool]


class BlockCanvas(ScrollView, can_focus=True):
    """The map. Its width follows the widget's; two characters a place where all of it fits then.

    Attributes:
        blocks: what is drawn; None before the first view.
        cursor: the place under the cursor, as a block table would name it.
        by_age: colours tell ages; else they tell owners.
        highlighted: places that belong to the cursor's owner.
        test: which places are drawn; the others stay faint. None: all.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "move(-1, 0)", "Left", show=False),
        Binding("right,l", "move(1, 0)", "Right", show=False),
        Binding("up,k", "move(0, -1)", "Up", show=False),
        Binding("down,j", "move(0, 1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home", "edge(-1)", "First", show=False),
        Binding("end", "edge(1)", "Last", show=False),
        Binding("enter", "choose", "Owner", show=False),
    ]
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "canvas--label", "canvas--faint", "canvas--cached", "canvas--shared", "canvas--owned",
    }  # fmt: skip
    DEFAULT_CSS = """
    BlockCanvas {
        background: $surface; color: $foreground; height: 1fr; scrollbar-size-vertical: 1;
        scrollbar-size-horizontal: 0;
    }
    BlockCanvas > .canvas--label { color: $text-muted; }
    BlockCanvas > .canvas--faint { color: $foreground 35%; }
    BlockCanvas > .canvas--cached { color: $foreground 65%; }
    BlockCanvas > .canvas--shared { color: $foreground; text-style: bold; }
    BlockCanvas > .canvas--owned { background: $primary 40%; }
    """

    class CursorMoved(Message):
        """The cursor stands on another place."""

    class Chosen(Message):
        """Enter, or a second click, on the place under the cursor."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.blocks: BlockMap | None = None
        self.cursor = 0
        self.by_age = False
        self.highlighted: frozenset[int] = frozenset()
        self.test: Test | None = None
        self._layout = MapLayout(0, 0, 0, GROUP)
        self._label, self._cell = 5, 1
        self._lines: dict[int, Strip] = {}
        self._styles: dict[tuple[str, bool, bool], Style] = {}

    def show(self, blocks: BlockMap, highlighted: frozenset[int]) -> None:
        """Draw this map instead; lines that stay as they are aren't painted again."""
        before, self.blocks, self.highlighted = self.blocks, blocks, highlighted
        sizes = [(each.num_blocks, each.host_blocks, each.disk_blocks) for each in (before, blocks) if each]
        if sizes[0] != sizes[-1] or before is None:
            self._lay_out()
            self.cursor = self._nearest(self.cursor)
            self.redraw()
        else:
            self._repaint_changes()

    def redraw(self) -> None:
        """Paint everything again."""
        self._lines.clear()
        self._styles.clear()
        self.refresh()

    def _repaint_changes(self) -> None:
        """Paint the lines again that are not what they were."""
        before, self._lines = self._lines, {}
        changed = [y for y, strip in before.items() if self.render_line(y) != strip]
        if changed:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    def move_to(self, entry: int) -> None:
        """Put the cursor on a place and scroll so far that it is seen."""
        if self.blocks is None:
            return
        was, self.cursor = self.cursor, self._nearest(entry)
        self._show_cursor()
        if self.cursor != was:
            self.post_message(self.CursorMoved())
            self._repaint_places((was, self.cursor))

    def highlight(self, places: frozenset[int]) -> None:
        """Let these places stand out, and no others."""
        changed, self.highlighted = self.highlighted ^ places, places
        self._repaint_places(changed)

    @property
    def per_line(self) -> int:
        """Places in a line."""
        return self._layout.per_line

    # Painting

    def render_line(self, y: int) -> Strip:
        """One line of what is seen."""
        strip = self._lines.get(y)
        if strip is None:
            strip = self._lines[y] = self._line(y + self.scroll_offset.y)
        return strip

    def on_resize(self) -> None:
        """Another width is another number of places a line."""
        self._lay_out()
        self._show_cursor()
        self.redraw()

    def on_focus(self) -> None:
        """The cursor looks otherwise with the focus."""
        self.redraw()

    def on_blur(self) -> None:
        """And without it."""
        self.redraw()

    def notify_style_update(self) -> None:
        """Another theme."""
        super().notify_style_update()
        self._lines.clear()
        self._styles.clear()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Other lines are seen."""
        self._lines.clear()
        super().watch_scroll_y(old_value, new_value)

    def _repaint_places(self, entries: Iterable[int]) -> None:
        """Paint the lines again in which these places are seen."""
        top = self.scroll_offset.y
        lines = {self._layout.position(entry)[0] - top for entry in entries}
        seen = [y for y in lines if 0 <= y < self.size.height]
        for y in seen:
            self._lines.pop(y, None)
        if seen:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in seen))

    def _lay_out(self) -> None:
        blocks = self.blocks
        width = self.size.width - 1  # room for the scroll bar
        if blocks is None or width < 1:
            return
        most = max(blocks.num_blocks, blocks.host_blocks + blocks.disk_blocks)
        self._label = max(3, len(str(most))) + 2
        for cell in (2, 1):
            self._cell = cell
            per_line = max(GROUP, (width - self._label) // cell // GROUP * GROUP)
            self._layout = MapLayout(blocks.num_blocks, blocks.host_blocks, blocks.disk_blocks, per_line)
            if self._layout.num_lines <= self.size.height:
                break
        self.virtual_size = Size(width, self._layout.num_lines)

    def _line(self, y: int) -> Strip:
        width, blocks = self.size.width, self.blocks
        if blocks is None or y >= self._layout.num_lines:
            return Strip.blank(width, self.rich_style)
        line = self._layout.line(y)
        label = self._style("label", False, False)
        if not line.length:
            return Strip([Segment(line.text, label)]).adjust_cell_length(width, self.rich_style)
        segments = [Segment(line.text.rjust(self._label - 1) + " ", label)]
        segments.extend(self._cells(blocks, line))
        return Strip(segments).adjust_cell_length(width, self.rich_style)

    def _cells(self, blocks: BlockMap, line: Line) -> list[Segment]:
        """The places of a line; neighbours that look alike are one segment."""
        gap = " " * (self._cell - 1)
        segments: list[Segment] = []
        text, style = "", None
        for entry in line.entries():
            glyph, tone = self._look(blocks, entry)
            new = self._style(tone, entry in self.highlighted, entry == self.cursor)
            if (gap and entry == self.cursor) or new is not style:
                if text:
                    segments.append(Segment(text, style))
                text, style = "", new
            text += glyph
            if gap and entry == self.cursor:
                segments.append(Segment(text, style))
                text, style = gap, self._style("label", False, False)
            else:
                text += gap
        segments.append(Segment(text, style))
        return segments

    def _look(self, blocks: BlockMap, entry: int) -> tuple[str, str]:
        """A place's character and tone: a component class, or a colour."""
        kind = blocks.kind(entry)
        if self.test is not None and not self.test(blocks, entry):
            return GLYPHS[kind], "faint"
        mono = self.app.no_color
        if self.by_age:
            level = blocks.age_level(entry)
            if level < 0:
                return GLYPHS[kind], "faint"
            colours = LRU_COLOURS if kind in ("free", "cached") else AGE_COLOURS
            return (str(level) if mono and colours is AGE_COLOURS else GLYPHS[kind]), colours[level]
        owner = blocks.owner(entry)
        if owner is None:
            return GLYPHS[kind], "faint" if kind in ("free", "empty") else "cached"
        if mono and kind != "shared":
            return SYMBOLS[owner % len(SYMBOLS)], "shared"
        return GLYPHS[kind], OWNER_COLOURS[owner % len(OWNER_COLOURS)]

    def _style(self, tone: str, is_owned: bool, is_cursor: bool) -> Style:
        key = (tone, is_owned, is_cursor)
        style = self._styles.get(key)
        if style is None:
            base = self.rich_style
            if tone[0] == "#":
                style = base + Style(color=tone)
            else:
                style = base + self.get_component_rich_style(f"canvas--{tone}", partial=True)
            if is_owned:
                style += Style(bgcolor=self.get_component_rich_style("canvas--owned").bgcolor, bold=True)
            if is_cursor:
                style += Style(reverse=True, bold=True, underline=not self.has_focus)
            self._styles[key] = style
        return style

    # Keys and mouse

    def action_move(self, right: int, down: int) -> None:
        """Move the cursor by places, or by lines of the map."""
        if self.blocks is None:
            return
        if right:
            ordinal = self._ordinal(self.cursor) + right
            self.move_to(self._entry(max(0, min(ordinal, self._num_places() - 1))))
            return
        self._move_lines(down)

    def action_page(self, by: int) -> None:
        """Move the cursor by screens."""
        if self.blocks is not None:
            self._move_lines(by * max(1, self.size.height - 1))

    def _move_lines(self, by: int) -> None:
        """Move the cursor by lines, over headings; to the first or last line where there are fewer."""
        y, column = self._layout.position(self.cursor)
        down = 1 if by > 0 else -1
        y = max(0, min(y + by, self._layout.num_lines - 1))
        if not self._layout.line(y).length:  # a heading: a line of places follows, and another stands before it or none
            y = y + down if self._layout.line(max(0, y + down)).length else y + 1
        line = self._layout.line(y)
        self.move_to(line.first + min(column, line.length - 1) * line.step)

    def action_edge(self, which: int) -> None:
        """Move the cursor to the first place (-1) or to the last one (1)."""
        if self.blocks is not None:
            self.move_to(self._entry(0 if which < 0 else self._num_places() - 1))

    def action_choose(self) -> None:
        """Say that the place under the cursor was chosen."""
        if self.blocks is not None:
            self.post_message(self.Chosen())

    def on_click(self, event: events.Click) -> None:
        """A click moves the cursor, a second one chooses."""
        column = (event.x - self._label) // self._cell
        entry = self._layout.entry(event.y + self.scroll_offset.y, column)
        if entry is not None:
            self.move_to(entry)
            if event.chain == 2:
                self.action_choose()

    # Places: the pool's blocks and then the slots, counted on

    def _num_places(self) -> int:
        blocks = self.blocks
        return blocks.num_blocks + blocks.host_blocks + blocks.disk_blocks if blocks else 0

    def _ordinal(self, entry: int) -> int:
        return entry if entry >= 0 or self.blocks is None else self.blocks.num_blocks - 1 - entry

    def _entry(self, ordinal: int) -> int:
        blocks = self.blocks
        return ordinal if blocks is None or ordinal < blocks.num_blocks else blocks.num_blocks - 1 - ordinal

    def _nearest(self, entry: int) -> int:
        return self._entry(max(0, min(self._ordinal(entry), self._num_places() - 1)))

    def _show_cursor(self) -> None:
        if self.blocks is None or not self._layout.num_lines:
            return
        y, _ = self._layout.position(self.cursor)
        top, height = self.scroll_offset.y, self.size.height
        if height and not top <= y < top + height:
            self.scroll_to(y=y if y < top else y - height + 1, animate=False)
