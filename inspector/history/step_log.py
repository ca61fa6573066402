"""Steps as rows, folded from events one by one. Knows neither files nor terminals."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from ...telemetry.events import (
    AnyEvent,
    EngineContinued,
    EngineStarted,
    JournalDropped,
    PrefixMatched,
    SequencePreempted,
    StatusChanged,
    StepFinished,
    StepPlanned,
    StepRanks,
)
from ..view import STEPS_SHOWN, StepRow


class StepLog:
    """The last steps of a run, oldest first.

    Of events before the first step that it sees, what planning that step did counts only as far as it was seen.

    Args:
        limit: rows that are kept.

    Attributes:
        step: the last planned step; 0 before any.
        t: when the tokens of the step before were read; 0 before any.
    """

    def __init__(self, limit: int = STEPS_SHOWN) -> None:
        self.step = 0
        self.t = 0
        self._limit = limit
        self._rows: deque[StepRow] = deque(maxlen=limit)
        self._in_flight: dict[int, int] = {}  # step -> the time from which it could have been worked on
        self._demand = 0  # sequences that wait or run
        self._busy_t = 0  # since when there have been any, and the engine was not paused; 0: since before this log
        self._preemptions = self._queried = self._hit = 0

    def apply(self, event: AnyEvent) -> None:
        """Take one event; most kinds cost one look-up."""
        handler = _HANDLERS.get(event.__class__)
        if handler is not None:
            handler(self, event)

    def apply_all(self, events: Iterable[AnyEvent]) -> None:
        """Take a batch."""
        handlers = _HANDLERS
        for event in events:
            handler = handlers.get(event.__class__)
            if handler is not None:
                handler(self, event)

    def rows(self) -> list[StepRow]:
        """The rows now; a later event leaves the list as it is."""
        return list(self._rows)

    def lose(self) -> None:
        """Say that events were missed: what was in flight is not waited for any more."""
        self._in_flight.clear()
        self._preemptions = self._queried = self._hit = 0
        self.t = self._demand = self._busy_t = 0

    def _lost(self, e: EngineStarted | JournalDropped) -> None:
        self.lose()

    def _preempted(self, e: SequencePreempted) -> None:
        self._preemptions += 1

    def _matched(self, e: PrefixMatched) -> None:
        if not e.recompute:
            self._queried += e.queried
            self._hit += e.hit

    def _status(self, e: StatusChanged) -> None:
        came, went = e.new in _WANTS, e.old in _WANTS
        if came and not went:
            if not self._demand:
                self._busy_t = e.t
            self._demand += 1
        elif went and not came:
            self._demand = max(0, self._demand - 1)

    def _continued(self, e: EngineContinued) -> None:
        self._busy_t = e.t

    def _planned(self, e: StepPlanned) -> None:
        self.step = e.step
        self._demand = e.running + e.waiting
        self._in_flight[e.step] = self._busy_t
        self._rows.append(StepRow(e, None, 0, 0, self._preemptions, self._queried, self._hit))
        self._preemptions = self._queried = self._hit = 0

    def _finished(self, e: StepFinished) -> None:
        before, self.t = self.t, e.t
        busy_t = self._in_flight.pop(e.step, 0)
        for failed in [step for step in self._in_flight if step < e.step]:
            del self._in_flight[failed]  # its tokens are never read
        at = self._place(e.step)
        if at is not None:
            self._rows[at] = _done(self._rows[at], e, max(before, busy_t))

    def _told(self, e: StepRanks) -> None:
        at = self._place(e.step)
        if at is not None:
            self._rows[at] = replace(self._rows[at], ranks=e)

    def _place(self, step: int) -> int | None:
        """Where the row of a step is, if it is still kept."""
        for at in range(len(self._rows) - 1, -1, -1):
            found = self._rows[at].planned.step
            if found <= step:
                return at if found == step else None
        return None


def _done(row: StepRow, e: StepFinished, before: int) -> StepRow:
    """A row whose tokens were read.

    Args:
        row: the step as planned.
        e: its end.
        before: since when it could have been worked on: the reading of the step before, or the arrival of work, or the
            end of a pause, after that; 0 where none of these was seen.
    """
    begin = before or row.planned.t - e.plan_ns
    host = (max(begin, row.planned.t - e.plan_ns), min(e.t, row.planned.t + e.launch_ns))
    waited = max(begin, e.t - max(e.device_ns, e.wait_ns))  # from then on the device computed, up to the reading
    worked = max(0, min(host[1], waited) - host[0]) + e.t - waited
    interval = max(0, e.t - begin)
    return replace(row, finished=e, interval_ns=interval, gap_ns=max(0, interval - worked))


_WANTS = frozenset({"WAITING", "RUNNING"})
_HANDLERS: dict[type, Callable[[StepLog, Any], None]] = {
    StatusChanged: StepLog._status,
    EngineContinued: StepLog._continued,
    StepPlanned: StepLog._planned,
    StepFinished: StepLog._finished,
    StepRanks: StepLog._told,
    SequencePreempted: StepLog._preempted,
    PrefixMatched: StepLog._matched,
    EngineStarted: StepLog._lost,
    JournalDropped: StepLog._lost,
}
