"""What the front of a fleet knows of its replicas, and which of them a call goes to. Knows neither HTTP nor Ray."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from .fleet_messages import HttpCall, Report, Route

HASH_BYTES = 8  # of a block, as the journal has it
RECENT_S = 5.0  # for which a prompt that was sent to a replica counts as cached there, before the journal says so
MAX_RECENT = 1 << 16  # hashes
FRESH_S = 30.0


@dataclass
class ReplicaView:
    """One replica.

    Attributes:
        report: the last one.
        cached: hashes of the blocks that its engine caches.
        recent: hashes of prompts that were sent to it -> when.
        in_flight: calls that were sent to it from here and have not ended.
        fresh: blocks that were to be computed there lately, as of `fresh_t`; half as much every FRESH_S.
        fresh_t: when.
    """

    report: Report
    cached: set[bytes] = field(default_factory=set)
    recent: dict[bytes, float] = field(default_factory=dict)
    in_flight: set[str] = field(default_factory=set)
    fresh: float = 0.0
    fresh_t: float = 0.0

    @property
    def load(self) -> int:
        """Requests that it holds: as it said, or, where that is older, those sent from here."""
        return max(len(self.in_flight), self.report.waiting + self.report.running)

    def fresh_at(self, now: float) -> float:
        """Blocks that were to be computed there lately."""
        return self.fresh * float(0.5 ** ((now - self.fresh_t) / FRESH_S))

    def matched(self, hashes: Sequence[bytes], since: float) -> int:
        """How many leading blocks it caches, or is about to, as prompts sent after `since` are computed there."""
        for count, each in enumerate(hashes):
            if each not in self.cached and self.recent.get(each, -1.0) < since:
                return count
        return len(hashes)

    def take(self, report: Report) -> None:
        """Take a report."""
        self.report = report
        if report.is_whole:
            self.cached.clear()
        self.cached.difference_update(_split(report.removed))
        self.cached.update(_split(report.added))

    def expect(self, hashes: Sequence[bytes], matched: int, now: float) -> None:
        """Note that a prompt was sent there, of which so many blocks are cached."""
        self.fresh, self.fresh_t = self.fresh_at(now) + len(hashes) - matched, now
        for each in hashes:
            self.recent.pop(each, None)
            self.recent[each] = now
        while self.recent and (len(self.recent) > MAX_RECENT or next(iter(self.recent.values())) < now - RECENT_S):
            del self.recent[next(iter(self.recent))]


class FleetView:
    """The replicas of a fleet. Routers and the front use it from threads of their own.

    Args:
        slack: how many requests more than the least loaded replica one may hold and still get those whose prefix it
            caches.
        clock: seconds.
    """

    def __init__(self, slack: int = 8, clock: Callable[[], float] = time.monotonic) -> None:
        self.slack = slack
        self._clock = clock
        self._lock = threading.Lock()
        self._replicas: dict[str, ReplicaView] = {}

    @property
    def replicas(self) -> tuple[str, ...]:
        """Ids of those that run, sorted."""
        with self._lock:
            return tuple(sorted(self._replicas))

    def reports(self) -> list[tuple[Report, int, int]]:
        """Of each replica: its last report, calls in flight from here, and how many blocks it is known to cache."""
        with self._lock:
            views = [self._replicas[name] for name in sorted(self._replicas)]
            return [(view.report, len(view.in_flight), len(view.cached)) for view in views]

    def version_of(self, replica: str) -> int:
        """Up to which change of its cache a replica is known; 0: not at all."""
        with self._lock:
            view = self._replicas.get(replica)
            return 0 if view is None else view.report.version

    def update(self, replicas: Iterable[str]) -> None:
        """Take the list of those that run."""
        with self._lock:
            names = set(replicas)
            for gone in self._replicas.keys() - names:
                del self._replicas[gone]
            for name in names - self._replicas.keys():
                self._replicas[name] = ReplicaView(Report(name))

    def take(self, report: Report) -> None:
        """Take a report; one of a replica that is gone is dropped."""
        with self._lock:
            if (view := self._replicas.get(report.replica)) is not None:
                view.take(report)

    def begin(self, replica: str, number: str, hashes: Sequence[bytes]) -> None:
        """A call that generates went to a replica."""
        now = self._clock()
        with self._lock:
            if (view := self._replicas.get(replica)) is not None:
                view.in_flight.add(number)
                view.expect(hashes, view.matched(hashes, now - RECENT_S), now)

    def end(self, replica: str, number: str) -> None:
        """A call has ended."""
        with self._lock:
            if (view := self._replicas.get(replica)) is not None:
                view.in_flight.discard(number)

    def choose(self, names: Sequence[str], call: HttpCall) -> Route:
        """Say which of these replicas a call goes to, and which are next if that one takes no more.

        The most of its prompt that is cached decides, as long as that replica is not too far ahead in load and has
        free blocks where it has a queue; then load. Of those about equally loaded the one that had least to compute
        lately gets it, so that prefixes spread over the fleet.
        """
        with self._lock:
            views = {name: self._replicas.get(name) or ReplicaView(Report(name)) for name in names}
        loads = {name: view.load for name, view in views.items()}
        now = self._clock()
        matched = {name: view.matched(call.hashes, now - RECENT_S) for name, view in views.items()}
        route = Route(loads=loads, matched=matched, blocks=len(call.hashes))
        if call.pinned:
            route.order, route.reason, route.best_matched = (call.pinned,), "pinned", matched.get(call.pinned, 0)
            return route
        sound = [name for name in names if not views[name].report.trouble] or list(names)
        open_to = [name for name in sound if name not in call.avoid] or sound
        by_load = sorted(open_to, key=self._order(views, open_to, call.hashes, now))
        first, route.reason = self._first(by_load, matched, views, len(call.hashes))
        route.order = (first, *(name for name in by_load if name != first))
        route.best_matched = max(matched[name] for name in open_to)
        return route

    def _order(
        self, views: dict[str, ReplicaView], names: Sequence[str], hashes: Sequence[bytes], now: float
    ) -> Callable[[str], tuple[int, int, float, int, bytes]]:
        """A key that sorts by load; among equals by the prompt's first block, so that equal prompts meet."""
        most = min(views[name].load for name in names) + self.slack // 2

        def key(name: str) -> tuple[int, int, float, int, bytes]:
            view = views[name]
            tie = blake2b(name.encode() + (hashes[0] if hashes else b""), digest_size=8).digest()
            fresh = round(view.fresh_at(now) / max(1, len(hashes)), 1) if hashes else 0.0
            return max(0, view.load - most), view.report.waiting, fresh, view.load, tie

        return key

    def _first(
        self, by_load: Sequence[str], matched: dict[str, int], views: dict[str, ReplicaView], blocks: int
    ) -> tuple[str, str]:
        """The first choice, and why. `by_load` has the least loaded one first."""
        least = by_load[0]
        if len(by_load) == 1:
            return least, "only"
        holder = max(by_load, key=lambda name: matched[name])  # the least loaded of those that hold the most
        if not matched[holder]:
            return least, "load"
        if views[holder].load - views[least].load > self.slack:
            return least, "load"
        report = views[holder].report
        needs = blocks - matched[holder] + 1
        if report.waiting and report.free_blocks < needs and not views[least].report.waiting:
            return least, "no_blocks"
        return holder, "prefix"


def _split(hashes: bytes) -> list[bytes]:
    return [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]


_FLEETS: dict[str, FleetView] = {}


def fleet_of(name: str) -> FleetView:
    """This process's view of a fleet: the router, which Ray makes, and the front find each other here."""
    return _FLEETS.setdefault(name, FleetView())
