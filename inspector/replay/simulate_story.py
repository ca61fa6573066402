"""What users did in a recorded run, loosened from what the engine made of it: commands that can be given again when the
engine is another one.

A command is tied to what led to it: an arrival to its time, a pause to the tokens that a sequence had by then, a resume
to the pause before it, an abort and a change of priority to the request's arrival.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from ...errors import AuditError
from ...telemetry.events import (
    AnyEvent,
    EngineContinued,
    EnginePaused,
    EngineStopped,
    PriorityChanged,
    RequestArrived,
    SequenceResumed,
    StatusChanged,
    StepPlanned,
)
from ...telemetry.state import EngineState
from .recording import Recording

_FROM_OUTSIDE = ("operator", "await_input", "breakpoint")


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause from outside: once a sequence has `after_tokens` output tokens; where that is 0, `after_ns` after it
    arrived or was resumed.
    """

    reason: str
    after_tokens: int
    after_ns: int


@dataclass(frozen=True, slots=True)
class Wake:
    """What followed on a pause, so much later: a resume, or (`max_tokens` 0) an end in order."""

    after_ns: int
    num_appended: int = 0
    max_tokens: int = 0


@dataclass(slots=True)
class Life:
    """One sequence.

    Attributes:
        stops: output tokens that it had whenever it met a stop.
        fails_after: output tokens that it had when it ended in an error; -1: it did not.
        num_tokens: that it had in the end, given ones too.
        pauses: in order.
        wakes: of all its pauses, in order.
    """

    stops: set[int] = field(default_factory=set)
    fails_after: int = -1
    num_tokens: int = 0
    pauses: list[Pause] = field(default_factory=list)
    wakes: list[Wake] = field(default_factory=list)


@dataclass(slots=True)
class Story:
    """All commands of a run.

    Attributes:
        lives: by sequence.
        aborts: index of an arrival -> nanoseconds after it.
        priorities: index of an arrival -> (nanoseconds after it, place of the sequence in the request, priority).
        engine: (time, event) of pauses of the engine, and their ends.
        cut: indices of arrivals that the recording, or the closing of the engine, cut short.
    """

    lives: dict[int, Life] = field(default_factory=dict)
    aborts: dict[int, int] = field(default_factory=dict)
    priorities: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    engine: list[tuple[int, EnginePaused | EngineContinued]] = field(default_factory=list)
    cut: set[int] = field(default_factory=set)


def read_story(recording: Recording) -> Story:
    """The commands of a recorded run."""
    return _Reader(recording).read()


class _Reader:
    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._story = Story()
        self._state = EngineState()
        self._arrival: dict[int, tuple[int, int, int]] = {}  # sequence -> index, place in the request, time
        self._num_arrivals = 0
        self._since: dict[int, int] = {}  # sequence -> when it arrived, paused or was resumed

    def read(self) -> Story:
        story, recording = self._story, self._recording
        closing = _closing_from(recording.events)
        for index, event in enumerate(recording.events):
            self._take(event, index >= closing)
            with contextlib.suppress(AuditError, KeyError, ValueError):
                self._state.apply(event)
        for index, arrived in enumerate(recording.arrivals):
            for seq in arrived.seqs:
                outcome, life = recording.outcomes[seq], story.lives[seq]
                life.stops.update(outcome.stops)
                life.num_tokens = arrived.num_prompt_tokens + outcome.num_appended_tokens + outcome.num_output_tokens
                if outcome.status == "ERROR":
                    life.fails_after = outcome.num_output_tokens
                elif outcome.status != "FINISHED":
                    story.cut.add(index)
                if index in story.cut:
                    life.stops.add(max(1, outcome.num_output_tokens))
        return story

    def _take(self, event: AnyEvent, closing: bool) -> None:
        story = self._story
        if isinstance(event, RequestArrived):
            index = self._num_arrivals
            self._num_arrivals += 1
            for place, seq in enumerate(event.seqs):
                story.lives[seq] = Life()
                self._arrival[seq] = index, place, event.t
                self._since[seq] = event.t
        elif isinstance(event, StatusChanged):
            if event.seq in self._arrival:
                self._status(event, closing)
        elif isinstance(event, SequenceResumed):
            paused = self._since[event.seq]
            story.lives[event.seq].wakes.append(Wake(event.t - paused, event.num_appended, event.max_tokens))
            self._since[event.seq] = event.t
        elif isinstance(event, PriorityChanged):
            index, place, arrived = self._arrival[event.seq]
            story.priorities.setdefault(index, []).append((event.t - arrived, place, event.priority))
        elif isinstance(event, EngineContinued) or (isinstance(event, EnginePaused) and event.cause != "steps"):
            story.engine.append((event.t, event))

    def _status(self, event: StatusChanged, closing: bool) -> None:
        story, life = self._story, self._story.lives[event.seq]
        index, _, arrived = self._arrival[event.seq]
        if event.new == "PAUSED":
            if event.reason in _FROM_OUTSIDE:
                had = 0
                if event.old == "RUNNING" and event.seq in self._state.sequences:
                    had = self._state.snapshot(event.seq).num_output_tokens
                life.pauses.append(Pause(event.reason, had, event.t - self._since[event.seq]))
            self._since[event.seq] = event.t
        elif event.reason == "delivered":
            life.wakes.append(Wake(event.t - self._since[event.seq]))
        elif event.reason == "aborted":
            if closing:
                story.cut.add(index)
            else:
                story.aborts.setdefault(index, event.t - arrived)


def _closing_from(events: list[AnyEvent]) -> int:
    """Where the closing of the engine begins, which aborts what is left: behind the last plan and command."""
    if not events or not isinstance(events[-1], EngineStopped):
        return len(events)
    kinds = (StepPlanned, RequestArrived, SequenceResumed, PriorityChanged, EngineContinued)
    for index in range(len(events) - 1, -1, -1):
        if isinstance(events[index], kinds):
            return index + 1
    return 0
