"""`nano-trace export --perfetto FILE`: reads a run, writes its trace, and says what is in it."""

from __future__ import annotations

import contextlib
import gzip
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from ..errors import AuditError, InvalidConfig, JournalError
from ..telemetry.reader import JournalReader
from .describe import plural
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
    """Write a run's trace; `path` ending in .gz is compressed. A file that is there is replaced once all is written.

    Raises:
        JournalError: the journal can't be read, holds no state to begin with, or contradicts itself.
        InvalidConfig: the file can't be written.
    """
    path, events = Path(path), 0
    with _replacing(path) as out:
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
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A file beside `path` that takes its place at the end; with an error it goes, and `path` stays as it was."""
    if path.is_dir():
        raise InvalidConfig(f"--perfetto {path}: is a directory; give a file")
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        try:
            with part.open("wb") as file:
                if path.suffix == ".gz":
                    with gzip.GzipFile("", "wb", 5, file, 0) as packed:
                        yield cast(BinaryIO, packed)
                else:
                    yield file
            part.replace(path)
        except OSError as error:
            raise InvalidConfig(f"--perfetto {path}: can't be written ({error.strerror or error})") from error
    finally:
        part.unlink(missing_ok=True)
