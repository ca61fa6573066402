"""What there is to look at on this machine: servers that announced themselves, and journals. Opens none of them."""

from __future__ import annotations

import contextlib
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...errors import JournalError
from ...telemetry import registry
from ...telemetry.engine_process import is_running, written_elsewhere
from ...telemetry.events import EngineStarted, EngineStopped, Keyframe
from ...telemetry.frames import FRAME_HEAD, decode_payload, parse_name, segment_path
from ...telemetry.segment_files import read_frame, read_header

JournalState = Literal["live", "ended", "dead"]
MAX_FOLDERS = 200  # of the working directory that are looked into
MAX_RUNS = 100
_STOPPED = b"engine.stopped"
_LAST_BYTES = 64 << 10  # in which it stands where it is: its reason is a word


@dataclass(frozen=True, slots=True)
class FoundServer:
    """A server that runs.

    Attributes:
        url: where it is.
        model: as requests name it.
        run: of its engine; "" for a fleet.
        pid: its process.
        since: wall-clock seconds since 1970 when it was ready.
        journal: its journal's directory; "" where it keeps none.
    """

    url: str
    model: str
    run: str
    pid: int
    since: float
    journal: str


@dataclass(frozen=True, slots=True)
class FoundJournal:
    """A run's journal.

    Attributes:
        path: its directory.
        run: the run.
        model: of the run.
        state: live: its engine's process is there; ended: it stopped in order; dead: it did not, or this is a copy.
        pid: of the engine.
        written: wall-clock seconds since 1970 of the last write.
        num_bytes: on disk.
    """

    path: str
    run: str
    model: str
    state: JournalState
    pid: int
    written: float
    num_bytes: int


def find_servers() -> list[FoundServer]:
    """Servers of this user on this machine, the newest first."""
    return [
        FoundServer(here.url, here.model, here.run, here.pid, here.wall, here.journal)
        for here in reversed(registry.servers())
    ]


def find_journals(below: Path | None = None) -> list[FoundJournal]:
    """Journals that engines of this user announced, and those below a directory; live ones first, then the newest.

    Args:
        below: it and its folders, two floors down; None: the working directory.
    """
    folders = dict.fromkeys([here.path for here in registry.journals()])
    folders |= dict.fromkeys(_folders(below if below is not None else Path.cwd()))
    found = [journal for folder in folders for journal in journals_in(folder)]
    found.sort(key=lambda each: (each.state == "live", each.written), reverse=True)
    return found[:MAX_RUNS]


def journals_in(folder: str | Path) -> list[FoundJournal]:
    """The runs in one directory; what is no journal is passed over."""
    segments: dict[str, list[tuple[int, float, int]]] = {}  # run -> number, last write and size of each
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            name = parse_name(entry.name)
            if name is not None:
                stat = entry.stat()
                segments.setdefault(name.run_id, []).append((name.number, stat.st_mtime, stat.st_size))
    found = []
    for run, parts in segments.items():
        with contextlib.suppress(JournalError, OSError):
            started = _started(segment_path(Path(folder), run, min(parts)[0]))
            if started is None:
                continue
            last = segment_path(Path(folder), run, max(parts)[0])
            lives = is_running(started) and not written_elsewhere(started, Path(folder))
            state: JournalState = "ended" if _has_ended(last) else "live" if lives else "dead"
            written, size = max(each[1] for each in parts), sum(each[2] for each in parts)
            found.append(FoundJournal(str(folder), run, started.model, state, started.pid, written, size))
    return found


def _folders(top: Path) -> list[str]:
    """A directory and its folders, two floors down, hidden ones left out."""
    found, floor = [str(top)], [str(top)]
    for _ in range(2):
        below: list[str] = []
        for folder in floor:
            with contextlib.suppress(OSError):
                below += [
                    entry.path for entry in os.scandir(folder)
                    if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
                ]  # fmt: skip
        floor = below[: MAX_FOLDERS - len(found)]
        found += floor
    return [os.path.abspath(folder) for folder in found]


def _started(segment: Path) -> EngineStarted | None:
    """The run's first event, as a segment's first frame holds it."""
    header = read_header(segment)
    if header is None:
        return None
    with segment.open("rb") as file:
        payload = read_frame(file, header.size)
    for event in decode_payload(payload, str(segment)) if payload is not None else ():
        if isinstance(event, EngineStarted):
            return event
        if isinstance(event, Keyframe):
            return event.started
    return None


def _has_ended(segment: Path) -> bool:
    """Whether a run's newest segment ends with engine.stopped, which stands last in the last frame."""
    header = read_header(segment)
    if header is None:
        return False
    size = segment.stat().st_size
    if size <= header.size:
        return False
    with segment.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
        if data.rfind(_STOPPED, max(0, size - _LAST_BYTES)) < 0:
            return False  # nearly always: the frames need not be walked
        at, last = header.size, 0
        while at + FRAME_HEAD.size <= size:
            length, _ = FRAME_HEAD.unpack_from(data, at)
            last, at = at, at + FRAME_HEAD.size + length
        payload = read_frame(file, last)
    events = decode_payload(payload, str(segment)) if payload is not None else []
    return bool(events) and isinstance(events[-1], EngineStopped)
