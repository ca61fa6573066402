"""A table as other programs read it: CSV and JSON. Knows no view; SVG comes from the terminal's side."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

NS_PER_S = 1_000_000_000
Value = str | int | float | None


class Shown(NamedTuple):
    """Of which moment a table is.

    Attributes:
        run: id of the run, as its journal has it.
        step: the last planned one.
        time: of this machine, as ISO 8601 with its zone.
    """

    run: str
    step: int
    time: str


@dataclass(frozen=True, slots=True)
class Table:
    """What a view shows, for an export.

    Attributes:
        title: what it is a table of; names the file.
        columns: names.
        rows: values, one a column: texts, numbers, or None.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]


def in_seconds(title: str, names: Sequence[str], rows: Iterable[Sequence[Value]]) -> Table:
    """A table whose durations are seconds: `NAME_ns` becomes `NAME_s`."""
    are_ns = [name.endswith("_ns") for name in names]
    columns = [f"{name[:-3]}_s" if is_ns else name for name, is_ns in zip(names, are_ns, strict=True)]
    values = [
        [
            value / NS_PER_S if is_ns and isinstance(value, int) else value
            for value, is_ns in zip(row, are_ns, strict=True)
        ]
        for row in rows
    ]
    return Table(title, columns, values)


def as_csv(table: Table, shown: Shown) -> str:
    """RFC 4180 with a header; None is an empty field. A text that a spreadsheet would run as a formula gets a `'`.

    The last two columns say in each row of which run and moment it is.
    """
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow([*table.columns, "run", "shown_at"])
    for row in table.rows:
        writer.writerow([_inert(value) for value in (*row, shown.run, shown.time)])
    return out.getvalue()


def as_json(table: Table, shown: Shown) -> str:
    """An object with the title, of which run and moment it is, and a list of objects, one a row."""
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    whole = {"title": table.title, "run": shown.run, "step": shown.step, "shown_at": shown.time, "rows": rows}
    return json.dumps(whole, ensure_ascii=False, indent=1) + "\n"


def _inert(value: Value) -> Value:
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
