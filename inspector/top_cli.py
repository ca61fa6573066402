"""`nano-trace top`: flags and words of it. The numbers are tail_report.py's and run_taxes.py's."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from .describe import plural
from .trace_text import BOLD, DIM, YELLOW, Paint, bar, change, fold, safe, time, width
from .units import share

if TYPE_CHECKING:
    from .latency_reading import LatencyReading
    from .run_taxes import RunTaxes
    from .tail_report import Cohort, Group, TailReport

DESCRIPTION = """\
Over all requests of a run that have ended: what the slowest 1% spend their time on, part by part, beside the median
ones (the tenth of the requests around the median); which cohorts they come from; and what the whole run paid for
cache misses, for computing again, and for the host. Hours are those of UTC."""
_LEAST_SHARE = 0.05  # of what the slowest take more: parts that differ by less are not told of in the first sentence
_MOST_COHORTS = 12


def add_top(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    command = commands.add_parser(
        "top", help="what the slowest 1% spend their time on, beside the median", description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    command.add_argument("journal", metavar="JOURNAL", help="a journal's directory, or one of its segment files")
    command.add_argument("--run", dest="run_id", metavar="RUN", help="the run to read (default: the newest)")
    command.add_argument("--by", choices=("e2e", "ttft"), default="e2e", help="slow in what (default: e2e)")
    command.add_argument("--json", action="store_true", help="print one JSON object; times in nanoseconds")
    command.add_argument("--csv", metavar="FILE", help="also write a row a request there, with the parts of its time")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Look at a run.

    Raises:
        JournalError: the journal can't be read.
        InvalidConfig: no request has ended, or the file can't be written.
    """
    from .latency_reading import read_latency
    from .request_csv import write_csv
    from .request_table import request_table
    from .run_taxes import run_taxes
    from .tail_report import tail_report

    reading = read_latency(arguments.journal, arguments.run_id)
    offset = reading.started.wall_offset_ns
    table = request_table(reading.latency.breakdowns(), offset)
    report, taxes = tail_report(table, arguments.by), run_taxes(reading.latency, table)
    live = len(reading.latency.tracks.requests) - len(table)
    if arguments.csv is not None:
        write_csv(arguments.csv, reading.latency, offset)
    if arguments.csv == "-":
        return 0
    if arguments.json:
        print(json.dumps(_as_dict(reading, report, taxes, live)))
    else:
        print("\n".join(_lines(reading, report, taxes, live)))
    return 0


def verdict(report: TailReport) -> str:
    """What makes the slowest slow, in sentences."""
    slowest, median = report.slowest, report.median
    who = "The slowest request takes" if slowest.requests == 1 else f"The slowest {slowest.requests} requests take"
    more = slowest.mean - median.mean
    first = f"{who} {time(slowest.mean)}, the median ones {time(median.mean)}."
    if more <= 0:
        return f"{first} There is no tail."
    told = [(part, ns) for part, ns in report.excess.items() if abs(ns) >= _LEAST_SHARE * more]
    longer = ", ".join(f"{part} {change(ns)}" for part, ns in told if ns > 0)
    shorter = ", ".join(f"{part} {change(ns)}" for part, ns in told[::-1] if ns < 0)
    return f"{first} More of it went to {longer}" + (f"; less to {shorter}." if shorter else ".")


def _lines(reading: LatencyReading, report: TailReport, taxes: RunTaxes, live: int) -> list[str]:
    paint, columns = Paint(), width()
    error = reading.latency.model.median_error
    notes = "".join(f"; {note}" for note in reading.notes)
    head = (
        f"run {reading.run}: {plural(report.requests, 'request')}"
        + (f" ({live} more have not ended)" if live else "")
        + f", {report.by} p50 {time(report.p50)}, p99 {time(report.p99)}; a step's cost is known to {error:.0%}{notes}"
    )
    lines = [fold(head, columns, "  "), ""]
    lines += [paint(line, BOLD) for line in fold(verdict(report), columns).splitlines()]
    lines += ["", *_parts(report, paint, columns), "", *_named(report, paint)]
    for name, cohorts in report.cohorts.items():
        if len(cohorts) > 1:
            lines += ["", *_cohorts(name, cohorts, report, paint)]
    return [*lines, "", *_taxes(taxes, columns)]


def _parts(report: TailReport, paint: Paint, columns: int) -> list[str]:
    slowest, median = report.slowest, report.median
    head = f"{'':<22}{f'slowest {slowest.requests}':>16}{f'median {median.requests}':>15}{'more':>9}"
    lines = [paint(head, DIM)]
    largest = max(report.excess.values(), default=0.0)
    for part, ns in report.excess.items():
        shown = bar(ns, largest, columns - len(head) - 2)
        row = f"{part:<22}{_of(slowest, part):>16}{_of(median, part):>15}{change(ns):>9}"
        lines.append(f"{row}  {paint(shown, YELLOW)}".rstrip())
    lines.append(f"{'':<22}{time(slowest.mean):>11}{'':5}{time(median.mean):>10}{'':5}"
                 f"{change(slowest.mean - median.mean):>9}")  # fmt: skip
    return lines


def _of(group: Group, part: str) -> str:
    """A part's time, and its share of the group's."""
    ns = group.parts[part]
    return f"{time(ns)} {share(round(ns), round(group.mean)):>4}"


def _named(report: TailReport, paint: Paint) -> list[str]:
    lines = [paint("the slowest, for nano-trace explain", DIM)]
    for named in report.named:
        name = safe(named.request, 38)
        lines.append(f"{name:<38}{time(named.time):>8}  {named.part} {share(named.part_ns, round(named.time))}")
    return lines


def _cohorts(name: str, cohorts: list[Cohort], report: TailReport, paint: Paint) -> list[str]:
    lines = [paint(f"{name:<20}{'requests':>9}{'slowest':>9}{'p50':>8}{'p99':>8}  most of its time", DIM)]
    shown = cohorts
    if len(cohorts) > _MOST_COHORTS:
        # Those with most of the slowest, in their own order.
        kept = sorted(range(len(cohorts)), key=lambda i: (-cohorts[i].slowest, -cohorts[i].p99))[:_MOST_COHORTS]
        shown = [cohorts[i] for i in sorted(kept)]
    for c in shown:
        row = f"{c.label:<20}{c.requests:>9}{c.slowest:>9}{time(c.p50):>8}{time(c.p99):>8}"
        # More than twice its share of the slowest.
        much = c.slowest * report.requests > 2 * c.requests * report.slowest.requests
        lines.append(paint(f"{row}  {c.part} {c.part_share:.0%}", *([YELLOW] if much else [])))
    if len(cohorts) > len(shown):
        lines.append(f"and {len(cohorts) - len(shown)} more with fewer of the slowest")
    return lines


def _taxes(taxes: RunTaxes, columns: int) -> list[str]:
    cache, recompute, host = taxes.cache, taxes.recompute, taxes.host
    missed = ((cache.never_seen, "never seen"), (cache.evicted, "evicted"), (cache.sub_block, "sub-block"))
    reasons = ", ".join(f"{count:,} {name} ({share(count, cache.queried)})" for count, name in missed if count)
    looked = f"{cache.hit:,} of {cache.queried:,} prompt tokens hit ({share(cache.hit, cache.queried)})"
    lines = [f"prefix cache: {looked}" + (f"; missed {reasons}" if reasons else "")]
    causes = ", ".join(f"{count:,} {cause}" for cause, count in recompute.preemptions.items())
    again = share(recompute.recomputed_tokens, recompute.prefill_tokens)
    parts = ", ".join(f"{name} {share(ns, recompute.total_ns)}" for name, ns in recompute.part_ns.items() if ns)
    if causes or recompute.recomputed_tokens:
        lines.append(
            f"recompute tax: {recompute.recomputed_tokens:,} of {recompute.prefill_tokens:,} prefilled tokens "
            f"({again}) had been computed before; preemptions: {causes or 'none'}"
            + (f"; of all time {parts}" if parts else "")
        )
    else:
        lines.append("recompute tax: none; no sequence lost its place")
    lines.append(
        f"host share: {host.share:.1%} of the time in which sequences ran ({time(host.host)} of "
        f"{time(host.host + host.device)}, {plural(host.steps, 'step')})"
    )
    return [fold(line, columns, "  ") for line in lines]


def _as_dict(reading: LatencyReading, report: TailReport, taxes: RunTaxes, live: int) -> dict[str, object]:
    model = reading.latency.model
    return {
        "journal": reading.path,
        "run": reading.run,
        "live": live,
        "notes": list(reading.notes),
        "model": asdict(model),
        **asdict(report),
        **asdict(taxes),
    }
