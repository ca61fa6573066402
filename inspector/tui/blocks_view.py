"""The Blocks view: the whole pool and the swap space as a map, and what the place under the cursor is."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Static

from ...errors import InspectError
from ...telemetry.block_table import slot_of
from ..block_filter import parse_block_filter
from ..block_rows import BlockMap, Place
from ..describe import plural
from ..export import Table
from ..units import duration
from ..view import View
from .block_canvas import AGE_COLOURS, GLYPHS, LRU_COLOURS, OWNER_COLOURS, SYMBOLS, BlockCanvas
from .messages import SequenceChosen

NS = 1_000_000_000
SHOWN_OWNERS = 8
AGE_WORDS = ("<1s", "<10s", "<1m", "<10m", "older")


class BlocksView(Vertical):
    """The map of the blocks; its cursor stays on its place, whatever happens there."""

    HELP: ClassVar[list[tuple[str, str]]] = [  # type: ignore[assignment]
        ("c", "by owner or age"),
        ("enter", "owner"),
        ("n", "next of owner"),
        ("N", "the place before in the owner's table"),
        ("arrows", "move the cursor over blocks and swap slots; home, end, page up and down too"),
        ("colours", "by owner; by age: since the owner arrived, and of free blocks the order in which they are reused"),
        ("/", "leave bright: kind:shared seq:12 filler:3 references>2 hash:a1 age>60s lru<10"),
    ]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "colour", "Colour"),
        Binding("n", "next_place(1)", "Next of owner"),
        Binding("N", "next_place(-1)", "Previous of owner", show=False),
    ]
    DEFAULT_CSS = """
    BlocksView > Static { height: 1; background: $surface; text-wrap: nowrap; text-overflow: ellipsis; }
    BlocksView > .blocks--place { height: 2; background: $panel; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._canvas = BlockCanvas()
        self._view: View | None = None
        self._blocks: BlockMap | None = None
        self._filter = ""

    def compose(self) -> ComposeResult:
        """Counts and colours, the map, the place under the cursor."""
        yield Static("", classes="blocks--counts", markup=False)
        yield Static("", classes="blocks--key", markup=False)
        yield self._canvas
        yield Static("", classes="blocks--place", markup=False)

    def show(self, view: View) -> None:
        """Take a view."""
        if self._view is None or view.keyframe is not self._view.keyframe:
            self._blocks = BlockMap(view.keyframe)
        self._view = view
        if self._blocks is not None:
            self._blocks.now_t = view.now_t
            self._canvas.show(self._blocks, self._owned())
            self._describe()

    def apply_filter(self, text: str) -> str:
        """Draw only what meets a filter; what is wrong with it, or ""."""
        try:
            self._canvas.test = parse_block_filter(text)
        except InspectError as error:
            return str(error)
        self._filter = text.strip()
        self._canvas.redraw()
        self._describe()
        return ""

    def exported(self) -> Table:
        """Every block and every slot in use."""
        columns = ("place", "kind", "references", "sequences", "hash", "filler", "lru", "age_s")
        blocks = self._blocks
        if blocks is None:
            return Table("blocks", columns, [])
        slots = sorted((e for seq in blocks.sequences.values() for e in seq.block_table if e < 0), reverse=True)
        rows = []
        for entry in [*range(blocks.num_blocks), *slots]:
            if self._canvas.test is not None and not self._canvas.test(blocks, entry):
                continue
            age = blocks.age_ns(entry)
            rows.append((
                _name(entry), blocks.kind(entry), blocks.references(entry), " ".join(map(str, blocks.owners(entry))),
                blocks.hash(entry), blocks.filler(entry), blocks.lru(entry), None if age is None else age / NS,
            ))  # fmt: skip
        return Table("blocks", columns, rows)

    @property
    def cursor(self) -> int:
        """The place under the cursor, as a block table would name it."""
        return self._canvas.cursor

    @property
    def selected_seq(self) -> int | None:
        """The owner of the place under the cursor; of a free one, the sequence that filled it."""
        if self._blocks is None:
            return None
        owner = self._blocks.owner(self.cursor)
        return self._blocks.filler(self.cursor) if owner is None else owner

    @property
    def selected_id(self) -> str:
        """The request of the place under the cursor; without one, the place's name."""
        if self._blocks is None:
            return ""
        owner = self._blocks.owner(self.cursor)
        return _name(self.cursor) if owner is None else self._blocks.sequences[owner].request

    # Keys

    def action_colour(self) -> None:
        """Colours tell owners, or ages."""
        self._canvas.by_age = not self._canvas.by_age
        self._canvas.redraw()
        self._describe()

    def action_next_place(self, by: int) -> None:
        """Go to the next (1) or previous (-1) place in the owner's table, round its ends."""
        owner = self._blocks.owner(self.cursor) if self._blocks else None
        if self._blocks is not None and owner is not None:
            table = self._blocks.sequences[owner].block_table
            self._canvas.move_to(table[(table.index(self.cursor) + by) % len(table)])

    @on(BlockCanvas.CursorMoved)
    def _cursor_moved(self) -> None:
        self._canvas.highlight(self._owned())
        self._describe()

    @on(BlockCanvas.Chosen)
    def _chosen(self) -> None:
        if self.selected_seq is not None:
            self.post_message(SequenceChosen(self.selected_seq))

    # Words

    def _owned(self) -> frozenset[int]:
        owner = self._blocks.owner(self.cursor) if self._blocks else None
        if self._blocks is None or owner is None:
            return frozenset()
        return frozenset(self._blocks.sequences[owner].block_table)

    def _describe(self) -> None:
        blocks = self._blocks
        if blocks is None or not self.is_mounted:
            return
        self.query_one(".blocks--counts", Static).update(_counts(blocks))
        self.query_one(".blocks--key", Static).update(self._key())
        self.query_one(".blocks--place", Static).update(self._place(blocks.place(self.cursor)))

    def _key(self) -> Text:
        """What the colours mean."""
        text, mono = Text(), self.app.no_color
        if self._canvas.by_age:
            text.append("by age (c)  owner arrived ")
            for level, (colour, words) in enumerate(zip(AGE_COLOURS, AGE_WORDS, strict=True)):
                text.append(str(level) if mono else GLYPHS["used"], colour).append(f"{words} ")
            text.append(" free, reused ")
            for colour in LRU_COLOURS:
                text.append(GLYPHS["cached"], colour)
            text.append(" next to last")
        else:
            text.append("by owner (c) ")
            owner = self._blocks.owner(self.cursor) if self._blocks else None
            if self._blocks is not None and owner is not None:
                seq = self._blocks.sequences[owner]
                symbol = SYMBOLS[owner % len(SYMBOLS)] if mono else GLYPHS["used"]
                text.append(f" {symbol} ", OWNER_COLOURS[owner % len(OWNER_COLOURS)])
                slots = sum(entry < 0 for entry in seq.block_table)
                moved = f" and {plural(slots, 'slot')}" if slots else ""
                held = plural(len(seq.block_table) - slots, "block")
                text.append(f"seq {owner}: {held}{moved}, {seq.status} {seq.phase}")
        if self._filter:
            text.append(f"  only {self._filter}", "bold")
        return text

    def _place(self, place: Place) -> Text:
        text = Text()
        text.append(_name(place.entry), "bold").append(f"  {_state(place)}")
        if place.age_ns is not None:
            text.append(f"  age {duration(place.age_ns)}")
        if place.hash:
            text.append(f"  hash {place.hash} filled by seq {place.filler}")
        text.append("\n")
        size = self._blocks.block_size if self._blocks else 0
        for use in place.uses[:SHOWN_OWNERS]:
            first = use.position * size
            text.append(f"seq {use.seq}", OWNER_COLOURS[use.seq % len(OWNER_COLOURS)])
            if len(place.uses) == 1:
                text.append(f" {use.request} {use.status}, logical {use.position} (tokens {first}-{first + size - 1})")
            else:
                text.append(f" {use.request} logical {use.position}  ")
        if len(place.uses) > SHOWN_OWNERS:
            text.append(f"and {len(place.uses) - SHOWN_OWNERS} more")
        return text


def _name(entry: int) -> str:
    return f"block {entry}" if entry >= 0 else f"slot {slot_of(entry)}"


def _state(place: Place) -> str:
    if place.lru is not None:
        kept = ", content cached" if place.kind == "cached" else ""
        return f"free{kept}, {place.lru} to be reused before it" if place.lru else f"free{kept}, reused next"
    if place.kind == "shared":
        return f"shared, {place.references} references"
    if place.kind == "used":
        return "used, 1 reference" if place.uses else "used by a sequence that has ended"
    return {"host": "used, in host memory", "disk": "used, in the swap file"}.get(place.kind, "empty")


def _counts(blocks: BlockMap) -> Text:
    """How many places of each kind."""
    counts = blocks.counts
    text = Text()
    for kind in ("free", "cached", "used", "shared"):
        text.append(f"{GLYPHS[kind]} ", "bold").append(f"{kind} {counts[kind]:,}  ")
    text.append(f"of {blocks.num_blocks:,}  ")
    if blocks.host_blocks:
        text.append(f"host {counts['host']:,}/{blocks.host_blocks:,}  ")
    if blocks.disk_blocks:
        text.append(f"disk {counts['disk']:,}/{blocks.disk_blocks:,}  ")
    return text.append(f"{blocks.block_size} tokens a block")
