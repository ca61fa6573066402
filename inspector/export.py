"""A table as other programs read it: CSV and JSON. Knows no view; SVG comes from the terminal's side."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass

Value = str | int | float | None


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


def as_csv(table: Table) -> str:
    """RFC 4180 with a header; None is an empty field. A text that a spreadsheet would run as a formula gets a `'`."""
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(table.columns)
    for row in table.rows:
        writer.writerow([_inert(value) for value in row])
    return out.getvalue()


def as_json(table: Table) -> str:
    """An object with the title and a list of objects, one a row."""
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    return json.dumps({"title": table.title, "rows": rows}, ensure_ascii=False, indent=1) + "\n"


def _inert(value: Value) -> Value:
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
