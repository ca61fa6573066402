"""`nano-trace compare A B`: flags and words of it. The numbers are comparison.py's."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from .describe import plural
from .trace_text import BOLD, DIM, GREEN, RED, Paint, change, cost_words, fold, safe, time, width

if TYPE_CHECKING:
    from .bootstrap import Difference
    from .comparison import Comparison, Side

DESCRIPTION = """\
Two runs beside each other: time from arrival to end (e2e), to the first token (ttft) and between tokens (itl, a
request's mean), and the parts of these, in the mean, the median and the 99th percentile, over the requests that have
ended. The interval is where B - A lies in 95% of 2,000 samples drawn again from the requests (percentile bootstrap).

A line is marked as changed where B - A is more than chance makes of all lines together. Requests that followed each
other and waited alike count as fewer than they are; a line with fewer than five independent ones, or fewer than five
beyond its p50 or p99, is marked as few and is not judged."""


def add_compare(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    command = commands.add_parser(
        "compare", help="two runs side by side: which parts of latency changed, and by how much",
        description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    command.add_argument("a", metavar="A", help="a journal's directory, or one of its segment files")
    command.add_argument("b", metavar="B", help="another, or the same with other --run-b")
    command.add_argument("--run-a", metavar="RUN", help="the run of A to read (default: the newest)")
    command.add_argument("--run-b", metavar="RUN", help="the run of B to read (default: the newest)")
    for side in "ab":
        command.add_argument(f"--also-{side}", metavar="JOURNAL", action="append", default=[],
                             help=f"a further journal of {side.upper()}; may be repeated")  # fmt: skip
    command.add_argument("--by", choices=("e2e", "ttft"), default="e2e", help="whose parts (default: e2e)")
    command.add_argument("--seed", type=_seed, default=0, metavar="N", help="of the resamples (default: 0)")
    command.add_argument("--json", action="store_true", help="print one JSON object; times in nanoseconds")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compare.

    Raises:
        JournalError: one of the journals can't be read.
        InvalidConfig: one has no request that has ended.
    """
    from .comparison import as_dict, compare, side
    from .latency_reading import read_latency

    sides = []
    for path, run_id, also in (
        (arguments.a, arguments.run_a, arguments.also_a), (arguments.b, arguments.run_b, arguments.also_b)
    ):  # fmt: skip
        if also:
            from .fleet_reading import read_fleet

            fleet = read_fleet([path, *also], run_id)
            first, *others = (replica.reading for replica in fleet.replicas)
            sides.append(side(first, others, fleet.notes(), fleet.num_tried_again))
        else:
            sides.append(side(read_latency(path, run_id)))
    a, b = sides
    comparison = compare(a, b, arguments.by, arguments.seed)
    if arguments.json:
        print(json.dumps(as_dict(comparison)))
    else:
        print("\n".join(_lines(comparison, Paint())))
    return 0


def _lines(c: Comparison, paint: Paint) -> list[str]:
    columns = width()
    lines = [fold(_side("A", c.a), columns, "   "), fold(_side("B", c.b), columns, "   ")]
    if c.settings:
        told = ", ".join(f"{name} {_value(a)} -> {_value(b)}" for name, a, b in c.settings)
        lines.append(fold(f"B was started with other settings: {told}", columns, "   "))
    if _other_work(c.a, c.b):
        lines.append(fold("The requests are not alike in number or length: a change may be theirs.", columns))
    lines += ["", *(paint(line, BOLD) for line in fold(verdict(c), columns).splitlines()), ""]
    lines.append(paint(f"{'':<27}{'A':>8}{'B':>8}{'B - A':>9}  95% interval", DIM))
    for names in (c.measures, c.parts):
        for name, named in names.items():
            for i, (statistic, difference) in enumerate(named.items()):
                if difference.a or difference.b:
                    lines.append(_line(name if i == 0 else "", statistic, difference, paint))
    return lines


def verdict(c: Comparison) -> str:
    """What changed, in sentences."""
    whole, what = c.measures.get(c.by), "requests take" if c.by == "e2e" else "first tokens take"
    if whole is None:
        return f"There is nothing to compare: one of the runs has no {c.by}."
    mean = whole["mean"]
    if mean.changed:
        more = "longer" if mean.delta > 0 else "less"
        per_cent = f"{abs(mean.delta) / mean.a:.0%} " if mean.a else ""
        first = (
            f"B's {what} {per_cent}{more}: {time(mean.a)} -> {time(mean.b)} in the mean "
            f"({change(mean.delta)}, {change(mean.low)} to {change(mean.high)})."
        )
    elif not mean.judged:
        first = (
            f"There are too few requests, or they are too much alike, to tell whether {c.by} changed: "
            f"{time(mean.a)} and {time(mean.b)} in the mean."
        )
    else:
        first = f"No change of {c.by} can be told from chance: {time(mean.a)} and {time(mean.b)} in the mean."
    changed = c.changed
    if changed:
        parts = ", ".join(f"{part} {change(difference.delta)}" for part, _, difference in changed)
        return f"{first} What changed: {parts}."
    others = [f"{name} {statistic}" for name, named in c.measures.items() for statistic, d in named.items()
              if d.changed and (name, statistic) != (c.by, "mean")]  # fmt: skip
    if others:
        return f"{first} No part's mean changed, but {', '.join(others)} did."
    return f"{first} No part changed." if mean.judged else first


def _side(name: str, side: Side) -> str:
    live = f" ({side.live} more have not ended: only their first tokens count)" if side.live else ""
    runs = ", ".join(reading.run for reading in side.readings)
    whose = [f"{safe(reading.path, 1000)}: " if side.also else "" for reading in side.readings]
    told = [f"{name}{'; '.join([cost_words(reading.latency.model), *reading.notes])}"
            for name, reading in zip(whose, side.readings, strict=True)]  # fmt: skip
    told += side.notes
    if side.tried_again:
        told.append(f"further tries of a request among all of these: {side.tried_again}")
    return (
        f"{name}  run{'s' if side.also else ''} {runs}: {plural(len(side.ended), 'request')}{live}, in the mean "
        f"{side.ended.prompt_tokens.mean():.0f} prompt and {side.ended.output_tokens.mean():.0f} output tokens; "
        f"{'; '.join(told)}"
    )


def _other_work(a: Side, b: Side) -> bool:
    """Whether the two had other things to do, by more than 5%."""
    pairs = (
        (len(a.ended), len(b.ended)),
        (float(a.ended.prompt_tokens.mean()), float(b.ended.prompt_tokens.mean())),
        (float(a.ended.output_tokens.mean()), float(b.ended.output_tokens.mean())),
    )
    return any(abs(x - y) > 0.05 * max(x, y) for x, y in pairs)


def _line(name: str, statistic: str, d: Difference, paint: Paint) -> str:
    interval = f"{change(d.low)}..{change(d.high)}"
    mark = "changed" if d.changed else "" if d.judged else "few"
    line = f"{name:<22}{statistic:<5}{time(d.a):>8}{time(d.b):>8}{change(d.delta):>9}  {interval:<16} {mark}".rstrip()
    return paint(line, RED if d.delta > 0 else GREEN) if d.changed else line


def _value(value: object) -> str:
    return "-" if value is None else safe(str(value))


def _seed(text: str) -> int:
    """A whole number of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number of at least 0")
    return int(text)
