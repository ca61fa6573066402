"""`nano-trace export --perfetto FILE`: reads a run, writes its trace, and says what is in it."""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from ..errors import AuditError, JournalError
from ..telemetry.reader import JournalReader
from .describe import plural
from .out_file import writing
from .perfetto_trace import PerfettoTrace


@dataclass(frozen=True, slots=True)
class Written:
    """What a trace holds."""

    events: int  # of the journal
    slices: int
    instants: int
    flows: int
    values: int

    def __str__(self) -> str:
        return (
            f"{plural(self.events, 'event')}: {plural(self.slices, 'slice')}, {plural(self.instants, 'instant')}, "
            f"{plural(self.flows, 'arrow')}, {plural(self.values, 'counter value')}"
        )


def write_perfetto(reader: JournalReader, path: str | Path) -> Written:
    """Write a run's trace; `path` ending in .gz is compressed. A file that is there is replaced once all is
    written.

    Raises:
        JournalError: the journal can't be read, holds no state to begin with, or contradicts itself.
        InvalidConfig: the file can't be written, or is a journal's.
    """
    path, events = Path(path), 0
    with _output(path) as out:
        trace = PerfettoTrace(out)
        try:
            for frame in reader.frames():
                if frame.gap:
                    trace.lose()
                for event in frame.events:
                    trace.apply(event)
                events += len(frame.events)
        except AuditError as error:
            raise JournalError(f"run {reader.run}: {error}; `nano-trace check` says more") from error
        writer = trace.writer
        if writer is None:
            raise JournalError(f"run {reader.run}: nothing to export: no engine.started and no keyframe in it")
    return Written(events, writer.slices, writer.instants, writer.flows, writer.values)


@contextlib.contextmanager
def _output(path: Path) -> Iterator[BinaryIO]:
    with writing(path, "--perfetto") as file:
        if path.suffix != ".gz":
            yield file
            return
        with gzip.GzipFile("", "wb", 5, file, 0) as packed:
            yield cast(BinaryIO, packed)
