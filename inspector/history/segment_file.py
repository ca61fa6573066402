"""One segment of a journal by its frames' heads: where each begins, and which may hold the whole state.

Reads with `pread`, so that a file that grows, or is cut back by its writer, is no danger. Knows not what events mean.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from pathlib import Path
from zlib import crc32

from ...errors import JournalError
from ...telemetry.frames import FRAME_HEAD, Header, first_tag, parse_header
from ...telemetry.reader import JOIN_TAGS, TAG_BYTES
from ...telemetry.segment_files import HEADER_BYTES

_CHUNK = 1 << 20
_LOOK = FRAME_HEAD.size + TAG_BYTES


class SegmentFile:
    """Frames of one segment, numbered from 0. Eight bytes of memory a frame.

    Args:
        path: the file.

    Attributes:
        header: None while the file ends within it.
        offsets: where each frame begins.
        joins: numbers of the frames that may hold the whole state, by the tag of their first event.
        torn_bytes: behind the last whole frame.

    Raises:
        JournalError: the file can't be read, is no journal of a version known here, or its header is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offsets = array("Q")
        self.joins: list[int] = []
        self.torn_bytes = 0
        self.header: Header | None = None
        self._end = 0
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise JournalError(f"{path}: can't be read ({error.strerror})") from error
        try:
            self._read_header()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self.offsets)

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def extend(self) -> bool:
        """Take in frames that were written since; whether there are any.

        The last frame of the file counts only if its checksum matches: a write may reach the disk in any order.
        """
        if self.header is None:
            self._read_header()
            if self.header is None:
                return False
        before, size = len(self.offsets), os.fstat(self._fd).st_size
        self._scan(size)
        if len(self.offsets) > before and self._end == size and self._payload(len(self.offsets) - 1) is None:
            self._end = self.offsets.pop()
            if self.joins and self.joins[-1] == len(self.offsets):
                self.joins.pop()
        self.torn_bytes = max(0, size - self._end)
        return len(self.offsets) > before

    def payload(self, frame: int) -> bytes:
        """The bytes of a frame.

        Raises:
            JournalError: its checksum does not match.
        """
        payload = self._payload(frame)
        if payload is None:
            raise JournalError(f"{self.where(frame)}: damaged: the checksum of the frame does not match")
        return payload

    def where(self, frame: int) -> str:
        """A frame's place, for messages."""
        return f"{self.path}, offset {self.offsets[frame]}"

    def frame_at(self, offset: int) -> int:
        """The number of the frame that begins at an offset.

        Raises:
            JournalError: none does.
        """
        frame = bisect_left(self.offsets, offset)
        if frame == len(self.offsets) or self.offsets[frame] != offset:
            raise JournalError(f"{self.path}, offset {offset}: no frame begins here")
        return frame

    def _read_header(self) -> None:
        self.header = parse_header(os.pread(self._fd, HEADER_BYTES, 0), str(self.path))
        if self.header is not None:
            self._end = self.header.size
        self.torn_bytes = os.fstat(self._fd).st_size - self._end

    def _scan(self, size: int) -> None:
        """Walk from head to head up to the last frame that fits into `size` bytes."""
        offsets, at, head = self.offsets, self._end, FRAME_HEAD.size
        while at + head <= size:
            chunk, base = os.pread(self._fd, _CHUNK, at), at
            whole = base + len(chunk) >= size
            while True:
                here = at - base
                if here + head > len(chunk) or (here + _LOOK > len(chunk) and not whole):
                    break
                end = at + head + int.from_bytes(chunk[here : here + 4], "little")
                if end > size:
                    self._end = at
                    return
                if first_tag(chunk[here + head : min(here + _LOOK, end - base)]) in JOIN_TAGS:
                    self.joins.append(len(offsets))
                offsets.append(at)
                at = end
            if at == base:
                break
        self._end = at

    def _payload(self, frame: int) -> bytes | None:
        begin = self.offsets[frame]
        end = self.offsets[frame + 1] if frame + 1 < len(self.offsets) else self._end
        data = os.pread(self._fd, end - begin, begin)
        if len(data) < FRAME_HEAD.size:
            return None
        length, crc = FRAME_HEAD.unpack_from(data)
        payload = data[FRAME_HEAD.size :]
        return payload if len(payload) == length and crc32(payload) == crc else None
