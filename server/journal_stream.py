"""A journal as a stream of bytes, from any frame on and as it grows, read as fast as it is asked for. Knows no HTTP."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

from ..errors import InvalidRequest, JournalError
from ..telemetry.event_json import event_as_dict
from ..telemetry.events import EngineStopped
from ..telemetry.frames import FRAME_HEAD, FrameEncoder, segment_path
from ..telemetry.reader import Frame, JournalReader, Position
from ..telemetry.segment_files import read_header

BATCH_BYTES = 1 << 18  # read at once: what a stream holds in memory, but for a frame that is larger
POLL_S = 0.1
_PLACE = re.compile(r"(\d{1,12}):(\d{1,15})")


class JournalStream:
    """Frames of one run, in batches that are read when the one before has been taken.

    Args:
        directory: of the journal.
        run: its run.
        as_json: a line of JSON a frame, with its place; else the frame as it stands in the file: payload length u32,
            CRC-32 of the payload u32, payload (msgpack list of events).

    Raises:
        JournalError: nothing of the run is on disk.
    """

    def __init__(self, directory: str, run: str, as_json: bool) -> None:
        self._directory, self._as_json = Path(directory), as_json
        self._reader = JournalReader(directory, run)
        self._encode = FrameEncoder().encode
        self._has_ended = False

    def find(self, place: str) -> Position:
        """Where reading begins: `start`, `keyframe` (the newest frame with the whole state), or SEGMENT:OFFSET.

        Raises:
            InvalidRequest: it is none of these, no frame begins there, or the segment does not exist yet.
            JournalError: nothing of the run is on disk.
        """
        if place == "start":
            return self._reader.start()
        if place == "keyframe":
            return self._reader.last_keyframe()
        found = _PLACE.fullmatch(place)
        if found is None:
            raise InvalidRequest("from", f"from={place[:40]!r}: must be start, keyframe or SEGMENT:OFFSET")
        position = Position(int(found[1]), int(found[2]))
        last = max(self._reader.segments(), default=0)
        if not 1 <= position.segment <= last:
            raise InvalidRequest("from", f"from={place}: the journal has segments up to {last}")
        path = segment_path(self._directory, self._reader.run, position.segment)
        # Where it was deleted meanwhile, reading goes on at the next one, and says so.
        if position.offset and path.exists() and not _begins_at(path, position.offset):
            raise InvalidRequest("from", f"from={place}: no frame begins or ends there")
        return position

    async def chunks(
        self, start: Position, follow: bool, must_end: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[bytes]:
        """Batches of frames.

        Args:
            start: a place that `find` gave.
            follow: wait for more at the end, until the engine stopped in order.
            must_end: asked before each batch; what has been written by then is still read.
        """
        position = start
        while not self._has_ended:
            ends = await must_end()
            data, position = await asyncio.to_thread(self._read, position)
            if data:
                yield data
            elif ends or not follow:
                return
            else:
                await asyncio.sleep(POLL_S)

    def _read(self, position: Position) -> tuple[bytes, Position]:
        """The next batch, and the place behind it."""
        data = bytearray()
        for frame in self._reader.frames(position):
            data += self._line(frame) if self._as_json else self._encode(frame.events)
            position = Position(frame.segment, frame.offset + frame.num_bytes)
            if frame.events and isinstance(frame.events[-1], EngineStopped):
                self._has_ended = True
            if len(data) >= BATCH_BYTES or self._has_ended:
                break
        return bytes(data), position

    def _line(self, frame: Frame) -> bytes:
        """A frame in JSON; the next one begins at offset + num_bytes, or in a later segment."""
        return (
            msgspec.json.encode(
                {
                    "segment": frame.segment, "offset": frame.offset, "num_bytes": frame.num_bytes, "gap": frame.gap,
                    "events": [event_as_dict(event) for event in frame.events],
                }
            )
            + b"\n"
        )  # fmt: skip


def _begins_at(path: Path, offset: int) -> bool:
    """Whether a frame of a segment begins, or its last one ends, at an offset: its frames are walked up to there."""
    header = read_header(path)
    if header is None:
        raise JournalError(f"{path}: the file ends within its header")
    at, size = header.size, path.stat().st_size
    with path.open("rb") as file:
        while at < offset and at + FRAME_HEAD.size <= size:
            at += _frame_bytes(file, at)
    return at == offset <= size


def _frame_bytes(file: BinaryIO, at: int) -> int:
    file.seek(at)
    length, _ = FRAME_HEAD.unpack(file.read(FRAME_HEAD.size))
    return int(FRAME_HEAD.size + length)
