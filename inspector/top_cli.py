"""`nano-trace top`: flags and words of it. The numbers are tail_report.py's and run_taxes.py's."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from .describe import plural
from .trace_text import BOLD, DIM, YELLOW, Paint, bar, change, cost_words, fold, safe, time, width
from .units import share

if TYPE_CHECKING:
    from .latency_reading import LatencyReading
    from .run_taxes import RunTaxes
    from .tail_culprits import TailCulprit
    from .tail_report import Cohort, Group, TailReport

DESCRIPTION = """\
Over all requests of a run that have ended: what the slowest 1% spend their time on, part by part, beside the median
ones (the tenth of the requests around the median); which cohorts they come from; and what the whole run paid for
cache misses, for computing again, and for the host. Hours are those of UTC."""
EXIT_OK = 0
_MOST_COHORTS = 12


@dataclass(frozen=True, slots=True)
class Top:
    """All that is shown of a run.

    Attributes:
        reading, report, culprits, taxes: what was found.
        looked_at: requests whose culprits these are.
        live: requests that have not ended (by ttft: have no first token), and are left out.
    """

    reading: LatencyReading
    report: TailReport
    culprits: list[TailCulprit]
    taxes: RunTaxes
    looked_at: int
    live: int


def add_top(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    command = commands.add_parser(
        "top", help="what the slowest 1%% spend their time on, beside the median", description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    command.add_argument("journals", metavar="JOURNAL", nargs="+", help="a journal's directory, or one of its segment "
                         "files; several, those of a fleet's replicas, count as one")  # fmt: skip
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
    if len(arguments.journals) > 1:
        from .fleet_top import run_fleet

        return run_fleet(arguments)
    from .latency_reading import read_latency
    from .request_csv import write_csv
    from .request_table import is_counted, request_table
    from .run_taxes import run_taxes
    from .tail_culprits import MOST_REQUESTS, tail_culprits
    from .tail_report import tail_report

    reading = read_latency(arguments.journals[0], arguments.run_id)
    offset, latency = reading.started.wall_offset_ns, reading.latency
    if arguments.csv is not None:
        write_csv(arguments.csv, latency, offset)
        if arguments.csv == "-":
            return EXIT_OK
    found = [breakdown for breakdown in latency.breakdowns() if is_counted(breakdown)]
    table = request_table(found, offset)
    report = tail_report(table, arguments.by)
    slowest = [found[row] for row in report.slow_rows][-MOST_REQUESTS:]
    culprits = tail_culprits(latency, slowest, report.causes, arguments.by)
    live = len(latency.tracks.all_requests) - report.requests
    top = Top(reading, report, culprits, run_taxes(latency, table.ended), len(slowest), live)
    print(json.dumps(_as_dict(top)) if arguments.json else "\n".join(_lines(top)))
    return EXIT_OK


def verdict(report: TailReport) -> str:
    """What makes the slowest slow, in sentences."""
    slowest, median = report.slowest, report.median
    who = "The slowest request takes" if slowest.requests == 1 else f"The slowest {slowest.requests} requests take"
    more = slowest.mean - median.mean
    first = f"{who} {time(slowest.mean)}, the median ones {time(median.mean)}."
    if more <= 0:
        return f"{first} There is no tail."
    longer = ", ".join(f"{part} {change(ns)}" for part, ns in report.causes.items())
    shorter = ", ".join(f"{part} {change(ns)}" for part, ns in report.relief.items())
    return f"{first} More of it went to {longer}" + (f"; less to {shorter}." if shorter else ".")


def _lines(top: Top) -> list[str]:
    paint, columns, report = Paint(), width(), top.report
    notes = "".join(f"; {note}" for note in top.reading.notes)
    without = "have no first token" if report.by == "ttft" else "have not ended"
    head = (
        f"run {top.reading.run}: {plural(report.requests, 'request')}"
        + (f" ({top.live} more {without})" if top.live else "")
        + f", {report.by} p50 {time(report.p50)}, p99 {time(report.p99)}; "
        + f"{cost_words(top.reading.latency.model)}{notes}"
    )
    lines = [fold(head, columns, "  "), *tail_lines(report, top.culprits, top.looked_at, paint, columns)]
    return [*lines, "", *tax_lines(top.taxes, columns)]


def tail_lines(
    report: TailReport, culprits: Sequence[TailCulprit], looked_at: int, paint: Paint, columns: int
) -> list[str]:
    """The verdict, the parts, the culprits of so many of the slowest, their names and the cohorts."""
    lines = ["", *(paint(line, BOLD) for line in fold(verdict(report), columns).splitlines())]
    lines += ["", *_parts(report, paint, columns)]
    if culprits:
        lines += ["", *_culprits(culprits, looked_at, paint, columns)]
    lines += ["", *_named(report, paint, columns)]
    for name, cohorts in report.cohorts.items():
        if len(cohorts) > 1:
            lines += ["", *_cohorts(name, cohorts, report, paint)]
    return lines


def _culprits(culprits: Sequence[TailCulprit], looked_at: int, paint: Paint, columns: int) -> list[str]:
    lines = [paint(f"culprits of the slowest {looked_at}", DIM)]
    for c in culprits:
        who = f"{c.kind} {_whose(c.request, c.replica, max(24, len(c.replica) + 13))}".rstrip()
        many = f" in {c.requests} of {looked_at}" if looked_at > 1 else ""
        did = safe(c.words.removeprefix(f"{c.kind}; "), 200)  # a rank is what it is called
        words = fold(f"{who}{many}: {did}", columns - 28)
        lines.append(f"{c.part:<22}{c.share:>4.0%}  " + words.replace("\n", "\n" + " " * 28))
    return lines


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


def _named(report: TailReport, paint: Paint, columns: int) -> list[str]:
    names = []
    for named in report.named:
        use = f" --use {named.use}" if named.use > 1 else ""
        names.append(_whose(named.request, named.replica, columns - 35 - len(use)) + use)
    room = max(38, *map(len, names))
    lines = [paint("the slowest, for nano-trace explain", DIM)]
    for name, named in zip(names, report.named, strict=True):
        lines.append(f"{name:<{room}}{time(named.time):>8}  {named.part} {share(named.part_ns, round(named.time))}")
    return lines


def _whose(request: str, replica: str, columns: int) -> str:
    """A request's id with its replica, as `explain` takes it, cut to fit: the id, never the replica."""
    if not replica:
        return safe(request, columns)
    if not request:
        return safe(f"of {replica}", 1000)
    return f"{safe(request, max(8, columns - len(replica) - 1))}@{safe(replica, 1000)}"


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


def tax_lines(taxes: RunTaxes, columns: int) -> list[str]:
    """What a run paid beside its work."""
    cache, recompute, host = taxes.cache, taxes.recompute, taxes.host
    missed = ((cache.never_seen, "never seen"), (cache.evicted, "evicted"), (cache.sub_block, "sub-block"))
    reasons = ", ".join(f"{count:,} {name} ({share(count, cache.queried)})" for count, name in missed if count)
    copied = f", {cache.copied:,} copied from siblings" if cache.copied else ""
    looked = f"{cache.hit:,} of {cache.queried:,} prompt tokens hit ({share(cache.hit, cache.queried)}){copied}"
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


def _as_dict(top: Top) -> dict[str, object]:
    reading = top.reading
    report = asdict(top.report)
    del report["slow_rows"]
    for group in (report["slowest"], report["median"]):
        group["parts"] = {part: group["parts"][part] for part in reading.latency.part_names}
    return {
        "journal": reading.path,
        "run": reading.run,
        "live": top.live,
        "notes": list(reading.notes),
        "model": asdict(reading.latency.model),
        **report,
        "culprits": [asdict(culprit) for culprit in top.culprits],
        **asdict(top.taxes),
    }
