"""How far an export has come, kept in a small file beside the journal, so that a restart goes on from there.

Knows frames and which requests are open; nothing of spans or of where they go.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..errors import JournalError
from .events import EngineStarted, Keyframe, RequestArrived, RequestFinished
from .reader import Frame, Position

CURSOR_VERSION = 1
CURSOR_SUFFIX = ".cursor"
_JOIN_AMONG = 2  # a frame that holds the whole state has it first, or behind journal.dropped


@dataclass(frozen=True, slots=True)
class Place:
    """How far a reading has come.

    Attributes:
        join: where a restart reads from: a frame with the whole state, at or before the arrival of every request that
            is open here.
        frame: the first frame that is not handled to its end.
        count: spans of that frame that are handled; the order of a frame's spans is the same in every reading.
    """

    join: Position
    frame: Position
    count: int = 0

    @property
    def order(self) -> tuple[int, int, int]:
        """Sorts places of one run."""
        return self.frame.segment, self.frame.offset, self.count


class Cursor(msgspec.Struct, frozen=True):
    """What the file holds, as JSON. Positions are (segment, offset).

    `size` is the length of the output file where one is written: what stands behind it came after this place.
    """

    version: int
    run: str
    join: tuple[int, int]
    frame: tuple[int, int]
    count: int
    ended: bool
    size: int = 0

    @property
    def place(self) -> Place:
        """Where to go on."""
        return Place(Position(*self.join), Position(*self.frame), self.count)


class CursorFile:
    """One cursor on disk. Each save replaces the file in one step, so that a reader never sees half of one.

    Args:
        path: the file; its directory has to exist when it is saved.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> Cursor | None:
        """The cursor, or None where there is no file.

        Raises:
            JournalError: the file is no cursor of this version.
        """
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise JournalError(f"{self.path}: can't be read ({error.strerror})") from error
        try:
            cursor = msgspec.json.decode(data, type=Cursor)
        except msgspec.DecodeError as error:
            raise JournalError(
                f"{self.path}: not a cursor of an export ({error}); remove it, or give --from-start to ignore it"
            ) from error
        if cursor.version != CURSOR_VERSION:
            raise JournalError(
                f"{self.path}: cursor version {cursor.version}; this nanolens knows version {CURSOR_VERSION}; "
                "give --from-start to ignore it"
            )
        return cursor

    def require_regular(self) -> None:
        """Refuse a path that is something else: a save replaces it, and a device or a pipe would be gone.

        Raises:
            JournalError: it is one.
        """
        if self.path.exists() and not self.path.is_file():
            raise JournalError(f"{self.path}: a cursor must be a regular file, or not be there; give another --cursor")

    def save(self, run: str, place: Place, ended: bool = False, size: int = 0) -> None:
        """Replace the file.

        Args:
            run: the run that was read.
            place: how far.
            ended: whether the run was exported to its end.
            size: of the output file, or 0.

        Raises:
            OSError: the file can't be written.
        """
        join, frame = place.join, place.frame
        cursor = Cursor(
            CURSOR_VERSION, run, (join.segment, join.offset), (frame.segment, frame.offset), place.count, ended, size
        )
        if self.path.exists() and not self.path.is_file():
            raise OSError(errno.EINVAL, "no regular file")
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            beside.write_bytes(msgspec.json.encode(cursor) + b"\n")
            os.replace(beside, self.path)
        except OSError:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise


def cursor_path(directory: Path, run: str, receiver: str) -> Path:
    """Where the progress of a run's export to a receiver is kept by default.

    Args:
        directory: of the journal.
        run: the run.
        receiver: a name of it that can be part of a file's.
    """
    return directory / f"{run}.{receiver}{CURSOR_SUFFIX}"


def unfinished_runs(directory: Path, runs: list[str], receiver: str) -> list[str]:
    """The runs of a journal's directory whose export to a receiver has begun and has not come to the end.

    Cursors of runs that are gone are removed, whatever the receiver.

    Args:
        directory: of the journal.
        runs: those of which it holds segments.
        receiver: as of `cursor_path`.
    """
    found = []
    for path in sorted(directory.glob("*" + CURSOR_SUFFIX)):
        try:
            cursor = CursorFile(path).load()
            if cursor is not None and cursor.run not in runs:
                path.unlink()
                continue
        except (OSError, JournalError):
            continue
        if cursor is not None and not cursor.ended and path == cursor_path(directory, cursor.run, receiver):
            found.append(cursor.run)
    return found


class OpenRequests:
    """Which requests are open while a journal is read, and from where each can be read whole.

    Args:
        start: where reading begins.
    """

    def __init__(self, start: Position) -> None:
        self._join = start
        self._open: dict[str, Position] = {}  # request -> the last frame with the whole state before it, oldest first

    @property
    def oldest(self) -> Position:
        """The frame to read from so that every request that is open now is seen from its arrival."""
        return next(iter(self._open.values()), self._join)

    def apply(self, frame: Frame) -> None:
        """Take the next frame."""
        if frame.gap:
            self._open.clear()
        if any(isinstance(event, EngineStarted | Keyframe) for event in frame.events[:_JOIN_AMONG]):
            self._join = Position(frame.segment, frame.offset)
        for event in frame.events:
            kind = event.__class__
            if kind is RequestArrived:
                self._open[event.request] = self._join  # type: ignore[union-attr]
            elif kind is RequestFinished:
                self._open.pop(event.request, None)  # type: ignore[union-attr]
            elif kind is Keyframe:
                for seq in event.sequences:  # type: ignore[union-attr]
                    self._open.setdefault(seq.request, self._join)
