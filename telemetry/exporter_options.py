"""What an export is asked to do, and its parts put together: journal, spans, metrics, where they go, and the end."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from ..errors import InvalidConfig
from .cursor import CURSOR_SUFFIX, Cursor, CursorFile, cursor_path, unfinished_runs
from .endpoint import Endpoint
from .exporter import Exporter
from .exporter_file import FileSink
from .exporter_linger import Lingering
from .exporter_metrics import ServedMetrics
from .exporter_otlp import otlp_sink
from .exporter_sender import Sink
from .exporter_settings import ExporterSettings, Outcome
from .reader import JournalReader
from .segment_files import list_runs
from .spans import SpanBuilder
from .tail_rules import TailRules

EXIT_OK, EXIT_LOST = 0, 1

logger = logging.getLogger("nanolens.exporter")


@dataclass(frozen=True)
class ExportOptions:
    """One export, as it is asked for.

    Attributes:
        journal: a journal's directory, or one of its segments.
        run: the run to export; None: the one that was written to last.
        endpoint: a receiver of OTLP, or None.
        headers: sent to it with every batch.
        file: path of a file for the spans, in place of an endpoint, or None.
        metrics_port: where Prometheus finds the metrics, 0 for any free port; None: nowhere.
        metrics_host: the address that it is bound to.
        keep: tail rules (telemetry/tail_rules.py).
        cursor: the file that keeps the progress; None: beside the journal, or beside `file`.
        from_start: whether to pass over a cursor that is there.
        linger_s: seconds for which the metrics are served after the end, so that scrapes see an engine that is down.
        settings: how the exporter works.
    """

    journal: str
    run: str | None = None
    endpoint: Endpoint | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    file: str | None = None
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    keep: tuple[str, ...] = ()
    cursor: str | None = None
    from_start: bool = False
    linger_s: float = 0.0
    settings: ExporterSettings = field(default_factory=ExporterSettings)

    @property
    def sends_spans(self) -> bool:
        """Whether spans go anywhere."""
        return self.endpoint is not None or self.file is not None


class Export:
    """An export that is set up: metrics are served from here on, before the journal has to exist.

    Args:
        options: what is asked for.

    Raises:
        InvalidConfig: what can't work, in words.
    """

    def __init__(self, options: ExportOptions) -> None:
        if options.endpoint is not None and options.file is not None:
            raise InvalidConfig("an endpoint and a file: spans go to one of them; run two exports, a cursor each")
        if not options.sends_spans and options.metrics_port is None:
            raise InvalidConfig("nothing to do: give an endpoint (--otlp), a file (--file) or a port (--metrics-port)")
        self._options = options
        self._rules = TailRules.parse(options.keep)
        self._told = threading.Event()
        self._exporter: Exporter | None = None
        self._lingering: Lingering | None = None
        self._metrics = (
            ServedMetrics(options.metrics_port, options.metrics_host, self._rules.unsampled, options.sends_spans)
            if options.metrics_port is not None
            else None
        )

    @property
    def metrics_port(self) -> int | None:
        """The port that the metrics are served at."""
        return self._metrics.port if self._metrics is not None else None

    @property
    def told(self) -> bool:
        """Whether it was told to end."""
        return self._told.is_set()

    def stop(self) -> None:
        """End in order: send what was read, keep the progress."""
        self._told.set()
        if self._exporter is not None:
            self._exporter.stop()

    @contextlib.contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Meanwhile, end in order on SIGTERM and SIGINT; a second SIGINT interrupts that."""

        def on_signal(number: int, frame: FrameType | None) -> None:
            if number == signal.SIGINT and self.told:
                raise KeyboardInterrupt
            self.stop()

        before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def run(self, reader: JournalReader) -> Outcome | None:
        """Export a run. None: it was exported to its end before.

        Raises:
            JournalError: the journal is damaged or gone, or a cursor can't be read.
            InvalidConfig: the file can't be written, or a package for the endpoint is missing.
        """
        options = self._options
        cursor_file, cursor = self._cursor(reader)
        if cursor is not None and cursor.ended and self._metrics is None:
            logger.warning("run %s was exported to its end before (%s); --from-start exports it again",
                           reader.run, cursor_file and cursor_file.path)  # fmt: skip
            return None
        sink = self._sink(cursor)
        spans = SpanBuilder(None, self._rules) if sink is not None else None
        self._exporter = Exporter(
            reader, options.settings, spans, sink, self._metrics, cursor_file, cursor.place if cursor else None
        )
        if self.told:
            self._exporter.stop()
        return self._exporter.run()

    def linger(self) -> None:
        """Serve the metrics for a while after the end, or until they are wanted at the same port by a next export."""
        if self._metrics is not None and self._options.linger_s > 0 and not self.told:
            logger.warning("the metrics are served for %.0f s more", self._options.linger_s)
            self._lingering = Lingering(self._metrics.port)
            self._lingering.wait(self._options.linger_s, self._told)

    def close(self) -> None:
        """End the metrics server."""
        if self._metrics is not None:
            self._metrics.close()
        if self._lingering is not None:
            self._lingering.close()

    def _sink(self, cursor: Cursor | None) -> Sink | None:
        options = self._options
        if options.endpoint is not None:
            return otlp_sink(options.endpoint, options.headers)
        if options.file is not None:
            return FileSink(Path(options.file), cursor.size if cursor is not None else None)
        return None

    def _cursor(self, reader: JournalReader) -> tuple[CursorFile | None, Cursor | None]:
        """The file that keeps the progress, and the progress of an earlier export of this run."""
        options = self._options
        if not options.sends_spans:
            return None, None
        if options.cursor is not None:
            path = Path(options.cursor)
        elif options.file is not None:
            if Path(options.file).exists() and not Path(options.file).is_file():
                return None, None  # a pipe or a device: nothing to go on with
            path = Path(options.file + CURSOR_SUFFIX)
        elif Path(options.journal).is_dir() and options.endpoint is not None:
            receiver = options.endpoint.file_name
            path = cursor_path(Path(options.journal), reader.run, receiver)
            for other in _others(Path(options.journal), reader.run, receiver):
                logger.warning("run %s was not exported to its end; --run %s does that", other, other)
        else:
            return None, None  # one segment, read by itself
        file = CursorFile(path)
        file.require_regular()
        fresh = options.from_start or (options.file is not None and not Path(options.file).exists())
        cursor = None if fresh else file.load()
        if cursor is None:
            return file, None
        if cursor.run != reader.run:
            rest = "" if cursor.ended else f"; its end was not exported: --run {cursor.run} does that"
            logger.warning("%s is of run %s%s; run %s is exported from its start on disk",
                           path, cursor.run, rest, reader.run)  # fmt: skip
            return file, None
        segments = reader.segments()
        if segments and cursor.place.join.segment < segments[0]:
            logger.warning("%s: segments that it names are gone; the export goes on with the next keyframe", path)
        return file, cursor


def _others(directory: Path, run: str, receiver: str) -> list[str]:
    """Other runs in a journal's directory whose export to the same receiver was begun and not ended."""
    return [other for other in unfinished_runs(directory, list_runs(directory), receiver) if other != run]


def report(outcome: Outcome, run: str, has_next: bool = True) -> str:
    """One line on what became of the spans.

    Args:
        outcome: of the export.
        run: its run.
        has_next: whether the journal stays, so that another export can go on.
    """
    counts = outcome.counts
    words = [f"{counts.recorded} spans recorded", f"{counts.exported} exported"]
    words += [f"{count} {what}" for count, what in (
        (counts.not_kept, "let go by --keep"), (counts.dropped, "dropped from a full queue"),
        (counts.rejected, "refused by the receiver"),
        (outcome.left, "left for the next export" if has_next else "not sent in time"),
    ) if count]  # fmt: skip
    return f"run {run}: " + ", ".join(words)


def exit_code(outcome: Outcome | None) -> int:
    """0 where everything that was read is out; 1 where spans were lost or are left."""
    if outcome is None:
        return EXIT_OK
    return EXIT_LOST if outcome.counts.dropped or outcome.counts.rejected or outcome.left else EXIT_OK


@contextlib.contextmanager
def log_to_stderr(prefix: str) -> Iterator[None]:
    """Within the block, let the exporter's messages go to stderr alone, each behind a prefix."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"{prefix}%(message)s"))
    before = logger.handlers[:], logger.propagate
    logger.handlers[:], logger.propagate = [handler], False
    try:
        yield
    finally:
        logger.handlers[:], logger.propagate = before


def wait_for_run(journal: str, run: str, may_wait: Callable[[], bool], poll_s: float = 0.05) -> JournalReader | None:
    """The reader of a run that is about to begin; None once `may_wait` says no."""
    from ..errors import JournalError

    while True:
        try:
            return JournalReader(journal, run)
        except JournalError:
            if not may_wait():
                return None
        time.sleep(poll_s)
