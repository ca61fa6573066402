"""One sequence's story, folded from events: its statuses, the events that name it, where its time went."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from msgspec import structs

from ...telemetry.events import (
    AnyEvent,
    EngineStarted,
    JournalDropped,
    Keyframe,
    RequestArrived,
    RequestFinished,
    StatusChanged,
    StepFinished,
    StepPlanned,
)
from ...telemetry.lives import FINAL, Lives
from ..describe import sequences_of
from ..view import EVENTS_SHOWN, EventRow, Stay, Story

PARTS = ("queued", "prefill", "decode", "preempted", "paused")


class StoryLog:
    """Takes the events of a run from before the sequence's arrival on, or from a keyframe that holds it.

    Args:
        seq: the sequence.
        request: of which it is part.
        started: the run's first event.
        whole: whether its arrival will come; otherwise it is joined by the next keyframe.
    """

    def __init__(self, seq: int, request: str, started: EngineStarted, whole: bool) -> None:
        self.seq = seq
        self._request = request
        self._whole = whole
        self._stays: list[Stay] = []
        self._rows: deque[EventRow] = deque(maxlen=EVENTS_SHOWN)
        self._lives = Lives()
        if whole:
            self._lives.apply(started)

    def apply(self, event: AnyEvent) -> bool:
        """Take the next event; whether it names the sequence, so that its row is to be added."""
        kind = event.__class__
        if kind is Keyframe:
            self._keyframe(event)  # type: ignore[arg-type]
            return False
        if kind is JournalDropped:
            self.lose()
            return False
        is_own = self._is_named(event)
        if is_own or kind is StepPlanned or kind is StepFinished:
            self._lives.apply(event)
        if kind is StatusChanged and event.seq == self.seq:  # type: ignore[union-attr]
            self._status(event)  # type: ignore[arg-type]
        return is_own

    def add(self, row: EventRow) -> None:
        """Keep an event that names the sequence."""
        self._rows.append(row)

    def lose(self) -> None:
        """Say that events were missed."""
        self._whole = False
        self._lives.lose()

    def story(self, t: int) -> Story | None:
        """The story up to a time; None where the sequence has not come, or has ended."""
        life = self._lives.lives.get(self.seq)
        if life is None or not self._stays or self._stays[-1].status in FINAL:
            return None
        parts = {name: int(getattr(life, name + "_ns")) for name in PARTS}
        if life.part:
            parts[life.part] += max(0, t - life.until_t)
        last = self._stays[-1]
        stays = [*self._stays[:-1], replace(last, end_t=max(t, last.begin_t))]
        return Story(self.seq, self._request, self._whole, stays, list(self._rows), parts)

    def _is_named(self, event: AnyEvent) -> bool:
        if isinstance(event, RequestArrived | RequestFinished):
            return event.request == self._request
        return self.seq in sequences_of(event)

    def _status(self, e: StatusChanged) -> None:
        self._enter(Stay(e.new, e.reason, e.t, e.t, e.step))

    def _enter(self, stay: Stay) -> None:
        if self._stays:
            self._stays[-1] = replace(self._stays[-1], end_t=stay.begin_t)
        self._stays.append(stay)

    def _keyframe(self, e: Keyframe) -> None:
        """Join here, where nothing else has told of the sequence, or of what happened in a gap."""
        own = [each for each in e.sequences if each.seq == self.seq]
        if not own:
            return
        self._lives.apply(structs.replace(e, sequences=own))
        now, last = own[0], self._stays[-1] if self._stays else None
        if last is None or (last.status, last.begin_t) != (now.status, now.status_t):
            self._enter(Stay(now.status, now.reason, now.status_t, e.t, e.step))
