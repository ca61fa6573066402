"""What a screen of nano-inspect shows: the engine at one moment of its journal. Knows no source, no terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..telemetry.culprit import Culprit
from ..telemetry.events import AnyEvent, EngineStopped, Keyframe, StepFinished, StepPlanned, StepRanks

STEPS_SHOWN = 300  # of the Steps view, and of the histories in the header
EVENTS_SHOWN = 500
SourceState = Literal["connecting", "live", "stale", "ended", "dead", "replaced"]


class Moment(NamedTuple):
    """A place between two events of a journal: `count` events of the frame at (`segment`, `offset`) have happened.

    Moments of one run are in the order of time.
    """

    segment: int
    offset: int
    count: int  # type: ignore[assignment]  # tuple has a method of that name


class Tick(NamedTuple):
    """A moment as people name it: the last planned step, and clock nanoseconds."""

    step: int
    t: int


class Kept(NamedTuple):
    """What there is of a run now: the oldest moment that can be shown, and between which ticks it lies."""

    oldest: Moment
    first: Tick
    last: Tick


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step, from its plan to the reading of its tokens.

    Attributes:
        planned: what it computes.
        finished: None while it is in flight, or if it failed.
        interval_ns: to the reading of this step from that of the step before, or from when there was work and the
            engine was not paused, where that came later; 0 while in flight.
        gap_ns: of the interval, what nobody worked: neither the device, nor the host on this step.
        preemptions: sequences that lost their place while it was planned.
        queried_tokens: looked up in the prefix cache by first admissions while it was planned.
        hit_tokens: of these, found.
        ranks: what it took on each rank, where several share the model, once that is known.
    """

    planned: StepPlanned
    finished: StepFinished | None = None
    interval_ns: int = 0
    gap_ns: int = 0
    preemptions: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    ranks: StepRanks | None = None

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens of its chunks."""
        return sum(count for _, _, count in self.planned.chunks)


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event and the moment just after it."""

    moment: Moment
    step: int
    t: int
    event: AnyEvent


@dataclass(frozen=True, slots=True)
class Stay:
    """A sequence in one status, without a break. `end_t` is the moment's time for the one that it is in."""

    status: str
    reason: str
    begin_t: int
    end_t: int
    step: int


@dataclass(frozen=True, slots=True)
class Story:
    """One sequence up to a moment, from its arrival or from where the journal begins.

    Attributes:
        seq: its id.
        request: of which it is part.
        whole: whether it is told from its arrival.
        stays: its statuses, in order.
        events: that name it, oldest first; the last EVENTS_SHOWN.
        parts: part of its life (queued, prefill, decode, preempted, paused) -> nanoseconds; they add up.
    """

    seq: int
    request: str
    whole: bool
    stays: Sequence[Stay]
    events: Sequence[EventRow]
    parts: dict[str, int]


class Blamed(NamedTuple):
    """One that time was spent on, and as which part."""

    part: str  # as telemetry/latency.py names them
    culprit: Culprit


@dataclass(frozen=True, slots=True)
class Judgement:
    """Why a sequence has taken as long as it has, up to a moment.

    Attributes:
        seq: its id.
        request: of which it is part.
        whole: whether it is told from its arrival.
        parts: as telemetry/latency.py names them -> nanoseconds; they add up to its life so far.
        headline: the first sentence.
        sentences: the others.
        blamed: those that weigh most first; who stood at the head of the queue comes last.
    """

    seq: int
    request: str
    whole: bool
    parts: dict[str, int]
    headline: str
    sentences: tuple[str, ...]
    blamed: Sequence[Blamed]


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """How a source does.

    Attributes:
        state: connecting; live; stale (the connection is lost, it tries again); ended (the engine stopped in order);
            dead (the engine is gone without engine.stopped); replaced (of a view alone: the source shows another run
            now).
        since: wall-clock seconds since 1970 when that began.
        message: what is wrong, in words; "" if nothing is.
    """

    state: SourceState
    since: float
    message: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """The engine at one moment.

    Attributes:
        moment: which.
        is_live: whether it is the newest one, and follows the engine.
        keyframe: the state, as the `state` projection gives it.
        steps: the last STEPS_SHOWN, oldest first.
        events: the last EVENTS_SHOWN, oldest first.
        is_order_sure: whether the order of the queue is known (see EngineState).
        stopped: the run's last event, where the moment is behind it.
        first: where the journal begins, as far as it can be read.
        last: where it ends now.
        status: of the source.
        later_ns: since the keyframe's last event, where the engine has been alive and silent since then; 0 in the past.
    """

    moment: Moment
    is_live: bool
    keyframe: Keyframe
    steps: Sequence[StepRow]
    events: Sequence[EventRow]
    is_order_sure: bool
    stopped: EngineStopped | None
    first: Tick
    last: Tick
    status: SourceStatus
    later_ns: int = 0

    @property
    def now_t(self) -> int:
        """Clock nanoseconds that ages and rates count up to."""
        return self.keyframe.t + self.later_ns
