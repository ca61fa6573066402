"""A table as other programs read it. Knows no view and no file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
    rows: Sequence[Sequence[str | int | float | None]]
