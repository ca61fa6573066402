"""The columns of a table: what each says of a row, how wide, in which tone. Knows neither rows nor who draws them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from rich.cells import cell_len, set_cell_size

Row = TypeVar("Row")
ID_CELLS = 44  # that the ids of requests which servers make fit into
Tone = Literal["", "good", "warn", "bad", "dim", "accent", "note"]


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column.

    Attributes:
        name: for people; the field's name where it is short enough.
        text: what stands in it.
        width: cells that it takes at least.
        align: of its text; numbers stand right.
        tone: colour of its text by meaning: good, warn, bad, dim, accent, note; "" for the usual one.
        key: by what rows are sorted; None: by the text. Rows whose key is None come last, either way.
        grow: its share of the width that all columns leave free.
        most: cells that it takes at most.
    """

    name: str
    text: Callable[[Row], str]
    width: int
    align: Literal["left", "right"] = "left"
    tone: Callable[[Row], Tone] | None = None
    key: Callable[[Row], Any] | None = None
    grow: int = 0
    most: int = 10_000


def fitted(text: str, width: int, align: str = "left") -> str:
    """Exactly `width` cells: cut with an ellipsis, or padded. What a terminal would act on is made visible."""
    if not text.isprintable():
        text = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    size = len(text) if text.isascii() else cell_len(text)
    if size > width:
        return set_cell_size(text, width - 1) + "…" if width > 1 else "…"[:width]
    return " " * (width - size) + text if align == "right" else text + " " * (width - size)


def widths_of(columns: Sequence[Column[Row]], available: int) -> list[int]:
    """The width of each column; one cell of space stands between them."""
    widths = [column.width for column in columns]
    shares = sum(column.grow for column in columns)
    spare = available - sum(widths) - len(widths)
    if not shares or spare <= 0:
        return widths
    return [
        min(width + spare * column.grow // shares, max(width, column.most))
        for width, column in zip(widths, columns, strict=True)
    ]


def in_order(
    keys: Sequence[Hashable], rows: Sequence[Row], column: Column[Row] | None, reverse: bool
) -> tuple[list[Hashable], list[Row]]:
    """Keys and rows, sorted by a column (None: as given); equal ones stay in the order that they came in."""
    if column is None:
        return (list(reversed(keys)), list(reversed(rows))) if reverse else (list(keys), list(rows))
    value_of = column.key or column.text
    values = [value_of(row) for row in rows]
    known = sorted((i for i, value in enumerate(values) if value is not None), key=values.__getitem__, reverse=reverse)
    order = known + [i for i, value in enumerate(values) if value is None]
    return [keys[i] for i in order], [rows[i] for i in order]
