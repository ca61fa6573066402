"""`nano-trace export --csv` and `top --csv`: a row a request, with the parts of its time."""

from __future__ import annotations

import argparse
import csv
import io
import sys
from typing import TextIO

from ..errors import InvalidConfig
from ..telemetry.latency import PARTS, Latency
from .describe import plural
from .fleet_reading import Fleet
from .latency_reading import read_latency
from .out_file import writing
from .request_table import header, row, rows

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would run a cell that begins so


def write_csv(path: str, latency: Latency, wall_offset_ns: int) -> int:
    """Write the requests of a run in order of arrival, those that live too; a file that is there is replaced.

    Args:
        path: of the file; "-" is the standard output.
        latency: the run.
        wall_offset_ns: wall clock minus the journal's.

    Returns:
        how many rows there are below the header.

    Raises:
        InvalidConfig: the file can't be written, or is a journal's.
    """
    if path == "-":
        return _write(sys.stdout, latency, wall_offset_ns)
    with writing(path, "--csv") as file, io.TextIOWrapper(file, "utf-8", newline="") as out:
        return _write(out, latency, wall_offset_ns)


def write_fleet_csv(path: str, fleet: Fleet) -> None:
    """The same for several journals, in order of arrival on their one clock, with a last column `replica`.

    Raises:
        InvalidConfig: the file can't be written, or is a journal's.
    """
    if path == "-":
        _write_fleet(sys.stdout, fleet)
        return
    with writing(path, "--csv") as file, io.TextIOWrapper(file, "utf-8", newline="") as out:
        _write_fleet(out, fleet)


def _write_fleet(out: TextIO, fleet: Fleet) -> None:
    writer = csv.writer(out, lineterminator="\n")
    told = {part for replica in fleet.replicas for part in replica.reading.latency.part_names}
    parts = [part for part in PARTS if part in told]
    writer.writerow([*header(parts), "replica"])
    for asked in fleet.asked:
        values = row(asked.breakdown(), asked.replica.offset_ns, parts)
        writer.writerow([_text(str(values[0])), *values[1:], _text(asked.replica.name)])


def _write(out: TextIO, latency: Latency, wall_offset_ns: int) -> int:
    writer, count = csv.writer(out, lineterminator="\n"), 0
    writer.writerow(header(latency.part_names))
    for values in rows(latency.breakdowns(), wall_offset_ns, latency.part_names):
        values[0] = _text(str(values[0]))
        writer.writerow(values)
        count += 1
    return count


def run_export(arguments: argparse.Namespace) -> int:
    """`nano-trace export JOURNAL --csv FILE`.

    Raises:
        InvalidConfig: it is given with another destination, or the file can't be written.
        JournalError: the journal can't be read.
    """
    others = ("otlp", "file", "metrics_port", "keep", "cursor", "from_start")
    for name in others:
        value = getattr(arguments, name)
        if value is not None and value is not False and value != []:
            raise InvalidConfig(f"--csv goes alone; leave --{name.replace('_', '-')} out, or export twice")
    reading = read_latency(arguments.journal, arguments.run_id)
    count = write_csv(arguments.csv, reading.latency, reading.started.wall_offset_ns)
    notes = "".join(f"; {note}" for note in reading.notes)
    print(f"nano-trace export: run {reading.run}: {plural(count, 'request')} written{notes}", file=sys.stderr)
    return 0


def _text(text: str) -> str:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text
