"""`nano-trace export`: a journal's spans to an OTLP endpoint or a file, its metrics to Prometheus. Parses flags."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from ..errors import InvalidConfig
from ..telemetry.endpoint import PROTOCOLS, environment_endpoint, environment_headers, parse_endpoint, parse_header
from ..telemetry.exporter_order import LINGER_S
from .trace_text import safe

if TYPE_CHECKING:
    from ..telemetry.exporter_options import ExportOptions

DESCRIPTION = """\
Send a journal's spans to an OTLP endpoint (--otlp) or a file (--file), and serve its metrics to Prometheus
(--metrics-port). The journal is followed until the engine stops or its process is gone, and what was sent is kept in a
cursor file, so that an export that was ended goes on where it was.

After a kill the receiver may get one batch twice: that which it took when the cursor was not yet written. Span ids
follow from the journal, so the copies are equal. A file is cut back to the cursor, and has no copies.

Without --otlp, OpenTelemetry's variables OTEL_EXPORTER_OTLP_ENDPOINT, _PROTOCOL and _HEADERS are used where they are
set, also with TRACES_ in their names.

--perfetto writes a trace instead, of what the journal holds now: tracks for sequences and steps, counters, and arrows
from who was preempted to who got the blocks."""
KEEP_HELP = (
    "a rule for which requests' spans to keep, decided when a request ends; may be given more than once, and one that "
    "holds is enough: slow=SECONDS, ttft=SECONDS, percent=0..100, failed, aborted, preempted, parent; `unsampled` "
    "keeps traces whose caller did not sample them (default: all that were sampled)"
)


def add_export(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    command = commands.add_parser(
        "export", help="send spans to OTLP or a file, serve metrics", description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    command.add_argument("journal", metavar="JOURNAL", help="a journal's directory, or one of its segment files")
    command.add_argument("--run", dest="run_id", metavar="RUN", help="the run to read (default: the newest)")
    where = command.add_argument_group("where to")
    where.add_argument("--otlp", metavar="URL", help="http://HOST:4318, or grpc://HOST:4317; https and grpcs for TLS")
    where.add_argument("--otlp-protocol", choices=PROTOCOLS, help="default: as the URL says; http:// means HTTP")
    where.add_argument("--header", action="append", default=[], metavar="NAME=VALUE", help="sent with every batch")
    where.add_argument("--file", "--spans", metavar="FILE", help="append spans there: OTLP's JSON, a TracesData "
                       "message a line")  # fmt: skip
    where.add_argument("--perfetto", metavar="FILE", help="write what is there as a trace for Perfetto's UI, alone; "
                       "compressed if FILE ends in .gz")  # fmt: skip
    where.add_argument("--csv", metavar="FILE", help="write a row a request there, with the parts of its time (-: to "
                       "the standard output), of what the journal holds now; goes alone")  # fmt: skip
    where.add_argument("--metrics-port", type=int, metavar="N", help="serve /metrics there; 0: any free port")
    where.add_argument("--metrics-host", default="127.0.0.1", metavar="ADDRESS", help="default: 127.0.0.1")
    what = command.add_argument_group("what")
    what.add_argument("--keep", action="append", default=[], metavar="RULE", help=KEEP_HELP.replace("%", "%%"))
    what.add_argument("--from-start", action="store_true", help="pass over a cursor that is there")
    what.add_argument("--cursor", metavar="FILE", help="keeps the progress (default: beside the journal, or --file)")
    how = command.add_argument_group("how")
    following = how.add_mutually_exclusive_group()
    following.add_argument("--follow", "-f", action="store_true", help="as the journal grows (default)")
    following.add_argument("--once", action="store_true", help="export what is there, and end")
    how.add_argument("--remote", action="store_true", help="the engine's process can't be seen from here: don't look")
    how.add_argument("--queue", type=_count, default=100_000, metavar="N", help="spans kept while the endpoint is away")
    how.add_argument("--batch", type=_count, default=512, metavar="N", help="spans in a batch (default: 512)")
    how.add_argument("--drain", type=_seconds, default=10.0, metavar="S", help="for what is left at the end")
    how.add_argument("--linger", type=_seconds, metavar="S", help="serve metrics so long after the engine's end "
                     f"(default: {LINGER_S:.0f}, or 0 with --once)")  # fmt: skip
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Export.

    Returns:
        0; 1 where spans were lost, or are left for the next export; 2 for what can't work.

    Raises:
        JournalError: the journal, or the cursor, can't be read.
    """
    from ..telemetry.exporter_options import Export, exit_code, log_to_stderr, report
    from ..telemetry.reader import JournalReader

    try:
        _check_follow(arguments)
        if arguments.perfetto is not None:
            return _run_perfetto(arguments)
        if arguments.csv is not None:
            from .request_csv import run_export

            return run_export(arguments)
        with log_to_stderr("nano-trace export: "):
            reader = JournalReader(arguments.journal, arguments.run_id)
            options = options_from(arguments)
            export = Export(options)
            try:
                if export.metrics_port is not None:
                    _say(f"metrics at http://{arguments.metrics_host}:{export.metrics_port}/metrics")
                with export.handle_signals():
                    outcome = export.run(reader)
                    if outcome is not None and options.sends_spans:
                        _say(report(outcome, reader.run))
                    export.linger()
            finally:
                export.close()
    except InvalidConfig as error:
        _say(str(error))
        return 2
    return exit_code(outcome)


def _check_follow(arguments: argparse.Namespace) -> None:
    """Refuse to follow for a file that is written once.

    Raises:
        InvalidConfig: it was asked for.
    """
    once = next((name for name in ("perfetto", "csv") if getattr(arguments, name) is not None), None)
    if once is not None and arguments.follow:
        raise InvalidConfig(f"--{once} writes what the journal holds now: leave --follow out, and export again later")


def _run_perfetto(arguments: argparse.Namespace) -> int:
    """Write a trace for Perfetto; the other flags have no meaning for it.

    Raises:
        InvalidConfig: one of them is given, or the file can't be written.
    """
    from ..telemetry.reader import JournalReader
    from .perfetto_export import write_perfetto

    named = ("otlp", "file", "csv", "metrics_port", "keep", "cursor", "from_start")
    given = {name: getattr(arguments, name, None) for name in named}
    other = next((name for name, value in given.items() if value not in (None, []) and value is not False), None)
    if other is not None:
        raise InvalidConfig(f"--perfetto and --{other.replace('_', '-')}: one at a time; the trace is a file alone")
    written = write_perfetto(JournalReader(arguments.journal, arguments.run_id), arguments.perfetto)
    _say(f"{arguments.perfetto}: {written}; open it in Perfetto's UI (ui.perfetto.dev)")
    return 0


def options_from(arguments: argparse.Namespace) -> ExportOptions:
    """What the flags and OpenTelemetry's variables come to.

    Raises:
        InvalidConfig: a URL, header or port that can't be used.
    """
    from ..telemetry.exporter_options import ExportOptions
    from ..telemetry.exporter_settings import ExporterSettings

    url, protocol = arguments.otlp, arguments.otlp_protocol
    if url is None and arguments.file is None:
        url, named = environment_endpoint(os.environ)
        protocol = protocol or named
    if protocol is not None and url is None:
        raise InvalidConfig(f"--otlp-protocol {protocol}: without an endpoint; give --otlp URL")
    port = arguments.metrics_port
    if port is not None and not 0 <= port <= 65535:
        raise InvalidConfig(f"--metrics-port {port}: must be from 0 to 65535")
    follow = not arguments.once
    return ExportOptions(
        journal=arguments.journal,
        run=arguments.run_id,
        endpoint=parse_endpoint(url, protocol) if url is not None else None,
        headers=environment_headers(os.environ) | dict(map(parse_header, arguments.header)),
        file=arguments.file,
        metrics_port=port,
        metrics_host=arguments.metrics_host,
        keep=tuple(arguments.keep),
        cursor=arguments.cursor,
        from_start=arguments.from_start,
        linger_s=arguments.linger if arguments.linger is not None else LINGER_S if follow else 0.0,
        settings=ExporterSettings(
            follow=follow,
            batch_spans=arguments.batch,
            queue_spans=arguments.queue,
            drop_when_full=follow and port is not None,
            drain_s=arguments.drain,
            watch_process=not arguments.remote,
        ),
    )


def _say(text: str) -> None:
    print(f"nano-trace export: {safe(text, 10_000)}", file=sys.stderr, flush=True)


def _count(text: str) -> int:
    """A whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 1")
    return number


def _seconds(text: str) -> float:
    """A number of seconds of at least 0."""
    number = float(text)
    if not 0.0 <= number < 1e9:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 0")
    return number
