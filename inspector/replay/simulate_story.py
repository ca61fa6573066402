"""What users did in a recorded run, loosened from what the engine made of it: commands that can be given again when the
engine is another one.

A command is tied to what led to it: an arrival to its time, a pause and an abort to the tokens that there were by then,
a resume to the pause before it, a change of priority to the request's arrival.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field

import msgspec

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
    """A pause from outside, of a sequence with `after_tokens` output tokens that was paused `place` times before.

    It comes `after_ns` after the last of its arrival, resume and token; where that is 0, with the token.
    """

    reason: str
    place: int
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
        ends: what kept it from more output tokens than it had in the end: "abort" (or the end of the recording),
            "error"; "": it came to its own end.
        num_output_tokens: that it had in the end.
        num_tokens: that it had in the end, given ones too.
        num_pauses: how often it was paused, for whatever reason.
        pauses: those from outside, in order.
        wakes: of all its pauses, in order.
    """

    stops: set[int] = field(default_factory=set)
    ends: str = ""
    num_output_tokens: int = 0
    num_tokens: int = 0
    num_pauses: int = 0
    pauses: list[Pause] = field(default_factory=list)
    wakes: list[Wake] = field(default_factory=list)


@dataclass(slots=True)
class Story:
    """All commands of a run.

    Attributes:
        lives: by sequence.
        aborts: index of an arrival -> nanoseconds after the last thing that happened to its sequences.
        priorities: index of an arrival -> (nanoseconds after it, place of the sequence in the request, priority).
        engine: (time, event) of pauses of the engine, and their ends; it does not stay paused.
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
        self._since: dict[int, int] = {}  # sequence -> when it last arrived, paused, was resumed or ended
        ttl_s = recording.started.config.get("paused_ttl_s")
        self._ttl_ns = int(ttl_s * 1e9) if isinstance(ttl_s, int | float) else math.inf

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
                life.num_output_tokens = outcome.num_output_tokens
                if outcome.status == "ERROR":
                    life.ends = "error"
                elif outcome.status != "FINISHED":
                    story.cut.add(index)
                    life.ends = "abort"
                    if seq in self._state.sequences:
                        life.num_output_tokens = self._state.snapshot(seq).num_output_tokens
                elif outcome.reason == "aborted":
                    life.ends = "abort"
                life.num_tokens = arrived.num_prompt_tokens + outcome.num_appended_tokens + life.num_output_tokens
        _let_go_on(story)
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
            story.lives[event.seq].wakes.append(
                Wake(self._since_pause(event.seq, event.t), event.num_appended, event.max_tokens)
            )
            self._since[event.seq] = event.t
        elif isinstance(event, PriorityChanged):
            index, place, arrived = self._arrival[event.seq]
            story.priorities.setdefault(index, []).append((event.t - arrived, place, event.priority))
        elif isinstance(event, EngineContinued) or (isinstance(event, EnginePaused) and event.cause != "steps"):
            story.engine.append((event.t, event))

    def _status(self, event: StatusChanged, closing: bool) -> None:
        story, life = self._story, self._story.lives[event.seq]
        index = self._arrival[event.seq][0]
        if event.new == "PAUSED":
            if event.reason in _FROM_OUTSIDE:
                life.pauses.append(self._pause(event, life))
            life.num_pauses += 1
        elif event.reason == "delivered":
            life.wakes.append(Wake(self._since_pause(event.seq, event.t)))
        elif event.reason == "aborted":
            if closing:
                story.cut.add(index)
            elif index not in story.aborts:
                last = max(max(self._since[seq], self._last_token_t(seq)) for seq in self._siblings(index))
                story.aborts[index] = event.t - last
        if event.new in ("PAUSED", "FINISHED", "ERROR"):
            self._since[event.seq] = event.t

    def _pause(self, event: StatusChanged, life: Life) -> Pause:
        since, token_t = self._since[event.seq], self._last_token_t(event.seq)
        had = self._state.snapshot(event.seq).num_output_tokens if event.seq in self._state.sequences else 0
        with_token = event.old == "RUNNING" and had and token_t >= since
        after_ns = 0 if with_token else max(1, event.t - max(since, token_t))
        return Pause(event.reason, life.num_pauses, had, after_ns)

    def _since_pause(self, seq: int, t: int) -> int:
        """How long a sequence was paused; less than what would have ended it, which the engine may notice late."""
        return int(min(t - self._since[seq], self._ttl_ns - 1))

    def _last_token_t(self, seq: int) -> int:
        """When a live sequence was given its last token; 0: it has none, or has ended."""
        return self._state.snapshot(seq).last_token_t if seq in self._state.sequences else 0

    def _siblings(self, index: int) -> list[int]:
        return self._recording.arrivals[index].seqs


def _let_go_on(story: Story) -> None:
    """Take out the pause of the engine that lasts to the end: all that is left then is simulated to its end."""
    engine = story.engine
    while engine and isinstance(engine[-1][1], EnginePaused):
        engine.pop()
    if engine:
        t, event = engine[-1]
        engine[-1] = t, msgspec.structs.replace(event, num_steps=0)


def _closing_from(events: list[AnyEvent]) -> int:
    """Where the closing of the engine begins, which aborts what is left: behind the last plan and command."""
    if not events or not isinstance(events[-1], EngineStopped):
        return len(events)
    kinds = (StepPlanned, RequestArrived, SequenceResumed, PriorityChanged, EngineContinued)
    for index in range(len(events) - 1, -1, -1):
        if isinstance(events[index], kinds):
            return index + 1
    return 0
