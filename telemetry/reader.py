"""The journal's reader: frames in order, from files that may be growing, rotating or torn. Knows not what events mean.

It holds one frame at a time, and takes nothing from the writer but the files.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from ..errors import JournalError
from .events import AnyEvent, EngineStarted, EngineStopped, JournalDropped, Keyframe
from .frames import FRAME_HEAD, SUFFIX, Header, decode_payload, first_tag, parse_header, parse_name
from .segment_files import HEADER_BYTES, is_readable, kind_of, list_runs, read_frame, read_header

TAG_BYTES = 64
MAX_NAMED = 8  # folders, in an error
JOIN_TAGS = frozenset({"engine.started", "keyframe", "journal.dropped"})


@dataclass(frozen=True, slots=True)
class Position:
    """A place between frames; offset 0 is the first frame of the segment."""

    segment: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Frame:
    """One batch of events and where it lies.

    `gap` is "" or says, in words, which segments were lost before this frame; it then begins with a keyframe, and
    what was known before holds no more. `num_bytes` is its size in the file.
    """

    segment: int
    offset: int
    events: list[AnyEvent]
    gap: str = ""
    num_bytes: int = 0


class JournalReader:
    """Reads one run of a journal.

    Args:
        path: a journal's directory, or one segment file, which is then read alone.
        run: the run to read; None takes the one that was written to last.

    Attributes:
        run: the id of the run.
        torn_bytes: bytes of an unfinished frame at the journal's end that the last pass cut off.

    Raises:
        JournalError: the path is empty or missing, can't be read, is no journal, holds no run or not the one asked for.
    """

    def __init__(self, path: str | Path, run: str | None = None) -> None:
        if not str(path):
            raise JournalError("the journal's path is empty; give a journal's directory or a segment of it")
        self._path = Path(path)
        self._file: Path | None = None
        self.torn_bytes = 0
        kind = kind_of(self._path)
        if kind == "folder":
            self.run = self._find_run(run)
        elif kind:
            if kind != "file":
                raise JournalError(f"{self._path}: no regular file; give a journal's directory or a segment of it")
            self._file = self._path
            header = read_header(self._path)
            if header is None:
                raise JournalError(f"{self._path}: the file ends within its header; it holds no events")
            if run is not None and run != header.run_id:
                raise JournalError(f"{self._path}: holds run {header.run_id!r}, not {run!r}")
            self.run = header.run_id
        else:
            raise JournalError(
                f"{self._path}: no such file or directory; give a journal's directory or a segment of it"
            )

    def segments(self) -> list[int]:
        """Numbers of the segments on disk now, in order."""
        return sorted(self._paths())

    @property
    def complete(self) -> bool:
        """Whether the run's first segment is still there, so that reading begins with engine.started."""
        return self.segments()[:1] == [1]

    def start(self) -> Position:
        """The first frame on disk.

        Raises:
            JournalError: nothing is left, or the only segment ends within its header.
        """
        numbers = self.segments()
        if not numbers:
            raise JournalError(f"{self._path}: the segments of run {self.run!r} are gone")
        if len(numbers) == 1 and self._header(numbers[0]) is None:
            raise JournalError(f"{self._paths()[numbers[0]]}: the file ends within its header; it holds no events")
        return Position(numbers[0])

    def last_keyframe(self) -> Position:
        """The newest frame that holds the whole state; the start where there is none yet."""
        return self._last_join(lambda event: True)

    def at_step(self, step: int) -> Position:
        """The last frame with the whole state as of `step` or before; the start where there is none."""
        return self._last_join(lambda event: isinstance(event, EngineStarted) or event.step <= step)

    def at_time(self, t: int) -> Position:
        """The last frame with the whole state as of clock time `t` (ns) or before; the start where there is none."""
        return self._last_join(lambda event: event.t <= t)

    def frames(
        self,
        start: Position | None = None,
        follow: bool = False,
        stop: Callable[[], bool] | None = None,
        poll_s: float = 0.05,
    ) -> Iterator[Frame]:
        """Iterate over frames.

        Args:
            start: where to begin; None: at the first frame on disk.
            follow: wait for more at the end, across rotations, until engine.stopped was read or `stop` says so.
            stop: asked whenever the reader has to wait.
            poll_s: seconds between looks while waiting.

        Raises:
            JournalError: damage before the journal's end, naming segment and offset.
        """
        position = start or self.start()
        waiting = _Waiting(follow, stop, poll_s)
        number, offset, lost_from = position.segment, position.offset, position.segment
        while True:
            file = self._open(number)
            if file is not None:
                gap = ""
                if lost_from < number:
                    gap = _deleted(lost_from, number - 1)
                lost_from = number + 1
                with file:
                    for frame in self._read_segment(file, number, offset, waiting):
                        yield replace(frame, gap=gap) if gap else frame
                        gap = ""
                        if follow and frame.events and isinstance(frame.events[-1], EngineStopped):
                            return
            following = self._next_segment(number)
            if following is None:
                return
            number, offset = following, 0

    def _open(self, number: int) -> BinaryIO | None:
        """A segment's file, or None where it has been deleted."""
        path = self._paths().get(number)
        try:
            return path.open("rb") if path is not None else None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise JournalError(f"{path}: can't be read ({error.strerror})") from error

    def _read_segment(self, file: BinaryIO, number: int, offset: int, waiting: _Waiting) -> Iterator[Frame]:
        """Frames of one segment; ends when there is a next one, or none and no reason to wait."""
        header = self._await_header(file, number, waiting)
        if header is None:
            return
        at = offset or header.size
        while True:
            payload = read_frame(file, at)
            if payload is None:
                following = self._next_segment(number)
                if following is not None:
                    payload = read_frame(file, at)  # it may have grown before the next one came; it can't any more
                    if payload is None:
                        self._check_torn(file, at, following)
                        return
                elif waiting.again():
                    continue
                else:
                    self.torn_bytes = os.fstat(file.fileno()).st_size - at
                    return
            size = FRAME_HEAD.size + len(payload)
            yield Frame(number, at, decode_payload(payload, f"{file.name}, offset {at}"), num_bytes=size)
            at += size

    def _await_header(self, file: BinaryIO, number: int, waiting: _Waiting) -> Header | None:
        while True:
            following = self._next_segment(number)  # before reading: a header is whole once a next segment exists
            file.seek(0)
            header = parse_header(file.read(HEADER_BYTES), file.name)
            if header is not None:
                return header
            if following is not None:
                raise JournalError(f"{file.name}: the file ends within its header, and segment {following} follows")
            if not waiting.again():
                self.torn_bytes = os.fstat(file.fileno()).st_size
                return None

    def _check_torn(self, file: BinaryIO, at: int, following: int) -> None:
        """A frame may be torn before the end only where the writer says so at the start of the next segment."""
        left = os.fstat(file.fileno()).st_size - at
        if left <= 0:
            return
        after = self._open(following)
        if after is not None:
            with after:
                first = next(self._read_segment(after, following, 0, _Waiting()), None)
            if first is None or (first.events and isinstance(first.events[0], JournalDropped)):
                return
        raise JournalError(
            f"{file.name}, offset {at}: damaged: the {left} bytes from here on are no whole frame, "
            f"and segment {following} follows"
        )

    def _last_join(self, wanted: Callable[[EngineStarted | Keyframe], bool]) -> Position:
        """The last join point that is wanted; segments are searched from the newest, by their first frames."""
        for number in reversed(self.segments()):
            best = None
            for offset, event in self._joins(number):
                if not wanted(event):
                    break
                best = offset
            if best is not None:
                return Position(number, best)
        return self.start()

    def _joins(self, number: int) -> Iterator[tuple[int, EngineStarted | Keyframe]]:
        """(offset, event) of the frames in a segment that hold the whole state, other frames being skipped unread."""
        file = self._open(number)
        if file is None:
            return
        with file:
            header = parse_header(file.read(HEADER_BYTES), file.name)
            at, size = header.size if header else 0, os.fstat(file.fileno()).st_size
            while header and at + FRAME_HEAD.size <= size:
                file.seek(at)
                length, _ = FRAME_HEAD.unpack(file.read(FRAME_HEAD.size))
                if first_tag(file.read(min(TAG_BYTES, length))) in JOIN_TAGS:
                    payload = read_frame(file, at)
                    events = decode_payload(payload, f"{file.name}, offset {at}") if payload is not None else []
                    for event in events[:2]:
                        if isinstance(event, EngineStarted | Keyframe):
                            yield at, event
                            break
                at += FRAME_HEAD.size + length

    def _paths(self) -> dict[int, Path]:
        """Segment number -> file, of the segments on disk now."""
        if self._file is not None:
            header = read_header(self._file)
            return {header.number: self._file} if header else {}
        found: dict[int, Path] = {}
        try:
            for entry in os.scandir(self._path):
                name = parse_name(entry.name)
                if name is not None and name.run_id == self.run and is_readable(entry):
                    found[name.number] = Path(entry.path)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise JournalError(f"{self._path}: can't be read ({error.strerror})") from error
        return found

    def _next_segment(self, number: int) -> int | None:
        return min((n for n in self._paths() if n > number), default=None)

    def _header(self, number: int) -> Header | None:
        path = self._paths().get(number)
        return read_header(path) if path is not None else None

    def _find_run(self, run: str | None) -> str:
        runs = list_runs(self._path)
        if not runs:
            raise JournalError(f"{self._path}: holds no journal ({_misnamed(self._path)}){_below(self._path)}")
        if run is None:
            return runs[-1]
        if run not in runs:
            raise JournalError(f"{self._path}: holds no run {run!r}; its runs are {', '.join(runs)}")
        return run


def _misnamed(path: Path) -> str:
    """What a folder without a journal holds in place of one, in words."""
    names = sorted(entry.name for entry in os.scandir(path) if entry.name.endswith(SUFFIX) and is_readable(entry))
    if not names:
        return f"no file *{SUFFIX}"
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"no segment, RUN-000001{SUFFIX} by its name, but {' '.join(names[:MAX_NAMED])}{more}"


def _below(path: Path) -> str:
    """Which folders of one without a journal hold some, in words."""
    with contextlib.suppress(OSError, JournalError):
        found = sorted(entry.path for entry in os.scandir(path) if entry.is_dir() and list_runs(Path(entry.path)))
        if found:
            more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
            return f"; those below it do: give one, or all of a fleet ({' '.join(found[:MAX_NAMED])}{more})"
    return ""


def _deleted(first: int, last: int) -> str:
    if first == last:
        return f"segment {first} was deleted before it was read"
    return f"segments {first} to {last} were deleted before they were read"


class _Waiting:
    """Whether and how to wait for more at the end of a journal."""

    def __init__(self, follow: bool = False, stop: Callable[[], bool] | None = None, poll_s: float = 0.0) -> None:
        self._follow = follow
        self._stop = stop
        self._poll_s = poll_s

    def again(self) -> bool:
        """Wait a while and return True, or False when reading ends here."""
        if not self._follow or (self._stop is not None and self._stop()):
            return False
        time.sleep(self._poll_s)
        return True
