"""Which servers run on this machine and where journals lie, so that a tool finds them without being told.

Each announces itself by one small file in the user's state folder. Knows neither HTTP nor what a journal holds.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from .engine_process import was_and_is
from .events import EngineStarted
from .frames import segment_path

STATE_DIR = "NANOLENS_STATE_DIR"
MAX_JOURNALS = 200  # announcements that are kept; the oldest go first
_SUFFIX = ".json"
_T = TypeVar("_T")


class ServerHere(msgspec.Struct, frozen=True, tag="server"):
    """A server that answers, or did when it wrote this.

    Attributes:
        pid: its process.
        t: clock nanoseconds of the announcement.
        wall: the same in seconds since 1970.
        url: where it can be asked from this machine.
        model: as requests name it.
        run: of its engine; "" for a fleet, whose engines have runs of their own.
        journal: the directory of its journal, of a fleet the one that holds those; "" where it keeps none.
    """

    pid: int
    t: int
    wall: float
    url: str
    model: str
    run: str
    journal: str = ""


class JournalHere(msgspec.Struct, frozen=True, tag="journal"):
    """A journal that an engine opened. It stays announced when the engine is gone, for as long as it is on disk.

    Attributes:
        pid: the engine's process.
        t: clock nanoseconds of the announcement.
        wall: the same in seconds since 1970.
        path: its directory.
        run: the run that was begun in it.
        model: of that run.
    """

    pid: int
    t: int
    wall: float
    path: str
    run: str
    model: str

    @property
    def is_running(self) -> bool:
        """Whether the engine is there."""
        return was_and_is(self.pid, self.t)


def state_folder() -> Path:
    """The user's folder for this: NANOLENS_STATE_DIR, or nanolens in XDG_STATE_HOME or in ~/.local/state."""
    if own := os.environ.get(STATE_DIR):
        return Path(own)
    home = os.environ.get("XDG_STATE_HOME")
    return Path(home or os.path.expanduser("~/.local/state")) / "nanolens"


@contextlib.contextmanager
def announced_server(url: str, model: str, run: str, journal: str = "") -> Iterator[None]:
    """Announce a server of this process for as long as the block lasts. What can't be written is left out."""
    here = ServerHere(os.getpid(), time.monotonic_ns(), time.time(), url, model, run, _absolute(journal))
    path = _folder("servers") / f"{here.pid}-{run}{_SUFFIX}"
    _write(path, here)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def announce_journal(started: EngineStarted, path: str) -> None:
    """Announce the journal of a run that begins in this process. What can't be written is left out."""
    here = JournalHere(started.pid, started.t, time.time(), _absolute(path), started.run_id, started.model)
    folder = _folder("journals")
    _write(folder / f"{started.run_id}{_SUFFIX}", here)
    with contextlib.suppress(OSError):
        names = sorted(folder.glob("*" + _SUFFIX))  # a run's name begins with the time of its start
        for old in names[:-MAX_JOURNALS]:
            old.unlink(missing_ok=True)


def servers() -> list[ServerHere]:
    """The servers whose process lives, oldest first. Announcements of others are removed."""
    return sorted(_read("servers", ServerHere, lambda here: was_and_is(here.pid, here.t)), key=lambda here: here.wall)


def journals() -> list[JournalHere]:
    """The journals that are still on disk, oldest first. Announcements of others are removed."""
    return sorted(_read("journals", JournalHere, _is_on_disk), key=lambda here: here.wall)


def _is_on_disk(here: JournalHere) -> bool:
    if here.is_running or segment_path(Path(here.path), here.run, 1).exists():
        return True
    with contextlib.suppress(OSError):
        return any(entry.name.startswith(here.run + "-") for entry in os.scandir(here.path))
    return False


def _read(kind: Literal["servers", "journals"], type_: type[_T], holds: Callable[[_T], bool]) -> list[_T]:
    found: list[_T] = []
    with contextlib.suppress(OSError):
        for path in _folder(kind).glob("*" + _SUFFIX):
            try:
                here = msgspec.json.decode(path.read_bytes(), type=type_)
            except (OSError, msgspec.DecodeError):
                continue  # of another version, or gone meanwhile
            if holds(here):
                found.append(here)
            else:
                path.unlink(missing_ok=True)
    return found


def _folder(kind: Literal["servers", "journals"]) -> Path:
    return state_folder() / kind


def _absolute(path: str) -> str:
    return os.path.abspath(path) if path else ""


def _write(path: Path, here: ServerHere | JournalHere) -> None:
    """Write an announcement in one step; no failure reaches who announces."""
    with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = path.with_suffix(f".{os.getpid()}")
        beside.write_bytes(msgspec.json.encode(here) + b"\n")
        os.replace(beside, path)
