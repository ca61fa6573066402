"""Steps and stories up to a moment of a journal; what was asked for last is carried on rather than begun anew."""

from __future__ import annotations

from collections.abc import Callable

from ...telemetry.events import AnyEvent, EngineStarted
from ..view import EventRow, StepRow, Story
from .frame_store import FrameStore, Place
from .search import dated
from .step_log import StepLog
from .story_log import StoryLog
from .ticks import Ticks

_BEFORE = 4  # steps before the first one shown: what was in flight while it was planned


class Past:
    """What led to a moment.

    Args:
        store: the frames.
        ticks: their steps and times.
    """

    def __init__(self, store: FrameStore, ticks: Ticks) -> None:
        self._store = store
        self._ticks = ticks
        self._steps: tuple[StepLog, int, Place, int] | None = None  # limit, and how far it has come
        self._story: tuple[StoryLog, Place, int] | None = None

    def steps(self, place: Place, count: int, limit: int) -> list[StepRow]:
        """The last `limit` steps planned among `count` events of a frame and those before it, oldest first."""
        known = self._steps
        first = self._ticks.of(place, count).step - limit - _BEFORE
        start = self._ticks.first_at_step(first) or self._store.first_join().place
        if known is not None and known[1] == limit and start <= known[2] and known[2:] <= (place, count):
            log, _, here, done = known
        else:
            log, here, done = StepLog(limit), start, 0
        self._steps = None
        self._walk(here, done, place, count, lambda each, first, events: log.apply_all(events), log.lose)
        self._steps = log, limit, place, count
        return log.rows()

    def story(
        self, place: Place, count: int, seq: int, request: str, arrived_t: int, started: EngineStarted, now_t: int = 0
    ) -> Story | None:
        """The story of a sequence that lives then, and lives on without an event until `now_t`."""
        known = self._story
        if known is not None and known[0].seq == seq and known[1:] <= (place, count):
            return self._told(known[0], known[1], known[2], place, count, now_t)
        first = self._store.first_join()
        if arrived_t >= self._ticks.of(*first).t:
            start = self._ticks.first_after(arrived_t - 1) or first.place
            found = self._told(StoryLog(seq, request, started, whole=True), start, 0, place, count, now_t)
            if found is not None:
                return found
        return self._told(StoryLog(seq, request, started, whole=False), first.place, 0, place, count, now_t)

    def _told(
        self, log: StoryLog, here: Place, done: int, place: Place, count: int, now_t: int
    ) -> Story | None:
        def take(each: Place, first: int, events: list[AnyEvent]) -> None:
            for index, event in enumerate(events, first):
                if log.apply(event):
                    log.add(self._row(each, index, event))

        self._story = None
        self._walk(here, done, place, count, take, log.lose)
        self._story = log, place, count
        return log.story(max(self._ticks.of(place, count).t, now_t))

    def _walk(
        self,
        here: Place,
        done: int,
        place: Place,
        count: int,
        take: Callable[[Place, int, list[AnyEvent]], None],
        lose: Callable[[], None],
    ) -> None:
        """Hand on the events from `done` of one frame to `count` of another: frame, index of the first, events."""
        earlier: Place | None = None
        for each in self._store.walk(here, place):
            if earlier is not None:
                done = 0
                if not self._store.follows(each, earlier):
                    lose()
            events = self._store.events(each)
            take(each, done, events[done : count if each == place else len(events)])
            earlier = each

    def _row(self, place: Place, index: int, event: AnyEvent) -> EventRow:
        row = EventRow(
            self._store.moment_of(place, index + 1), getattr(event, "step", -1), getattr(event, "t", -1), event
        )
        return dated(row, self._ticks.of(place, index + 1))
