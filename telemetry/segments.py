"""The files of a journal that is being written: one open segment, and room for it under the cap.

Knows neither frames nor retries: every failure is an OSError for the writer to deal with, and leaves whole frames only.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from .frames import pack_header, parse_name, segment_path


class SegmentFiles:
    """Appends to the newest segment of a run; deletes the oldest segments of its directory to stay under a cap.

    Args:
        directory: created when a segment is opened.
        run_id: names the files.
        cap: bytes that all segments in the directory may take.

    Attributes:
        number: of the open segment, or of the last one; 0 before the first.
        size: bytes of the open segment.
        opening_size: what `size` was when the segment was opened.
    """

    def __init__(self, directory: Path, run_id: str, cap: int) -> None:
        self.directory = directory
        self.run_id = run_id
        self.number = 0
        self.size = 0
        self.opening_size = 0
        self._cap = cap
        self._total = 0  # bytes of all segments in the directory
        self._fd = -1

    @property
    def is_open(self) -> bool:
        """Whether a segment takes frames."""
        return self._fd >= 0

    @property
    def path(self) -> Path:
        """The segment that is open, or was last."""
        return segment_path(self.directory, self.run_id, self.number)

    def open(self, frame: bytes | bytearray, room: int = 0) -> None:
        """Close the open segment and start the next one with its header and first frame, or with the header alone.

        `room`: bytes that have to fit under the cap behind them, or the older segments are worth more than this one.

        Raises:
            OSError: nothing is open then, and nothing of the new segment remains.
        """
        self.close()
        self.directory.mkdir(parents=True, exist_ok=True)
        number = max([self.number, *(n for _, _, run, n in self._scan() if run == self.run_id)]) + 1
        data = pack_header(self.run_id, number) + frame
        self._make_room(len(data), room)
        path = segment_path(self.directory, self.run_id, number)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            _write_all(fd, data)
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        self._fd, self.number = fd, number
        self.size = self.opening_size = len(data)
        self._total += len(data)

    def write(self, frame: bytes | bytearray) -> None:
        """Append one frame.

        Raises:
            OSError: the segment is closed then, cut back to its last whole frame.
        """
        if self._total + len(frame) > self._cap:
            self._make_room(len(frame))
        try:
            _write_all(self._fd, frame)
        except OSError:
            # Where cutting back fails too, the torn frame is this segment's last: a reader cuts it off.
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self.size)
            self.close()
            raise
        self.size += len(frame)
        self._total += len(frame)

    def fits(self, size: int) -> bool:
        """Whether so many more bytes fit into the open segment under the cap."""
        return self.size + size <= self._cap

    def check(self) -> None:
        """Make sure that the open segment is still in its directory.

        Raises:
            OSError: it was deleted; it is closed then.
        """
        if os.fstat(self._fd).st_nlink == 0:
            self.close()
            raise FileNotFoundError(errno.ENOENT, "the open segment was deleted", str(self.path))

    def close(self) -> None:
        """Close the open segment, if any."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with contextlib.suppress(OSError):
                os.close(fd)

    def _scan(self) -> list[tuple[int, str, str, int]]:
        """(mtime ns, file name, run, number) of all segments here, oldest first; counts their bytes."""
        found, total = [], 0
        with os.scandir(self.directory) as entries:
            for entry in entries:
                name = parse_name(entry.name)
                if name is None:
                    continue
                with contextlib.suppress(FileNotFoundError):
                    stat = entry.stat(follow_symlinks=False)
                    total += stat.st_size
                    found.append((stat.st_mtime_ns, entry.name, name.run_id, name.number))
        self._total = total
        return sorted(found)

    def _make_room(self, size: int, room: int = 0) -> None:
        """Delete the oldest segments until `size` more bytes fit under the cap; the open one stays.

        None is deleted for what does not fit then.

        Raises:
            OSError: they can't fit with `room` behind them, or a file can't be deleted; nothing is open then.
        """
        kept, kept_size = (self.path.name, self.size) if self.is_open else ("", 0)
        try:
            if kept_size + size + room > self._cap:
                behind = f" with {room} behind them" if room else ""
                raise OSError(
                    errno.EFBIG, f"{size} bytes{behind} do not fit under the journal's cap of {self._cap} bytes"
                )
            for name in [name for _, name, _, _ in self._scan() if name != kept]:
                if self._total + size <= self._cap:
                    return
                path = self.directory / name
                with contextlib.suppress(FileNotFoundError):
                    freed = path.stat().st_size
                    path.unlink()
                    self._total -= freed
        except OSError:
            self.close()
            raise


def _write_all(fd: int, data: bytes | bytearray) -> None:
    """Write all of `data`; a short write is continued, so that the disk names its own reason."""
    written = os.write(fd, data)
    while written < len(data):
        more = os.write(fd, data[written:])
        if more == 0:
            raise OSError(errno.EIO, "the disk took no more bytes")
        written += more
