"""Which callback of the recorded run gave a command: the journal tells the command, and no callback."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

from ...telemetry.events import (
    AnyEvent,
    BlocksCached,
    BlocksDuplicate,
    EngineError,
    EnginePaused,
    RequestFinished,
    StatusChanged,
)
from .recording import Recording
from .runner import ScriptedRunner, error_of
from .script import Script

if TYPE_CHECKING:
    from .replay import ReplayCore

OPERATOR_REASONS = ("operator", "await_input")
_COMMANDED = ("arrived", "resumed", "delivered")
_NEVER = 1 << 62


def is_pause(event: AnyEvent) -> TypeGuard[StatusChanged]:
    """Whether a sequence was paused from outside."""
    return isinstance(event, StatusChanged) and event.new == "PAUSED" and event.reason in OPERATOR_REASONS


class Callbacks:
    """Tells whether the command that comes next belongs to the callback that is under way.

    Attributes:
        pausing: sequences that a breakpoint is about to pause.
    """

    def __init__(self, recording: Recording, script: Script, runner: ScriptedRunner, core: ReplayCore) -> None:
        self._recording = recording
        self._script = script
        self._runner = runner
        self._core = core
        self.pausing: set[int] = set()

    def is_due(self, event: AnyEvent, ending: set[str]) -> bool:
        """Whether it was this callback, not a later one, that gave a command, as far as that matters.

        `ending`: requests whose abort is under way.
        """
        if isinstance(event, EngineError) and self._core.is_reading and event.step == self._runner.reading:
            if self._all_told(event):
                raise error_of(event.message.partition(" failed: ")[2])
            return False
        if isinstance(event, EnginePaused) and event.cause.startswith("breakpoint "):
            return False
        if is_pause(event) and event.old == "WAITING" and event.seq in self.pausing:
            return False
        if not isinstance(event, StatusChanged):
            return True
        seq = self._core.book.live_sequence(event.seq)
        if seq is None or (event.reason == "aborted" and seq.request_id in ending):
            return False
        return not self._core.is_reading or self._has_been_read(event)

    def settles(self, event: AnyEvent, request: str) -> TypeGuard[RequestFinished]:
        """Whether this callback, of `request`, aborted another one whose sequences had all ended: only that is told."""
        requests = self._core.requests
        if not isinstance(event, RequestFinished) or event.request == request or request not in requests:
            return False
        return event.request in requests and requests[event.request].finished

    def _has_been_read(self, event: StatusChanged) -> bool:
        """Whether the sequences that this command and those right behind it concern have the tokens that they had then.

        A token that came too late came after its sequence was ended or paused, any other one before. While one of
        these is still to come, the command can wait for the next callback.
        """
        read, unread = self._recording.read.get(self._runner.reading), self._runner.unread
        wasted = read.wasted if read is not None else []
        turn = unread.get(event.seq, _NEVER) if event.seq in wasted else _NEVER
        for later in self._script.frame:
            if isinstance(later, BlocksCached | BlocksDuplicate):
                return True  # the reading went on
            if isinstance(later, RequestFinished) and later.finish_reason != "abort":
                return True  # so did what called back
            if isinstance(later, StatusChanged) and later.reason not in _COMMANDED:
                if later.reason != "aborted" and not is_pause(later):
                    return True
                if later.seq not in wasted and unread.get(later.seq, turn) < turn:
                    return False
        return True

    def reads(self, request: str) -> bool:
        """Whether it was this callback, of `request`, that read the step whose reading comes next: to pause something.

        It was where something is paused then; it may also have ended in the reading. Or else where what called back
        is not over then: the end of this request, or of all that failed with a step.
        """
        if self._core.is_reading:
            return False
        failure, lives = self._script.failure, request in self._core.requests
        for event in self._script.frame:
            if is_pause(event):
                return True
            if isinstance(event, RequestFinished):
                if (lives and event.request == request) or (failure and event.error == failure):
                    return True
        return False

    def _all_told(self, error: EngineError) -> bool:
        """Whether the sequences have all the tokens that they had when an interrupt came."""
        for event in self._script.frame:
            request = self._core.requests.get(event.request) if isinstance(event, RequestFinished) else None
            if request is not None and isinstance(event, RequestFinished):
                count = sum(seq.num_read_output_tokens for seq in request.sequences)
                if count < event.num_output_tokens:
                    return False
        return True
