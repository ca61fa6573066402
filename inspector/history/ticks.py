"""Steps and times of a journal's frames, found by bisection: only the frames that are looked at are decoded."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from ...telemetry.events import AnyEvent, EngineStarted, Keyframe, StepPlanned
from ..view import Tick
from .frame_store import FrameStore, Place

_MAX_KNOWN = 1 << 16


class Ticks:
    """The step and the time at any moment. Both never fall from one frame to the next.

    Args:
        store: the frames.
    """

    def __init__(self, store: FrameStore) -> None:
        self._store = store
        self._known: dict[Place, Tick] = {}  # at the end of a frame
        self._opening: dict[int, Tick] = {}  # at the end of a segment's first frame

    def of(self, place: Place, count: int) -> Tick:
        """When `count` events of a frame have happened."""
        events = self._store.events(place)
        if count >= len(events):
            return self.at_end(place)
        found, step, t = tick_within(events[:count])
        if found is None or t == 0:
            earlier = self._store.before(place)
            base = self.at_end(earlier) if earlier is not None else Tick(step, t)
            return Tick(base.step if found is None else found, max(base.t, t))
        return Tick(found, t)

    def at_end(self, place: Place) -> Tick:
        """When a frame has happened."""
        passed: list[tuple[Place, int]] = []  # frames that don't tell the step
        here: Place | None = place
        known: Tick | None = None
        guess = 0
        while here is not None:
            known = self._known.get(here)
            if known is not None:
                break
            found, guess, t = tick_within(self._store.events(here))
            if found is not None and t:
                known = self._keep(here, Tick(found, t))
                break
            passed.append((here, t))
            here = self._store.before(here)
        known = known or Tick(guess, 0)
        for each, t in reversed(passed):
            own, _, _ = tick_within(self._store.events(each))
            known = self._keep(each, Tick(known.step if own is None else own, max(known.t, t)))
        return known

    def first_at_step(self, step: int) -> Place | None:
        """The first frame at whose end a step is planned; None where it never is."""
        return self._first(lambda tick: tick.step >= step)

    def first_after(self, t: int) -> Place | None:
        """The first frame that ends after a time; None where all have ended."""
        return self._first(lambda tick: tick.t > t)

    def planned_in(self, place: Place) -> list[int]:
        """The steps that a frame plans."""
        return [event.step for event in self._store.events(place) if isinstance(event, StepPlanned)]

    def _first(self, is_there: Callable[[Tick], bool]) -> Place | None:
        """The first frame whose tick is there; ticks that are there come after those that are not."""
        numbers, last = self._store.numbers, self._store.last
        at = bisect_left(numbers, True, key=lambda number: is_there(self._opening_of(number)))
        if at > 0:
            number = numbers[at - 1]
            size = last.frame + 1 if number == last.segment else len(self._store.segment(number))
            frame = bisect_left(range(size), True, lo=1, key=lambda i: is_there(self.at_end(Place(number, i))))
            if frame < size:
                return Place(number, frame)
        return Place(numbers[at], 0) if at < len(numbers) else None

    def _opening_of(self, number: int) -> Tick:
        tick = self._opening.get(number)
        if tick is None:
            step, _, t = tick_within(self._store.opening(number))
            tick = Tick(step, t) if step is not None else self.at_end(Place(number, 0))
            self._opening[number] = tick
        return tick

    def _keep(self, place: Place, tick: Tick) -> Tick:
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[place] = tick
        return tick


def tick_within(events: list[AnyEvent]) -> tuple[int | None, int, int]:
    """(the last planned step, or None where these events don't tell it; a guess at it; the latest time, or 0)."""
    step: int | None = None
    guess = t = 0
    for event in events:
        own: Any = event
        kind = event.__class__
        if kind is StepPlanned or kind is Keyframe:
            step = own.step
        elif kind is EngineStarted:
            step = 0
        at = getattr(event, "t", 0)
        guess = getattr(event, "step", guess)
        if at > t:
            t = at
    return step, guess, t
