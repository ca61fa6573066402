"""Breakpoints: predicates over events, what each one does, and which events of a step met them.

Knows events and the predicate language; the core records the hits and pauses.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import InvalidRequest, shown
from ..telemetry.event_fields import NO_NAMES, Names, RequestNames, names_sequences, tag_of
from ..telemetry.events import AnyEvent, BreakpointHit, EngineContinued, EnginePaused, Keyframe
from ..telemetry.predicate import Predicate, parse

ACTIONS = ("engine", "sequence")
# What a hit itself brings about, or what only repeats the state, must not be hit again.
SILENT: frozenset[type] = frozenset((BreakpointHit, EnginePaused, EngineContinued, Keyframe))


@dataclass(frozen=True, slots=True)
class Hit:
    """An event met a breakpoint's predicate.

    Attributes:
        number: of the breakpoint.
        predicate: its text.
        action: engine (it pauses), sequence (`seq` pauses).
        event: the event's tag.
        seq: for "sequence" the one to pause; for "engine" the one sequence that met the predicate, or -1 where none
            or several did.
    """

    number: int
    predicate: str
    action: str
    event: str
    seq: int


@dataclass(frozen=True, slots=True)
class _Breakpoint:
    number: int
    predicate: Predicate
    action: str


class Breakpoints:
    """The breakpoints of one engine, by number from 1; a number is never given twice.

    Args:
        live_requests: sequence id -> request id of the live sequences, asked when the first breakpoint is added: from
            then on the events themselves tell. Without it, terms on `request` know later arrivals only.
    """

    def __init__(self, live_requests: Callable[[], Names] | None = None) -> None:
        self._live_requests = live_requests
        self._numbers = itertools.count(1)
        self._breakpoints: dict[int, _Breakpoint] = {}
        self._by_event: dict[type, list[_Breakpoint]] = {}
        self._requests = RequestNames()

    def __bool__(self) -> bool:
        return bool(self._breakpoints)

    @property
    def listed(self) -> dict[int, str]:
        """Number -> predicate, with the action behind it where that is not "engine"."""
        return {
            each.number: each.predicate.text + ("" if each.action == "engine" else f" ({each.action})")
            for each in self._breakpoints.values()
        }

    def add(self, predicate: str, action: str = "engine") -> int:
        """Set a breakpoint for the batches that are checked from now on.

        Args:
            predicate: in the language of telemetry/predicate.py.
            action: "engine" pauses the engine, "sequence" each sequence that meets the predicate.

        Returns:
            Its number.

        Raises:
            InvalidRequest: with field `predicate` or `action`; nothing has changed.
        """
        if not isinstance(action, str) or action not in ACTIONS:
            raise InvalidRequest("action", f"action={shown(action)}: must be one of {', '.join(ACTIONS)}")
        parsed = parse(predicate)
        events = parsed.events - SILENT
        if not events:
            silent = ", ".join(sorted(map(tag_of, SILENT)))
            raise InvalidRequest("predicate", f"predicate: {parsed.text}: no breakpoint is hit by {silent}")
        if action == "sequence" and not any(map(names_sequences, events)):
            whose = ", ".join(sorted(map(tag_of, events)))
            message = f"predicate: {parsed.text}: {whose} names no sequence to pause; use action engine"
            raise InvalidRequest("predicate", message)
        if not self._breakpoints:
            self._requests = RequestNames(NO_NAMES if self._live_requests is None else self._live_requests())
        number = next(self._numbers)
        self._breakpoints[number] = _Breakpoint(number, parsed, action)
        self._index()
        return number

    def remove(self, number: int) -> bool:
        """Take a breakpoint away; False when there is none of this number."""
        if self._breakpoints.pop(number, None) is None:
            return False
        self._index()
        return True

    def check(self, events: Sequence[AnyEvent]) -> list[Hit]:
        """The hits of one batch of events, in the order of the events.

        A breakpoint with action "engine" is hit at most once a batch, one with "sequence" once for each sequence.
        """
        hits: dict[tuple[int, int], Hit] = {}
        learn, by_event, names = self._requests.learn, self._by_event, self._requests.names
        for event in events:
            learn(event)
            for each in by_event.get(event.__class__, ()):
                if each.predicate.matches(event, names):
                    for hit in _hits(each, event, names):
                        hits.setdefault((each.number, hit.seq if each.action == "sequence" else -1), hit)
        return list(hits.values())

    def _index(self) -> None:
        self._by_event = {}
        for each in self._breakpoints.values():
            for kind in each.predicate.events - SILENT:
                self._by_event.setdefault(kind, []).append(each)


def _hits(each: _Breakpoint, event: AnyEvent, names: Names) -> list[Hit]:
    """What an event that met a breakpoint's predicate comes to."""
    seqs = each.predicate.sequences(event, names)
    if each.action == "engine" and len(seqs) != 1:
        seqs = [-1]
    return [Hit(each.number, each.predicate.text, each.action, tag_of(event.__class__), seq) for seq in seqs]
