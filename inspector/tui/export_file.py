"""Writes what a view shows into a file. Knows no views."""

from __future__ import annotations

import re
from pathlib import Path

from ..export import Shown, Table, as_csv, as_json

FORMATS = (("csv", "csv    the rows, for a spreadsheet"), ("json", "json   the rows, for a program"),
           ("svg", "svg    the screen, as a picture"))  # fmt: skip


def write_export(folder: Path, form: str, table: Table, shown: Shown, screenshot: str = "") -> Path:
    """Write a new file `nano-inspect-TITLE-stepN.FORM`, with a time in place of the step where there is none.

    Args:
        folder: where to.
        form: csv, json or svg.
        table: what is shown.
        shown: of which moment.
        screenshot: the screen as SVG, for that form.

    Returns:
        The file: with a number in its name where there was one of that name before.

    Raises:
        OSError: it can't be written.
    """
    text = {"csv": as_csv, "json": as_json}[form](table, shown) if form != "svg" else screenshot
    slug = re.sub(r"[^a-z0-9]+", "-", table.title.lower()).strip("-") or "view"
    number = 1
    while True:
        again = f"-{number}" if number > 1 else ""
        path = folder / f"nano-inspect-{slug}-{shown.name}{again}.{form}"
        try:
            with path.open("x", encoding="utf-8", newline="") as file:
                file.write(text)
        except FileExistsError:
            number += 1
        else:
            return path
