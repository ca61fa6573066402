"""The frames of one run: found by their place, decoded when asked for. Knows not what events mean."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from ...errors import InspectError, JournalError
from ...telemetry.events import AnyEvent, EngineStarted, JournalDropped, Keyframe
from ...telemetry.frames import decode_payload, segment_path
from ...telemetry.reader import JournalReader
from ..view import Moment
from .segment_file import SegmentFile

_MAX_SEGMENTS = 16  # open at once
_MAX_DECODED = 4 << 20  # bytes, encoded, of the frames that are kept decoded
_JOIN_AMONG = 2  # a frame that holds the whole state has it first, or behind journal.dropped


class Place(NamedTuple):
    """A frame: its segment, and its number there."""

    segment: int
    frame: int


class Join(NamedTuple):
    """A frame that holds the whole state, and how many of its events have to happen for it to be known."""

    place: Place
    needs: int


class FrameStore:
    """Frames of one run that are on disk. Memory is bounded, whatever the size of the journal.

    Args:
        path: a journal's directory, or one segment file, which is then read alone.
        run: as of `JournalReader`.

    Raises:
        JournalError: as of `JournalReader`.
    """

    def __init__(self, path: str | Path, run: str | None) -> None:
        self._reader = JournalReader(path, run)
        self._path = Path(path)
        self.run = self._reader.run
        self._numbers: list[int] = []
        self._segments: OrderedDict[int, SegmentFile] = OrderedDict()
        self._decoded: OrderedDict[Place, tuple[int, list[AnyEvent]]] = OrderedDict()
        self._decoded_bytes = 0
        self._last: Place | None = None
        self.refresh()

    @property
    def numbers(self) -> list[int]:
        """Numbers of the segments with frames, in order."""
        return self._numbers

    def close(self) -> None:
        """Close all files."""
        for segment in self._segments.values():
            segment.close()
        self._segments.clear()
        self._decoded.clear()
        self._decoded_bytes = 0

    def refresh(self) -> bool:
        """Take in what was written or deleted since; whether there are more frames."""
        before, numbers = self._last, self._reader.segments()
        for number in list(self._segments):
            if number not in numbers:
                self._segments.pop(number).close()
            elif before is None or number >= before.segment:
                self._segments[number].extend()
        self._numbers = numbers
        while self._numbers and not len(self.segment(self._numbers[-1])):
            self._numbers = self._numbers[:-1]  # it has only begun
        self._last = None
        if self._numbers:
            self._last = Place(self._numbers[-1], len(self.segment(self._numbers[-1])) - 1)
        return self._last != before

    @property
    def last(self) -> Place:
        """The newest frame, as of the last refresh.

        Raises:
            InspectError: there is none.
        """
        if self._last is None:
            raise InspectError(f"{self._path}: run {self.run!r} holds no whole frame")
        return self._last

    def missing(self) -> list[str]:
        """What is not there, in words."""
        numbers = self._numbers
        found: list[str] = []
        if not numbers:
            return found
        if self._path.is_dir() and numbers[0] > 1:
            found.append("its beginning was deleted to make room")
        for earlier, number in pairwise(numbers):
            if number != earlier + 1:
                found.append(f"segments {earlier + 1} to {number - 1} are missing")
        torn = self.segment(numbers[-1]).torn_bytes
        if torn:
            found.append(f"it ends in an unfinished frame of {torn} bytes")
        return found

    def segment(self, number: int) -> SegmentFile:
        """A segment, open and scanned.

        Raises:
            JournalError: it is gone, or can't be read.
        """
        found = self._segments.get(number)
        if found is None:
            if self._path.is_dir() and number not in self._numbers:
                raise JournalError(f"{self._path}: segment {number} of run {self.run!r} is no longer there")
            found = self._segments[number] = SegmentFile(self._file_of(number))
            found.extend()
            if len(self._segments) > _MAX_SEGMENTS:
                self._segments.popitem(last=False)[1].close()
        else:
            self._segments.move_to_end(number)
        return found

    def events(self, place: Place) -> list[AnyEvent]:
        """The events of a frame; not to be changed.

        Raises:
            JournalError: it is damaged.
        """
        known = self._decoded.get(place)
        if known is not None:
            self._decoded.move_to_end(place)
            return known[1]
        segment = self.segment(place.segment)
        payload = segment.payload(place.frame)
        events = decode_payload(payload, segment.where(place.frame))
        self._decoded[place] = len(payload), events
        self._decoded_bytes += len(payload)
        while self._decoded_bytes > _MAX_DECODED and len(self._decoded) > 1:
            self._decoded_bytes -= self._decoded.popitem(last=False)[1][0]
        return events

    def holds(self, place: Place, tags: tuple[bytes, ...]) -> bool:
        """Whether a frame may hold an event of one of the tags, by its bytes; False is sure."""
        if place in self._decoded:
            return True
        payload = self.segment(place.segment).payload(place.frame)
        return any(tag in payload for tag in tags)

    def opening(self, number: int) -> list[AnyEvent]:
        """The events of a segment's first frame, without a scan of the others; none where it has none."""
        if number in self._segments:
            return self.events(Place(number, 0)) if len(self._segments[number]) else []
        reader = JournalReader(self._file_of(number))
        frame = next(reader.frames(), None)
        return frame.events if frame is not None else []

    def before(self, place: Place) -> Place | None:
        """The frame before one."""
        if place.frame:
            return Place(place.segment, place.frame - 1)
        at = bisect_left(self._numbers, place.segment)
        while at > 0:
            at -= 1
            if count := len(self.segment(self._numbers[at])):
                return Place(self._numbers[at], count - 1)
        return None

    def earlier(self, place: Place, frames: int) -> Place:
        """The frame so many before one; the first one where there are fewer."""
        while frames > place.frame:
            before = self.before(Place(place.segment, 0))
            if before is None:
                return Place(place.segment, 0)
            frames -= place.frame + 1
            place = before
        return Place(place.segment, place.frame - frames)

    def after(self, place: Place) -> Place | None:
        """The frame after one, up to `last`."""
        if self._last is None or place >= self._last:
            return None
        if place.frame + 1 < len(self.segment(place.segment)):
            return Place(place.segment, place.frame + 1)
        at = bisect_right(self._numbers, place.segment)
        while at < len(self._numbers):
            if len(self.segment(self._numbers[at])):
                return Place(self._numbers[at], 0)
            at += 1
        return None

    def walk(self, start: Place | None, end: Place) -> Iterator[Place]:
        """Frames from one to another, both included."""
        while start is not None and start <= end:
            yield start
            start = self.after(start)

    def follows(self, place: Place, earlier: Place) -> bool:
        """Whether nothing is missing between a frame and the next one that is there."""
        if place.segment == earlier.segment:
            return True
        return place.segment == earlier.segment + 1 and not self.segment(earlier.segment).torn_bytes

    def last_join(self, place: Place, count: int) -> Join | None:
        """The last whole state at or before `count` events of a frame."""
        at, frame = bisect_right(self._numbers, place.segment) - 1, place.frame
        while at >= 0:
            number = self._numbers[at]
            joins = self.segment(number).joins
            for i in range(bisect_right(joins, frame) - 1, -1, -1):
                here = Place(number, joins[i])
                needs = joined_after(self.events(here))
                if needs and (here < place or needs <= count):
                    return Join(here, needs)
            at -= 1
            frame = len(self.segment(self._numbers[at])) if at >= 0 else 0
        return None

    def first_join(self) -> Join:
        """The first whole state on disk.

        Raises:
            InspectError: there is none.
        """
        for number in self._numbers:
            for frame in self.segment(number).joins:
                needs = joined_after(self.events(Place(number, frame)))
                if needs:
                    return Join(Place(number, frame), needs)
        raise InspectError(
            f"{self._path}: run {self.run!r} holds neither engine.started nor a keyframe: its state is not known"
        )

    def place_of(self, moment: Moment) -> Place:
        """The frame of a moment.

        Raises:
            JournalError: there is none.
        """
        return Place(moment.segment, self.segment(moment.segment).frame_at(moment.offset))

    def moment_of(self, place: Place, count: int | None = None) -> Moment:
        """So many events of a frame; None: all of them."""
        offset = self.segment(place.segment).offsets[place.frame]
        return Moment(place.segment, offset, len(self.events(place)) if count is None else count)

    def _file_of(self, number: int) -> Path:
        return segment_path(self._path, self.run, number) if self._path.is_dir() else self._path


def joined_after(events: list[AnyEvent]) -> int:
    """How many events of a frame have to happen until the whole state is known; 0: it does not tell it."""
    for index, event in enumerate(events[:_JOIN_AMONG]):
        if isinstance(event, EngineStarted | Keyframe):
            return index + 1
        if not isinstance(event, JournalDropped):
            break
    return 0
