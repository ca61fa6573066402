"""Frames of a journal that come over the wire, kept as a journal on this machine: live and past are then read alike.

Knows neither HTTP nor what events mean, but for which frames hold the whole state.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from ...errors import InspectError
from ...telemetry.frames import FRAME_HEAD, first_tag, pack_header, segment_path
from ...telemetry.reader import JOIN_TAGS, TAG_BYTES

CAP_BYTES = 128 << 20  # of what came live, and again of what was fetched from before
SEGMENT_BYTES = 8 << 20
FIRST_LIVE = 500_000  # number of the first segment that came live; those before it have lower ones
NUMBERS = 1_000_000  # of segments that a run may have; the next run of the same source has those behind them
_PREFIX = "nano-inspect-"


def holds_state(frame: bytes) -> bool:
    """Whether reading can begin at a frame."""
    return first_tag(frame[FRAME_HEAD.size : FRAME_HEAD.size + TAG_BYTES]) in JOIN_TAGS


class Spool:
    """A journal of one run in a temporary directory, which goes with `close`, or later with anybody's next spool.

    Segments begin with a frame that holds the whole state. The oldest go when there are more bytes than the cap.

    Args:
        run: its id.
        number: which run of its source it is, from 0; no two have a segment's number in common.
        cap: bytes that what came live may take.
        segment_bytes: from which size on a segment ends, at the next frame with the whole state.

    Attributes:
        directory: of the journal.
        first: the first frame that came live; b"" before.
        last: head of the last frame (its length and checksum); b"" before any.
        last_state: head of the last frame that holds the whole state.

    Raises:
        InspectError: there is no room for it.
    """

    def __init__(
        self, run: str, number: int = 0, cap: int = CAP_BYTES, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        _remove_orphans()
        self._run, self._cap, self._segment_bytes = run, cap, segment_bytes
        try:
            self.directory = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
        except OSError as error:
            raise InspectError(f"no temporary directory can be made for the journal ({error.strerror})") from error
        self.first = self.last = self.last_state = b""
        self._first_live = number * NUMBERS + FIRST_LIVE
        self._live = _Segments(self.directory, run, self._first_live, cap, segment_bytes)
        self._lock = threading.Lock()
        self._is_closed = False

    def add(self, frames: Iterable[bytes]) -> None:
        """Append frames that follow the last one.

        Raises:
            InspectError: they can't be written.
        """
        with self._lock, _said("the journal can't be kept"):
            if self._is_closed:
                return
            for frame in frames:
                is_state = holds_state(frame)
                self._live.add(frame, is_state)
                self.first = self.first or frame
                self.last = frame[: FRAME_HEAD.size]
                if is_state:
                    self.last_state = self.last
            self._live.flush()

    def skip(self) -> None:
        """Say that frames are missing after the last one; the next one has to hold the whole state."""
        with self._lock:
            self._live.skip()

    def add_earlier(self, frames: Iterable[bytes]) -> None:
        """Put what came before the first live frame in its place; frames from that one on are passed over.

        Args:
            frames: from one that holds the whole state on.

        Raises:
            InspectError: they can't be written, or what gives them has failed; nothing is put in place then.
        """
        aside = self.directory / "earlier"
        with _said("the journal's beginning can't be kept"):
            aside.mkdir(exist_ok=True)
            earlier = _Segments(aside, self._run, 1, self._cap, self._segment_bytes)
            try:
                meets = False
                for frame in frames:
                    if meets := frame == self.first:
                        break
                    earlier.add(frame, holds_state(frame))
                earlier.close()
                with self._lock:
                    if not self._is_closed:
                        self._put_in_place(earlier.paths, self._first_live - len(earlier.paths) - (not meets))
            finally:
                earlier.close()
                shutil.rmtree(aside, ignore_errors=True)

    def close(self) -> None:
        """Remove it. May be called again."""
        with self._lock:
            self._is_closed = True
            self._live.close()
            shutil.rmtree(self.directory, ignore_errors=True)

    def _put_in_place(self, paths: list[Path], number: int) -> None:
        """Number segments from `number` on, oldest last so that a reader never sees a hole."""
        for at, path in reversed(list(enumerate(paths, number))):
            header = pack_header(self._run, at)
            with path.open("r+b") as file:
                file.write(header)
            os.replace(path, segment_path(self.directory, self._run, at))


class _Segments:
    """Segment files that are written one after the other, the oldest being deleted over a cap."""

    def __init__(self, directory: Path, run: str, first: int, cap: int, segment_bytes: int) -> None:
        self.paths: list[Path] = []
        self._directory, self._run = directory, run
        self._cap, self._segment_bytes = cap, segment_bytes
        self._next = first
        self._sizes: list[int] = []  # bytes of each of `paths`
        self._file: BinaryIO | None = None

    def add(self, frame: bytes, is_state: bool) -> None:
        if self._file is None or (is_state and self._sizes[-1] >= self._segment_bytes):
            self._open()
        if self._file is not None:
            self._file.write(frame)
            self._sizes[-1] += len(frame)

    def skip(self) -> None:
        """Leave a number out."""
        if self._file is not None:
            self.close()
            self._next += 1

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> None:
        self.close()
        path = segment_path(self._directory, self._run, self._next)
        self._file = path.open("xb")
        self._file.write(pack_header(self._run, self._next))
        self._next += 1
        self.paths.append(path)
        self._sizes.append(0)
        while len(self.paths) > 1 and sum(self._sizes) > self._cap:
            self.paths.pop(0).unlink(missing_ok=True)
            del self._sizes[0]


@contextlib.contextmanager
def _said(what: str) -> Iterator[None]:
    """Failures of the disk, in words."""
    try:
        yield
    except OSError as error:
        raise InspectError(f"{what}: {error.strerror or error}") from error


def _remove_orphans() -> None:
    """Remove the spools of processes that were killed."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(tempfile.gettempdir()):
            pid = entry.name.removeprefix(_PREFIX).partition("-")[0]
            if entry.name.startswith(_PREFIX) and pid.isdigit() and entry.is_dir(follow_symlinks=False):
                if entry.stat(follow_symlinks=False).st_uid == os.getuid() and not _lives(int(pid)):
                    shutil.rmtree(entry.path, ignore_errors=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
