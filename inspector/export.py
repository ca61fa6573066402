"""A table as other programs read it: CSV and JSON. Knows no view; SVG comes from the terminal's side."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

NS_PER_S = 1_000_000_000
Value = str | int | float | None


class Shown(NamedTuple):
    """Of which moment a table is.

    Attributes:
        run: id of the run, as its journal has it; "" where the rows are of several.
        step: the last planned one; None where there are several.
        time: of this machine, as ISO 8601 with its zone.
        fleet: URL of the front of a fleet, where the rows are of its replicas.
    """

    run: str
    step: int | None
    time: str
    fleet: str = ""

    @property
    def source(self) -> dict[str, Value]:
        """What the rows are of, by names that none of their columns has."""
        return {"fleet": self.fleet} if self.fleet else {"run": self.run}

    @property
    def name(self) -> str:
        """The moment in the name of a file: its step, or its second where there is none."""
        if self.step is not None:
            return f"step{self.step}"
        return datetime.fromisoformat(self.time).strftime("%Y%m%dT%H%M%S")


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

    The last two columns say in each row of which run (or fleet) and moment it is.
    """
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    about = shown.source | {"shown_at": shown.time}
    writer.writerow([*table.columns, *about])
    for row in table.rows:
        writer.writerow([_inert(value) for value in (*row, *about.values())])
    return out.getvalue()


def as_json(table: Table, shown: Shown) -> str:
    """An object with the title, of which run (or fleet) and moment it is, and a list of objects, one a row."""
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    step = {} if shown.step is None else {"step": shown.step}
    whole = {"title": table.title, **shown.source, **step, "shown_at": shown.time, "rows": rows}
    return json.dumps(whole, ensure_ascii=False, indent=1) + "\n"


def _inert(value: Value) -> Value:
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
