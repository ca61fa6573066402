"""A source for tests of nano-inspect: serves the views of a fake engine's run, and writes down what it is asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from nanolens.errors import InspectError
from nanolens.inspector.view import EventRow, Judgement, Kept, Moment, SourceStatus, Story, Tick, View
from nanolens.telemetry.predicate import Predicate
from views import fake_run, judgement_of, story_of, view_of_fake_run


class FakeControl:
    """Writes down what it is told.

    Attributes:
        calls: (name of the method, arguments).
        refuse: what calls are refused with; "" for none.
        runs: that were asked for.
    """

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.calls: list[tuple[Any, ...]] = []
        self.refuse = ""
        self.listed: dict[int, str] = {}

    def _call(self, *call: Any) -> None:
        self.calls.append(call)
        if self.refuse:
            raise InspectError(self.refuse)

    def of_run(self, run: str) -> FakeControl:
        self.runs.append(run)
        return self

    def pause_engine(self) -> None:
        self._call("pause_engine")

    def continue_engine(self) -> None:
        self._call("continue_engine")

    def step_engine(self, steps: int) -> None:
        self._call("step_engine", steps)

    def breakpoints(self) -> dict[int, str]:
        return dict(self.listed)

    def add_breakpoint(self, predicate: str, action: str = "engine") -> int:
        self._call("add_breakpoint", predicate, action)
        number = max(self.listed, default=0) + 1
        self.listed[number] = predicate
        return number

    def remove_breakpoint(self, number: int) -> None:
        self._call("remove_breakpoint", number)
        self.listed.pop(number, None)

    def pause_sequence(self, seq: int) -> None:
        self._call("pause_sequence", seq)

    def resume_sequence(self, seq: int) -> None:
        self._call("resume_sequence", seq)

    def abort_sequence(self, seq: int) -> None:
        self._call("abort_sequence", seq)

    def set_priority(self, seq: int, priority: int) -> None:
        self._call("set_priority", seq, priority)


class FakeSource:
    """The journal of `fake_run`, live after its last frame. A moment is the number of a frame.

    Attributes:
        asked: names and arguments of the calls.
        status_now: what `status` gives.
        change: applied to each view.
        first: of the frames that are kept.
        trouble: what looks are refused with; "" for none.
        fail_start: what `start` is refused with; "" for none.
    """

    def __init__(self, can_steer: bool = True) -> None:
        self.title = "http://127.0.0.1:8000"
        self.control: FakeControl | None = FakeControl() if can_steer else None
        self.asked: list[tuple[Any, ...]] = []
        self.status_now = SourceStatus("live", time.time())
        self.change: Callable[[View], View] = lambda view: view
        self.trouble = self.fail_start = ""
        self.closed = 0
        self.first, self.last = 1, len(fake_run())
        self._views: dict[int, View] = {}

    @property
    def status(self) -> SourceStatus:
        return self.status_now

    def start(self) -> None:
        if self.fail_start:
            raise InspectError(self.fail_start)

    def close(self) -> None:
        self.closed += 1

    def view(self, moment: Moment | None = None) -> View:
        if self.trouble:
            raise InspectError(self.trouble)
        self._check(moment)
        at = moment.segment if moment else self.last
        if at not in self._views:
            self._views[at] = replace(view_of_fake_run(at), moment=Moment(at, 0, 0))
        return self.change(replace(self._views[at], is_live=moment is None, status=self.status_now))

    def kept(self, moment: Moment) -> Kept:
        oldest = Moment(self.first, 0, 0)
        return Kept(oldest, self._tick(self.first), self._tick(self.last))

    def story(self, seq: int, moment: Moment, now_t: int = 0) -> Story | None:
        self.asked.append(("story", seq))
        return story_of(seq, moment.segment)

    def verdict(self, seq: int, moment: Moment, now_t: int = 0) -> Judgement | None:
        self.asked.append(("verdict", seq))
        return judgement_of(seq, moment.segment)

    def at_step(self, step: int, near: Moment | None = None) -> Moment:
        self.asked.append(("at_step", step))
        return self._first(lambda view: view.keyframe.step >= step)

    def at_time(self, t: int, near: Moment | None = None) -> Moment:
        self.asked.append(("at_time", t))
        return self._first(lambda view: view.keyframe.t >= t)

    def move(self, moment: Moment, steps: int) -> Moment:
        self.asked.append(("move", steps))
        self._check(moment)
        return Moment(min(self.last, max(1, moment.segment + steps)), 0, 0)

    def find(self, moment: Moment, predicate: Predicate | None, forward: bool) -> EventRow | None:
        self.asked.append(("find", predicate.text if predicate else None, forward))
        self._check(moment)
        frames = range(moment.segment + 1, self.last + 1) if forward else range(moment.segment - 1, 0, -1)
        for frame in frames:
            for event in fake_run()[frame - 1]:
                if predicate is None or predicate.matches(event):
                    return EventRow(Moment(frame, 0, 0), 0, 0, event)
        return None

    def _check(self, moment: Moment | None) -> None:
        if moment is not None and moment.segment < self.first:
            raise InspectError(f"segment {moment.segment} is no longer there")

    def _tick(self, frame: int) -> Tick:
        keyframe = view_of_fake_run(frame).keyframe
        return Tick(keyframe.step, keyframe.t)

    def _first(self, holds: Callable[[View], bool]) -> Moment:
        for frame in range(self.first, self.last + 1):
            if holds(self.view(Moment(frame, 0, 0))):
                return Moment(frame, 0, 0)
        return Moment(self.last, 0, 0)
