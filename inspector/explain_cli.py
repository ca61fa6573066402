"""`nano-trace explain`: why a request took as long as it did. Parses flags; the verdict is telemetry's."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import JournalError
from ..telemetry.segment_files import is_there
from .describe import plural
from .trace_text import DIM, Paint, fold, tells_error, width

if TYPE_CHECKING:
    from ..telemetry.step_costs import StepCostModel
    from .explained import Explained
    from .latency_reading import LatencyReading

T = TypeVar("T")
DESCRIPTION = """\
Why a request took as long as it did: the reason in plain sentences, then what it did when, where its time went to the
nanosecond, and who it was spent on. Without a REQUEST, the slowest one is explained.

Several journals, those of a fleet's replicas, are read as one, on one clock. A request whose id several replicas have
is called ID@REPLICA; what a router tried on several replicas is told together.

Spans (--spans: a file that `nano-trace export --file` wrote) tell who waited for what and who preempted whom, but not
what others added to a step."""


def add_explain(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    command = commands.add_parser(
        "explain", help="why was a request slow: the verdict, the waterfall, the culprits", description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    command.add_argument("names", metavar="JOURNAL", nargs="*", help="a journal's directory, or a segment of it, or "
                         "several (none with --spans); then, if wanted, a REQUEST: its id")  # fmt: skip
    command.add_argument("--run", dest="run_id", metavar="RUN", help="the run to read (default: the newest)")
    command.add_argument("--spans", metavar="FILE", help="read spans (OTLP's JSON, a message a line) instead of a "
                         "journal")  # fmt: skip
    which = command.add_mutually_exclusive_group()
    which.add_argument("--slowest", type=_count, metavar="N", help="the N slowest")
    which.add_argument("--p99", action="store_true", help="the one at the 99th percentile")
    command.add_argument("--use", type=_count, metavar="N", help="of a REQUEST whose id was used again: the Nth one "
                         "(default: the last)")  # fmt: skip
    command.add_argument("--by", choices=("e2e", "ttft"), default="e2e", help="from arrival to the end, or to the "
                         "first token (default: e2e)")  # fmt: skip
    command.add_argument("--json", action="store_true", help="print one JSON object; times in nanoseconds")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Explain.

    Raises:
        JournalError: the journal or the file can't be read, or does not hold what is asked for.
    """
    if arguments.spans is not None:
        return _run_spans(arguments)
    if not arguments.names:
        raise JournalError("explain: give a journal, or --spans FILE")
    from .explained import explain, left_out_words
    from .latency_reading import read_latency, require_requests

    arguments.journal, *others = arguments.names
    if len(others) > 1:
        return _run_fleet(arguments)
    reading = read_latency(arguments.journal, arguments.run_id, may_be_empty=True)
    arguments.request = others[0] if others else None
    if others and others[0] not in reading.latency.tracks.requests and is_there(others[0]):
        return _run_fleet(arguments)
    require_requests(reading)
    _check_choice(arguments, arguments.request)
    chosen, left_out = _chosen(arguments, reading)
    found = explain(reading, chosen, arguments.by)
    started, model = reading.started, reading.latency.model
    head = f"run {reading.run}, {started.model}: {plural(len(reading.latency.tracks.all_requests), 'request')}"
    head += left_out_words(left_out, arguments.by)
    notes = [*reading.notes, *([_error_of(model)] if model.num_steps else [])]
    about = {
        "run": reading.run, "engine": reading.engine, "notes": list(reading.notes), "model": _model(model),
        "left_out": left_out,
    }  # fmt: skip
    return _print(arguments, found, head, notes, about)


def _run_fleet(arguments: argparse.Namespace) -> int:
    """Several journals. The last name is a request's, unless it is a path."""
    from .fleet_explain import as_json, lines, named, slowest, tell
    from .fleet_reading import read_fleet

    *paths, last = arguments.names
    name = None if is_there(last) else last
    fleet = read_fleet(arguments.names if name is None else paths, arguments.run_id)
    _check_choice(arguments, name)
    if name is not None:
        asked, left_out = named(fleet, name, arguments.use, arguments.by), 0
    else:
        asked, left_out = slowest(fleet, arguments.slowest or 1, arguments.p99, arguments.by)
    told = tell(fleet, asked, arguments.by)
    if arguments.json:
        print(json.dumps(as_json(fleet, told, arguments.by, left_out)))
    else:
        print("\n".join(lines(fleet, told, arguments.by, left_out, Paint(), width())))
    return 0


def _run_spans(arguments: argparse.Namespace) -> int:
    from .explain_spans import explain_spans, read_spans
    from .explained import ranked, require

    if len(arguments.names) > 1:
        raise JournalError("explain: give a journal or --spans FILE, not both")
    traces = read_spans(arguments.spans, arguments.run_id)
    name = arguments.names[0] if arguments.names else None
    _check_choice(arguments, name)
    found = list(explain_spans(traces, arguments.by))
    if name is not None:
        require(name, (one.request for one in found), arguments.spans)
        chosen = [_use([one for one in found if one.request == name], name, arguments.use)]
    else:
        totals = {index: one.total_ns for index, one in enumerate(found)}
        chosen = [found[index] for index in ranked(totals, arguments.slowest or 1, arguments.p99)]
    if not chosen:
        raise JournalError(f"{arguments.spans}: no request has a first token")
    head = f"{arguments.spans}: {plural(len(found), 'request')}"
    note = "from spans: what others added to the steps is not told apart from its own work"
    return _print(arguments, chosen, head, [note], {"notes": [note], "model": None})


def _check_choice(arguments: argparse.Namespace, name: str | None) -> None:
    if name is not None and (arguments.slowest or arguments.p99):
        raise JournalError(f"explain: {name} with {'--p99' if arguments.p99 else '--slowest'}: one or the other")
    if name is None and arguments.use is not None:
        raise JournalError("explain: --use is one of a request's: name the request too")


def _use(same: list[T], name: str, number: int | None) -> T:
    """The Nth of those that had an id; None: the last."""
    if number is not None and number > len(same):
        times = "once" if len(same) == 1 else f"{len(same)} times"
        raise JournalError(f"explain: --use {number}: {name!r} was used {times}")
    return same[-1 if number is None else number - 1]


def _chosen(arguments: argparse.Namespace, reading: LatencyReading) -> tuple[list[Any], int]:
    """The breakdowns asked for, and how many requests were left out: those that live are explained only by name."""
    from .explained import ranked, require
    from .latency_reading import refusal

    latency, ttft = reading.latency, arguments.by == "ttft"
    requests = latency.tracks.requests
    if arguments.request is not None:
        turned_away = reading.refused.get(arguments.request)
        if turned_away is not None and arguments.request not in requests:
            raise JournalError(f"{arguments.journal}: request {refusal(turned_away)}; it took no time in the engine")
        require(arguments.request, requests, arguments.journal)
        same = [request for request in latency.tracks.all_requests if request.request == arguments.request]
        found = latency.breakdown(_use(same, arguments.request, arguments.use))
        if ttft and not found.ttft_ns:
            raise JournalError(f"{arguments.journal}: request {arguments.request!r} has no first token")
        return [found], 0
    every = [b for b in latency.breakdowns() if (b.ttft_ns if ttft else b.ended)]
    if not every:
        if ttft:
            raise JournalError(f"{arguments.journal}: no request has a first token")
        names = ", ".join(list(requests)[:5]) + (f" and {len(requests) - 5} more" if len(requests) > 5 else "")
        raise JournalError(f"{arguments.journal}: no request has ended; name one of those under way: {names}")
    totals = {index: b.ttft_ns if ttft else b.total_ns for index, b in enumerate(every)}
    chosen = [every[index] for index in ranked(totals, arguments.slowest or 1, arguments.p99)]
    return chosen, len(latency.tracks.all_requests) - len(every)


def _print(
    arguments: argparse.Namespace, found: list[Explained], head: str, notes: list[str], about: dict[str, Any]
) -> int:
    from .explain_view import explained_lines
    from .explained import VERSION, as_dict

    if arguments.json:
        requests = [as_dict(one) for one in found]
        print(json.dumps({"version": VERSION, "by": arguments.by, **about, "requests": requests}))
        return 0
    paint, columns = Paint(), width()
    for index, one in enumerate(found):
        lines = explained_lines(one, paint, columns)
        print("\n".join([""] * bool(index) + lines))
    print("\n" + "\n".join(paint(line, DIM) for line in fold("; ".join([head, *notes]), columns).splitlines()))
    return 0


def _error_of(model: StepCostModel) -> str:
    fitted = f"shared steps are divided by a cost model fitted to {plural(model.num_steps, 'step')}"
    if not tells_error(model):
        return f"{fitted}, too few to tell its error"
    return (
        f"{fitted}: half of them are off by less than {model.median_error:.1%}, nine of ten by less than "
        f"{model.p90_error:.1%}"
    )


def _model(model: StepCostModel) -> dict[str, float | int]:
    from dataclasses import asdict

    return asdict(model)


def _count(text: str) -> int:
    """A whole number of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number of at least 1")
    return number
