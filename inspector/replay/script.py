"""What was recorded, as the engine that decides again meets it: its clock, and the judge of each of its events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...telemetry.events import AnyEvent, BlocksFreed, EngineError, Keyframe, StatusChanged, StepFinished, SwapFinished
from .comparison import differences
from .recording import Recording


@dataclass
class Divergence(BaseException):
    """The first decision that came out otherwise. No Exception: nothing in the engine shall deal with it.

    Attributes:
        index: of the event in the recording.
        step: the step that was being planned or read.
        expected: what was recorded; None: nothing more in this frame.
        got: what was decided now; None: nothing.
        details: how they differ, in words.
        state: the queues and blocks now, where the engine could tell.
    """

    index: int
    step: int
    expected: AnyEvent | None
    got: AnyEvent | None
    details: list[str]
    state: Keyframe | None = None

    def __str__(self) -> str:
        return "; ".join(self.details)


class Script:
    """The recorded events, and how far the replay has come in them.

    Attributes:
        index: of the next event that the engine has to bring.
        snapshot: gives the engine's state for a report.
        divergence: the first one, once there is one.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.index = 0
        self.snapshot: Callable[[], Keyframe] | None = None
        self.divergence: Divergence | None = None
        self._events = recording.events
        self._size = len(recording.events)
        self._step = 0
        self._read: tuple[int, StepFinished, StepFinished] | None = None  # its index, as recorded, and now

    @property
    def next(self) -> AnyEvent | None:
        """The event that comes next; None at the end."""
        return self._events[self.index] if self.index < self._size else None

    @property
    def goes_on(self) -> bool:
        """Whether the next event is in the frame of the last one: nothing was flushed between them."""
        ends = self.recording.frame_ends
        return 0 < self.index < self._size and ends[self.index - 1] == ends[self.index]

    @property
    def frame(self) -> list[AnyEvent]:
        """The rest of the frame that the next event is in."""
        if self.index >= self._size:
            return []
        return self._events[self.index : self.recording.frame_ends[self.index]]

    @property
    def failure(self) -> str:
        """What the last error of the engine said that came in the frame of the next event; "": none did."""
        index, ends = self.index, self.recording.frame_ends
        while 0 < index < self._size and ends[index - 1] == ends[index]:
            index -= 1
            event = self._events[index]
            if isinstance(event, EngineError):
                return event.message
        return ""

    def clock(self) -> int:
        """The recorded time of the event that comes next."""
        return int(self._events[min(self.index, self._size - 1)].t)  # type: ignore[union-attr]

    def record(self, event: AnyEvent) -> None:
        """Judge an event of the engine.

        Raises:
            Divergence: it is not the one that was recorded; the first one again, if there was one before.
        """
        if self.divergence is not None:
            raise self.divergence
        expected = self.next
        if expected is None:
            self.diverge(event, ["nothing more was recorded"])
            return
        found = differences(expected, event)
        if found:
            self.diverge(event, found)
        if isinstance(event, StepFinished) and isinstance(expected, StepFinished):
            self.check_read()
            self._read = self.index, expected, event
        self._step = getattr(event, "step", self._step)
        self.index += 1

    def check_read(self) -> None:
        """Judge the step whose reading is over.

        Raises:
            Divergence: other tokens of it came too late.
        """
        if self._read is not None:
            index, expected, event = self._read
            self._read = None
            if expected.wasted != event.wasted:
                self.index = index
                self.diverge(event, [f"wasted: {expected.wasted!r} recorded, {event.wasted!r} now"])

    def diverge(self, got: AnyEvent | None, details: list[str]) -> None:
        """Give up.

        Raises:
            Divergence: always.
        """
        expected = self.next
        step = getattr(expected, "step", getattr(got, "step", self._step))
        state = self.snapshot() if self.snapshot is not None else None
        self.divergence = Divergence(self.index, step, expected, got, details, state)
        raise self.divergence

    def moves(self) -> list[SwapFinished]:
        """The ends of moves that come next in this frame."""
        found: list[SwapFinished] = []
        for event in self.frame:
            if isinstance(event, SwapFinished):
                found.append(event)
            elif not (isinstance(event, BlocksFreed) and found and found[-1].error):
                break
        return found

    def after_moves(self) -> AnyEvent | None:
        """What follows on the ends of moves that come next in this frame."""
        failed = False
        for event in self.frame:
            if isinstance(event, SwapFinished):
                failed = bool(event.error)
            elif not (isinstance(event, BlocksFreed) and failed):
                return event
        return None

    @property
    def expects_expiry(self) -> bool:
        """Whether a paused sequence expires next."""
        event = self.next
        if isinstance(event, SwapFinished):
            event = self.after_moves()
        return isinstance(event, StatusChanged) and event.reason == "expired"
