"""`nano-trace top` on several journals: one tail of all their requests, each culprit from its own journal."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np

from .describe import plural
from .fleet_reading import Asked, Fleet, about, heads, read_fleet
from .request_csv import write_fleet_csv
from .request_table import RequestTable, is_counted, joined, request_table
from .run_taxes import RunTaxes, run_taxes
from .tail_culprits import LEAST_SHARE, MOST_CULPRITS, MOST_REQUESTS, TailCulprit, tail_culprits
from .tail_report import TailReport, tail_report
from .top_cli import tail_lines, tax_lines
from .trace_text import Paint, fold, safe, time, width


def run_fleet(arguments: argparse.Namespace) -> int:
    """Look at a fleet.

    Raises:
        JournalError: a journal can't be read, or is given twice.
        InvalidConfig: no request has ended, or the file can't be written.
    """
    fleet = read_fleet(arguments.journals, arguments.run_id)
    if arguments.csv is not None:
        write_fleet_csv(arguments.csv, fleet)
        if arguments.csv == "-":
            return 0
    counted, table, taxes = _table(fleet)
    names = [one.name for one in fleet.replicas]
    whose = np.array([names.index(one.replica.name) for one in counted], dtype=np.int64)
    report = _placed(fleet, counted, tail_report(table, arguments.by, {"replica": (whose, names)}))
    slowest = [counted[row] for row in report.slow_rows][-MOST_REQUESTS:]
    culprits = fleet_culprits(fleet, slowest, report, arguments.by)
    live = len(fleet.asked) - report.requests
    if arguments.json:
        print(json.dumps(_as_dict(fleet, counted, report, culprits, taxes, live)))
        return 0
    columns, having = width(), [counted[row] for row in np.flatnonzero(~np.isnan(table.measure(report.by)))]
    without = "have no first token" if report.by == "ttft" else "have not ended"
    head = (
        f"{plural(len(names), 'replica')}: {fleet.count_words(having)}"
        + (f" ({live} more {without})" if live else "")
        + f", {report.by} p50 {time(report.p50)}, p99 {time(report.p99)}; {fleet.clock_words()}"
    )
    print("\n".join(fold(safe(line, 10_000), columns, "  ") for line in (head, *heads(fleet))))
    print("\n".join(tail_lines(report, culprits, len(slowest), Paint(), columns)))
    for name, tax in taxes.items():
        if not tax.host.steps:  # it had nothing to do: its sentence above says so
            continue
        print("\n".join(["", safe(name, columns), *tax_lines(tax, columns)]))
    return 0


def fleet_culprits(
    fleet: Fleet, slowest: Sequence[Asked], report: TailReport, by: str
) -> list[TailCulprit]:
    """The culprits of the parts that count: each sought in its own journal, its share that of the whole part."""
    found: list[TailCulprit] = []
    whole = dict.fromkeys(report.causes, 0)
    for one in fleet.replicas:
        its = [asked.breakdown() for asked in slowest if asked.replica is one]
        for part in whole:
            whole[part] += sum((b.ttft_parts if by == "ttft" else b.parts).get(part, 0) for b in its)
        if its:
            culprits = tail_culprits(one.reading.latency, its, report.causes, by)
            found += [replace(c, replica=one.name) for c in culprits]
    shared = [replace(c, share=c.weight_ns / whole[c.part]) for c in found if whole[c.part]]
    kept: list[TailCulprit] = []
    for part in whole:
        of_part = sorted((c for c in shared if c.part == part), key=lambda c: -c.weight_ns)
        kept += [c for c in of_part[:MOST_CULPRITS] if c.share >= LEAST_SHARE]
    return kept


def _table(fleet: Fleet) -> tuple[list[Asked], RequestTable, dict[str, RunTaxes]]:
    """The requests that count, the table with a row for each, and what each replica paid."""
    counted: list[Asked] = []
    tables, taxes = [], {}
    for one in fleet.replicas:
        found = [(asked, asked.breakdown()) for asked in fleet.asked if asked.replica is one]
        having = [(asked, breakdown) for asked, breakdown in found if is_counted(breakdown)]
        table = request_table([breakdown for _, breakdown in having], one.offset_ns)
        taxes[one.name] = run_taxes(one.reading.latency, table.ended)
        names = np.array([fleet.name_of(asked) for asked, _ in having], dtype=object)
        counted += [asked for asked, _ in having]
        tables.append(replace(table, request=names))
    return counted, joined(tables), taxes


def _placed(fleet: Fleet, counted: Sequence[Asked], report: TailReport) -> TailReport:
    """The report with the replica of each of the slowest."""
    places = {(fleet.name_of(one), one.request.use): one for one in counted}
    named = []
    for each in report.named:
        one = places[each.request, each.use]
        named.append(replace(each, request=one.request.request, replica=one.replica.name))
    return replace(report, named=named)


def _as_dict(
    fleet: Fleet, counted: Sequence[Asked], report: TailReport, culprits: Sequence[TailCulprit],
    taxes: dict[str, RunTaxes], live: int,
) -> dict[str, object]:  # fmt: skip
    told = asdict(report)
    del told["slow_rows"]
    for named, one in zip(told["named"], report.named, strict=True):
        named["request"] = fleet.called(one.request, one.replica)
    return {
        **about(fleet),
        "live": live,
        **told,
        "culprits": [asdict(culprit) for culprit in culprits],
        "taxes": {name: asdict(tax) for name, tax in taxes.items()},
    }
