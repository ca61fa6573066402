"""What the front of a fleet knows of its replicas, and which of them a call goes to. Knows neither HTTP nor Ray."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from .fleet_cache import CacheBelief
from .fleet_losses import Losses
from .fleet_messages import Ask, HttpCall, Report, Route

MAX_HOMES = 1 << 17  # hashes
FRESH_S = 30.0
WORTH = 16  # requests: what a prompt that is cached whole is worth, at least, where a replica runs as many
CROWD = 4  # requests with one prefix, with which having it cached is worth half: a copy is used soon
COPY = 0.25  # of that worth: what it costs to have a prefix at one replica more


@dataclass
class ReplicaView:
    """One replica.

    Attributes:
        report: the last one.
        cache: what it is believed to cache.
        asked: when it was asked for the next one.
        in_flight: calls that were sent to it from here and have not ended, by number.
        most: as many as were in flight at once since the last report.
        beside: sequences that it held beside those calls, as the last report had it.
        fresh: blocks that were to be computed there lately, as of `fresh_t`; half as much every FRESH_S.
        fresh_t: when.
    """

    report: Report
    cache: CacheBelief
    asked: float | None = None
    in_flight: set[int] = field(default_factory=set)
    most: int = 0
    beside: int = 0
    fresh: float = 0.0
    fresh_t: float = 0.0

    @property
    def load(self) -> int:
        """Requests that it holds: those sent from here, and what it said that it held beside them."""
        return len(self.in_flight) + self.beside

    def lacks_blocks(self, needed: int) -> bool:
        """Whether sequences wait there for blocks, as a prompt that needs so many new ones would."""
        return self.report.waiting > 0 and self.report.free_blocks < needed

    def fresh_at(self, now: float) -> float:
        """Blocks that were to be computed there lately."""
        return self.fresh * float(0.5 ** ((now - self.fresh_t) / FRESH_S))

    def take(self, report: Report, now: float) -> None:
        """Take a report."""
        self.report = report
        self.beside = max(0, report.waiting + report.running - self.most)
        self.most = len(self.in_flight)
        self.cache.take(report, now if self.asked is None else self.asked, now)

    def begin(self, number: int) -> None:
        """A call was sent there."""
        self.in_flight.add(number)
        self.most = max(self.most, len(self.in_flight))

    def expect(self, hashes: Sequence[bytes], matched: int, now: float) -> None:
        """Note that a prompt was sent there, of which so many blocks are cached."""
        self.fresh, self.fresh_t = self.fresh_at(now) + len(hashes) - matched, now
        self.cache.expect(hashes, now)


@dataclass(frozen=True, slots=True)
class _Held:
    """A call: the replica that holds it ("": none yet), its prefix, and all of its prompt."""

    replica: str = ""
    prefix: bytes = b""
    hashes: Sequence[bytes] = ()


class FleetView:
    """The replicas of a fleet. Routers and the front use it from threads of their own.

    Args:
        max_num_seqs: requests that a replica runs at once.
        clock: seconds.

    Attributes:
        losses: replicas that were lost.
        silent: why replicas that give no sign of life get no calls, in words.
    """

    def __init__(self, max_num_seqs: int = 256, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_num_seqs = max_num_seqs
        self.losses = Losses()
        self.silent: dict[str, str] = {}
        self._clock = clock
        self._lock = threading.Lock()
        self._replicas: dict[str, ReplicaView] = {}
        self._last = 0  # number of a call
        self._calls: dict[int, _Held] = {}
        self._crowds: Counter[bytes] = Counter()  # last hash of a prefix -> calls with it that some replica holds
        self._homes: OrderedDict[bytes, str] = OrderedDict()  # hash -> the replica that prompts with it go to

    @property
    def replicas(self) -> tuple[str, ...]:
        """Ids of those that run, sorted."""
        with self._lock:
            return tuple(sorted(self._replicas))

    def reports(self) -> list[tuple[Report, int, int]]:
        """Of each replica: its last report, calls in flight from here, and how many blocks it is known to cache.

        That one has fallen silent since its report is in there, too.
        """
        with self._lock:
            views = [self._replicas[name] for name in sorted(self._replicas)]
            reports = [replace(each.report, trouble=self._trouble(each.report)) for each in views]
            return [(it, len(each.in_flight), len(each.cache)) for it, each in zip(reports, views, strict=True)]

    def ask(self, replica: str) -> Ask:
        """What to ask a replica for: what has changed since its last report."""
        with self._lock:
            view = self._replicas.get(replica)
            if view is None:
                return Ask(replica)
            view.asked = self._clock()
            return Ask(replica, view.report.version)

    def update(self, replicas: Iterable[str]) -> None:
        """Take the list of those that run."""
        with self._lock:
            names = set(replicas)
            for gone in self._replicas.keys() - names:
                self.losses.left(self._replicas.pop(gone).report, gone in self.silent)
            for name in names - self._replicas.keys():
                self._replicas[name] = self._unknown(name)

    def died(self, replica: str) -> None:
        """The process of a replica is gone, whether it is known here any more or not."""
        with self._lock:
            view = self._replicas.pop(replica, None)
            self.losses.died(view.report if view is not None else Report(replica), replica in self.silent)

    def take(self, report: Report) -> None:
        """Take a report; one of a replica that is gone is dropped."""
        with self._lock:
            if (view := self._replicas.get(report.replica)) is not None:
                view.take(report, self._clock())

    def open(self) -> int:
        """A call that generates is about to be routed: its number, good until `end`."""
        with self._lock:
            self._last += 1
            self._calls[self._last] = _Held()
            return self._last

    def begin(self, replica: str, number: int, hashes: Sequence[bytes]) -> None:
        """A call goes to a replica, and to no other one any more. One that has ended counts nowhere."""
        now = self._clock()
        with self._lock:
            before = self._calls.get(number)
            if before is None or before.replica == replica:
                return
            self._leave(number)
            home, depth = self._home(hashes)
            prefix = hashes[depth - 1] if depth else b""
            self._calls[number] = _Held(replica, prefix, hashes)
            self._crowds[prefix] += 1
            if (view := self._replicas.get(replica)) is not None:
                view.begin(number)
                matched = view.cache.matched(hashes, now)
                left = self._replicas.get(home)
                self._settle(replica, hashes, left is None or left.cache.matched(hashes, now) < max(1, matched))
                view.expect(hashes, matched, now)

    def end(self, number: int) -> None:
        """A call has ended, however."""
        with self._lock:
            self._leave(number)

    def choose(self, names: Sequence[str], call: HttpCall) -> Route:
        """Say which of these replicas a call goes to, and which are next if that one takes no more.

        The one with the lowest price gets it; see `_prices`.
        """
        with self._lock:
            return self._choose(names, call)

    def _choose(self, names: Sequence[str], call: HttpCall) -> Route:
        views = {name: self._replicas.get(name) or self._unknown(name) for name in names}
        loads = {name: view.load for name, view in views.items()}
        now = self._clock()
        matched = {name: view.cache.matched(call.hashes, now) for name, view in views.items()}
        ages = {name: now - view.cache.as_of for name, view in views.items()}
        route = Route(loads=loads, matched=matched, ages=ages, blocks=len(call.hashes))
        if call.pinned:
            route.order, route.among, route.reason = (call.pinned,), tuple(names), "pinned"
            route.best_matched = max(matched.values(), default=0)
            return route
        sound = [name for name in names if not self._trouble(views[name].report)] or list(names)
        open_to = [name for name in sound if name not in call.avoid] or sound
        prices = self._prices({name: views[name] for name in open_to}, matched, call.hashes, now)
        route.order = tuple(sorted(open_to, key=lambda name: (prices[name], loads[name], _tie(name, call.hashes))))
        route.among = route.order
        route.best_matched = max(matched[name] for name in open_to)
        route.reason = _reason(route, views)
        return route

    def _prices(
        self, views: dict[str, ReplicaView], matched: dict[str, int], hashes: Sequence[bytes], now: float
    ) -> dict[str, float]:
        """What it would cost to have each of these answer a prompt, in requests.

        That is how many more it holds than the least loaded one, those that have to queue twice, and what it has to
        compute: the share of the prompt that it does not cache, times what the whole is worth. That is WORTH or the
        mean load, and less for a prefix that many ask for at once, as a copy of it pays soon. Elsewhere than where its
        prefix goes, a prompt costs COPY of that more, as a copy displaces other prefixes. The part that nobody caches
        costs more where more was computed lately, so that prefixes spread over the fleet.
        """
        queues = {name: view.load + max(0, view.load - self.max_num_seqs) for name, view in views.items()}
        least = min(queues.values())
        prices = {name: float(queue - least) for name, queue in queues.items()}
        if not hashes:
            return prices
        home, depth = self._home(hashes)
        crowd = self._crowds[hashes[depth - 1]] if depth else 0
        worth = max(min(WORTH, self.max_num_seqs), sum(view.load for view in views.values()) / len(views))
        worth /= 1 + crowd / CROWD
        unknown = 1 - max(matched[name] for name in views) / len(hashes)
        fresh = {name: view.fresh_at(now) / len(hashes) for name, view in views.items()}
        lowest = min(fresh.values())
        for name, view in views.items():
            prices[name] += worth * (1 - matched[name] / len(hashes)) + unknown * min(worth, fresh[name] - lowest)
            if view.lacks_blocks(len(hashes) - matched[name] + 1):
                prices[name] += worth
            if name != home and home in views:
                prices[name] += worth * COPY * depth / len(hashes)
        return prices

    def _home(self, hashes: Sequence[bytes]) -> tuple[str, int]:
        """The replica that prompts like this one go to, and how many leading blocks of it have gone anywhere yet."""
        home = ""
        for depth, each in enumerate(hashes):
            if (found := self._homes.get(each)) is None:
                return home, depth
            home = found
        return home, len(hashes)

    def _settle(self, replica: str, hashes: Sequence[bytes], moves: bool) -> None:
        """A prompt goes to a replica, which becomes the home of its blocks: of those without one, or of all."""
        for each in hashes:
            if moves or each not in self._homes:
                self._homes[each] = replica
            self._homes.move_to_end(each)
        while len(self._homes) > MAX_HOMES:
            self._homes.popitem(last=False)

    def _unknown(self, replica: str) -> ReplicaView:
        return ReplicaView(Report(replica), CacheBelief(self._clock()))

    def _trouble(self, report: Report) -> str:
        return self.silent.get(report.replica, "") or report.trouble

    def _leave(self, number: int) -> None:
        held = self._calls.pop(number, _Held())
        if (view := self._replicas.get(held.replica)) is not None:
            view.in_flight.discard(number)
            view.cache.released(held.hashes)
        if held.replica:
            self._crowds[held.prefix] -= 1
            if not self._crowds[held.prefix]:
                del self._crowds[held.prefix]


def _reason(route: Route, views: dict[str, ReplicaView]) -> str:
    """Why a call goes to the first one."""
    first, most = route.order[0], route.best_matched
    if len(route.order) == 1:
        return "only"
    if route.matched[first] == most:
        return "prefix" if most else "load"
    holders = [name for name in route.order if route.matched[name] == most]
    needed = route.blocks - most + 1
    return "no_blocks" if all(views[name].lacks_blocks(needed) for name in holders) else "load"


def _tie(name: str, hashes: Sequence[bytes]) -> bytes:
    """Sorts those that are alike by the prompt's first block, so that equal prompts meet."""
    return blake2b(name.encode() + (hashes[0] if hashes else b""), digest_size=8).digest()


_FLEETS: dict[str, FleetView] = {}


def fleet_of(name: str) -> FleetView:
    """This process's view of a fleet: the router, which Ray makes, and the front find each other here."""
    return _FLEETS.setdefault(name, FleetView())
