"""`nano-trace`: questions to a journal from the command line. Reads files only; it needs no engine and no model."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from ..errors import AuditError, InvalidConfig, JournalError
from ..telemetry.audit import Audit
from ..telemetry.event_json import event_as_dict
from ..telemetry.events import (
    AnyEvent,
    BreakpointHit,
    EngineError,
    EnginePaused,
    EngineStarted,
    JournalDropped,
    Keyframe,
    RequestArrived,
    RequestFinished,
    RequestRefused,
    SequencePreempted,
    StatusChanged,
    StepRetried,
    SwapFinished,
)
from ..telemetry.reader import JournalReader
from .compare_cli import add_compare
from .describe import describe, plural, sequences_of
from .explain_cli import add_explain
from .export_cli import add_export
from .free_order import FreeOrderParser
from .replay_cli import add_replay
from .short_pauses import rare_collections
from .top_cli import add_top
from .trace_output import ClosedOutput, replace_unknown, silence_output
from .trace_text import safe

EXIT_OK, EXIT_VIOLATION, EXIT_UNREADABLE = 0, 1, 2
MOST_OF_A_MESSAGE = 10_000  # characters
RED, YELLOW, GREEN, DIM, RESET = "\x1b[31m", "\x1b[33m", "\x1b[32m", "\x1b[2m", "\x1b[0m"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand.

    Args:
        argv: arguments without the program's name; None takes the process's own.

    Returns:
        0: done; 1: `check` found a contradiction, or `replay` a divergence; 2: wrong usage, a journal that can't be
        read, or an output that can't be written.
    """
    if argv is None:
        rare_collections()
    replace_unknown()
    arguments = _parser().parse_args(argv)
    if sys.stdout is None:
        sys.stdout = ClosedOutput()
    try:
        arguments.code = arguments.run(arguments)
        sys.stdout.flush()
    except (JournalError, InvalidConfig) as error:
        print(f"nano-trace: {safe(str(error), MOST_OF_A_MESSAGE)}", file=sys.stderr)
        return EXIT_UNREADABLE
    except BrokenPipeError:
        silence_output()  # its reader has seen enough: nothing is wrong
    except OSError as error:
        if error.filename is not None:  # not the output
            raise
        silence_output()
        print(f"nano-trace: the output can't be written ({error.strerror or error})", file=sys.stderr)
        return EXIT_UNREADABLE
    except KeyboardInterrupt:
        return EXIT_OK
    code: int = arguments.code
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nano-trace", description="Ask a journal what the engine did.")
    parser.set_defaults(code=EXIT_OK)  # of a command whose reader goes before it ends
    commands: argparse._SubParsersAction[argparse.ArgumentParser] = parser.add_subparsers(
        required=True, metavar="COMMAND", parser_class=FreeOrderParser
    )

    tail = _command(commands, "tail", "print what happened, one line an event")
    tail.add_argument("--json", action="store_true", help="print each event as one line of JSON, with its names")
    tail.add_argument("--follow", "-f", action="store_true", help="go on as the journal grows, until the engine stops")
    tail.add_argument("--seq", type=int, metavar="N", help="only events that name sequence N")
    tail.add_argument("--request", metavar="ID", help="only events of this request and its sequences")
    tail.set_defaults(run=_tail)

    check = _command(commands, "check", "audit: transitions, blocks and counts must add up")
    check.set_defaults(run=_check)

    add_export(commands)
    add_explain(commands)
    add_top(commands)
    add_compare(commands)
    add_replay(commands)
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, purpose: str
) -> argparse.ArgumentParser:
    """A subcommand that reads a journal."""
    command = commands.add_parser(name, help=purpose, description=purpose[0].upper() + purpose[1:] + ".")
    command.add_argument("journal", metavar="JOURNAL", help="a journal's directory, or one of its segment files")
    command.add_argument("--run", dest="run_id", metavar="RUN", help="the run to read (default: the newest)")
    return command


def _tail(arguments: argparse.Namespace) -> int:
    reader = JournalReader(arguments.journal, arguments.run_id)
    wanted = _Filter(arguments.seq, arguments.request)
    lines = _Lines(colour=sys.stdout.isatty() and not os.environ.get("NO_COLOR"))
    for frame in reader.frames(follow=arguments.follow):
        if frame.gap:
            print(f"nano-trace: {frame.gap}", file=sys.stderr)
        for event in frame.events:
            shown = wanted(event)
            if arguments.json:
                if shown:
                    print(_as_json(event))
            else:
                line = lines(event)
                if shown:
                    print(line)
        if arguments.follow:
            sys.stdout.flush()
    if reader.torn_bytes:
        print(f"nano-trace: the journal ends in an unfinished frame of {reader.torn_bytes} bytes", file=sys.stderr)
    return EXIT_OK


def _check(arguments: argparse.Namespace) -> int:
    reader = JournalReader(arguments.journal, arguments.run_id)
    audit, frames, gaps, lost = Audit(), 0, 0, 0
    try:
        for frame in reader.frames():
            if frame.gap:
                audit.lose()
                gaps += 1
            audit.apply_all(frame.events)
            lost += sum(event.events for event in frame.events if isinstance(event, JournalDropped))
            frames += 1
    except AuditError as error:
        arguments.code = EXIT_VIOLATION
        print(safe(f"run {reader.run}: {error}", MOST_OF_A_MESSAGE))
        return EXIT_VIOLATION
    if audit.state.started is None:
        held = (
            f"{plural(frames, 'frame')} without engine.started and without a keyframe" if frames else "no whole frame"
        )
        raise JournalError(f"{arguments.journal}: run {reader.run}: nothing to check: it holds {held}")
    notes = []
    if not reader.complete:
        notes.append("its beginning is no longer on disk")
    if lost:
        notes.append(f"{plural(lost, 'event')} were lost by the writer")
    if gaps:
        notes.append(f"{plural(gaps, 'gap')} of deleted segments")
    if reader.torn_bytes:
        notes.append(f"an unfinished frame of {reader.torn_bytes} bytes at the end was left out")
    if audit.state.stopped is None:
        live = len(audit.state.sequences)
        notes.append(f"the engine still runs or died, {plural(live, 'sequence')} live")
    totals = audit.state.totals.counts
    print(
        f"run {reader.run}: ok: {plural(audit.events, 'event')} in {plural(frames, 'frame')}, "
        f"{plural(totals['steps'], 'step')}, {plural(totals['requests_arrived'], 'request')}, "
        f"{plural(totals['preemptions'], 'preemption')}" + "".join(f"; {note}" for note in notes)
    )
    return EXIT_OK


class _Filter:
    """Whether an event is asked for; learns which sequences a request has."""

    def __init__(self, seq: int | None, request: str | None) -> None:
        self._seq = seq
        self._request = request
        self._of_request: set[int] = set()

    def __call__(self, event: AnyEvent) -> bool:
        request = self._request
        if request is not None:
            if isinstance(event, RequestArrived) and event.request == request:
                self._of_request.update(event.seqs)
            elif isinstance(event, Keyframe):
                self._of_request.update(seq.seq for seq in event.sequences if seq.request == request)
            elif isinstance(event, StatusChanged) and event.request == request:
                self._of_request.add(event.seq)
        named = sequences_of(event)
        if self._seq is not None and self._seq not in named:
            return False
        return request is None or getattr(event, "request", "") == request or not self._of_request.isdisjoint(named)


class _Lines:
    """Events as lines: seconds since the engine started (or since the first event here), step, words."""

    def __init__(self, colour: bool) -> None:
        self._colour = colour
        self._start: int | None = None
        self._t = 0
        self._step = 0

    def __call__(self, event: AnyEvent) -> str:
        if isinstance(event, Keyframe | EngineStarted):
            started = event if isinstance(event, EngineStarted) else event.started
            self._start = started.t
        self._t = getattr(event, "t", self._t)
        self._step = getattr(event, "step", self._step)
        if self._start is None:
            self._start = self._t
        place = f"{(self._t - self._start) / 1e9:+12.6f}s  step {self._step:<6d}"
        words = describe(event)
        if not self._colour:
            return f"{place} {words}"
        return f"{DIM}{place}{RESET} {_colour_of(event)}{words}{RESET}"


def _colour_of(event: AnyEvent) -> str:
    if isinstance(event, EngineError | JournalDropped | RequestRefused):
        return RED
    if isinstance(event, RequestFinished):
        return RED if event.finish_reason == "error" else GREEN
    if (isinstance(event, StatusChanged) and event.new == "ERROR") or (isinstance(event, SwapFinished) and event.error):
        return RED
    return YELLOW if isinstance(event, SequencePreempted | EnginePaused | BreakpointHit | StepRetried) else ""


def _as_json(event: AnyEvent) -> str:
    """One event as a JSON object."""
    return json.dumps(event_as_dict(event), separators=(",", ":"))


if __name__ == "__main__":
    sys.exit(main())
