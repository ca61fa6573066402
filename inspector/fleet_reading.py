"""The journals of several replicas read as one: on one clock, with names that tell whose a request is.

Every journal keeps its own step costs and its own culprits. Knows neither flags nor terminals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from ..errors import JournalError
from ..telemetry.latency import Breakdown
from ..telemetry.tracks import RequestTrack
from .describe import plural
from .fleet_tries import generations, grouped
from .latency_reading import LatencyReading, read_latency, require_requests
from .trace_text import cost_words
from .units import duration

NS = 1_000_000_000
ONE_CLOCK_NS = NS  # wall offsets that are closer belong to one clock, unless boot ids tell that it were two


@dataclass(frozen=True, slots=True)
class Replica:
    """One journal of a fleet.

    Attributes:
        name: the last part of its path, or as many parts as tell it from the others.
        reading: its run.
        clock: 0, 1, ...: those with the same number count time on the same CLOCK_MONOTONIC.
        offset_ns: wall clock minus that clock, the same for all that share it: the smallest that one of them measured.
    """

    name: str
    reading: LatencyReading
    clock: int
    offset_ns: int

    def wall(self, t: int) -> int:
        """A time of its journal in nanoseconds since 1970."""
        return t + self.offset_ns


class Asked(NamedTuple):
    """A request, and the replica that it was asked of."""

    replica: Replica
    request: RequestTrack

    @property
    def arrived(self) -> int:
        """When, in nanoseconds since 1970."""
        return self.replica.wall(self.request.arrived_t)

    def breakdown(self) -> Breakdown:
        """Where its time went."""
        return self.replica.reading.latency.breakdown(self.request)


class Fleet:
    """Several journals.

    Attributes:
        replicas: in the order given.
        clocks: how many CLOCK_MONOTONICs they counted on.
        disagreement_ns: the most by which the wall offsets differ that were measured on one clock: how well a journal
            knows the wall clock. Between those that share a clock it adds no error.
    """

    def __init__(self, readings: Sequence[LatencyReading]) -> None:
        offsets = [reading.started.wall_offset_ns for reading in readings]
        clocks = _clocks(offsets, [reading.started.boot_id for reading in readings])
        spread: dict[int, list[int]] = {}
        for clock, offset in zip(clocks, offsets, strict=True):
            spread.setdefault(clock, []).append(offset)
        kept = {clock: min(same) for clock, same in spread.items()}
        self.disagreement_ns = max(max(same) - min(same) for same in spread.values())
        names = _names([reading.path for reading in readings])
        self.clocks = len(kept)
        self.replicas = tuple(
            Replica(name, reading, clock, kept[clock])
            for name, reading, clock in zip(names, readings, clocks, strict=True)
        )

    @cached_property
    def asked(self) -> list[Asked]:
        """All requests in order of arrival."""
        every = (Asked(replica, request) for replica in self.replicas
                 for request in replica.reading.latency.tracks.all_requests)  # fmt: skip
        return sorted(every, key=lambda asked: asked.arrived)

    def name_of(self, asked: Asked) -> str:
        """Its id; with its replica where another replica has a request of that id."""
        return self.called(asked.request.request, asked.replica.name)

    def called(self, request: str, replica: str) -> str:
        """The same, of an id and a replica's name."""
        return f"{request}@{replica}" if self._holders[request] > 1 else request

    def named(self, name: str) -> list[Asked]:
        """The requests that are called so, `ID` or `ID@REPLICA`, in order of arrival."""
        return [a for a in self.asked if name in (a.request.request, f"{a.request.request}@{a.replica.name}")]

    def tries(self, asked: Asked) -> list[Asked]:
        """A request and the other tries of what its client sent, in order of arrival."""
        return self._group_of[id(asked.request)]

    def count_words(self, asked: Sequence[Asked]) -> str:
        """How many requests clients sent, where these are all their tries; and how many tries, if those are more."""
        count = self.num_sent(asked)
        sent = plural(count, "request")
        return sent if count == len(asked) else f"{sent} in {len(asked)} tries"

    def num_sent(self, asked: Sequence[Asked]) -> int:
        """How many requests clients sent, of which these are tries."""
        return len({id(self.tries(one)) for one in asked})

    @property
    def num_tried_again(self) -> int:
        """How many of all requests are further tries of one that a client sent."""
        return len(self.asked) - self.num_sent(self.asked)

    @cached_property
    def generations(self) -> list[list[Replica]]:
        """Replicas that ran at the same time, or in an unbroken chain of such, together; the newest first."""
        lives = []
        for replica in self.replicas:
            tracks = replica.reading.latency.tracks
            lives.append((replica.wall(tracks.begin_t), replica.wall(tracks.t), replica))
        return generations(lives)

    def notes(self) -> list[str]:
        """What has to be said of the journals together."""
        newest, *older = self.generations
        if not older:
            return []
        ended = _few([replica.name for group in reversed(older) for replica in group])
        return [f"{ended} had ended before {_few([replica.name for replica in newest])} began: if that was an earlier "
                "start of the fleet, leave it out to read of one fleet"]  # fmt: skip

    def clock_words(self) -> str:
        """How far times of different journals can be compared."""
        most = duration(self.disagreement_ns) if self.disagreement_ns >= 1000 else f"{self.disagreement_ns} ns"
        within = f"wall offsets measured on one clock disagree by {most} at most"
        if self.clocks == 1:
            return f"all count on one host's clock; {within}"
        apart = f"{self.clocks} clocks (hosts, or boots of one), compared by their wall time, whose error is not known"
        return apart if self.clocks == len(self.replicas) else f"{apart}; {within}"

    @cached_property
    def _holders(self) -> Counter[str]:
        """Id -> how many replicas have it."""
        return Counter(name for replica in self.replicas for name in replica.reading.latency.tracks.requests)

    @cached_property
    def _group_of(self) -> dict[int, list[Asked]]:
        return {id(one.request): group for group in grouped(self.asked) for one in group}


def read_fleet(paths: Sequence[str], run_id: str | None = None) -> Fleet:
    """Read the newest run of each journal. Those without a request are listed, too: a replica may have had none.

    Raises:
        JournalError: one can't be read, is given twice, none holds a request, or a run was named: runs are those of
            one journal.
    """
    if run_id is not None:
        raise JournalError(f"--run {run_id}: of several journals the newest runs are read; leave it out")
    seen: dict[Path, str] = {}
    for path in paths:
        if seen.setdefault(Path(path).resolve(), path) != path or paths.count(path) > 1:
            raise JournalError(f"{path}: the same journal twice; give each replica's once")
    readings: dict[str, LatencyReading] = {}
    for path in paths:
        reading = read_latency(path, may_be_empty=True)
        other = readings.setdefault(reading.run, reading)
        if other is not reading:
            raise JournalError(f"{other.path}, {path}: both hold run {reading.run}; give each replica's journal once")
    require_requests(*readings.values())
    return Fleet(list(readings.values()))


def about(fleet: Fleet) -> dict[str, object]:
    """What JSON says of the journals."""
    replicas = [
        {
            "replica": replica.name, "journal": replica.reading.path, "run": replica.reading.run,
            "clock": replica.clock, "wall_offset_ns": replica.reading.started.wall_offset_ns,
            "boot_id": replica.reading.started.boot_id, "engine": replica.reading.engine,
            "generation": next(i for i, group in enumerate(fleet.generations) if replica in group),
            "notes": list(replica.reading.notes), "model": asdict(replica.reading.latency.model),
        }
        for replica in fleet.replicas
    ]  # fmt: skip
    return {
        "replicas": replicas, "clocks": fleet.clocks, "disagreement_ns": fleet.disagreement_ns,
        "notes": fleet.notes(), "sent": fleet.num_sent(fleet.asked),
    }  # fmt: skip


def heads(fleet: Fleet) -> Iterator[str]:
    """A sentence on each journal, and those on all of them."""
    for replica in fleet.replicas:
        reading, cost = replica.reading, cost_words(replica.reading.latency.model)
        count = plural(len(reading.latency.tracks.all_requests), "request")
        yield "; ".join([f"{replica.name}: run {reading.run}, {reading.started.model}: {count}", cost, *reading.notes])
    yield from fleet.notes()


def _few(names: Sequence[str]) -> str:
    """Some names, the first of many."""
    return " ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def wall_words(ns: int) -> str:
    """A wall time, to the microsecond."""
    return f"{datetime.fromtimestamp(ns // NS, UTC):%Y-%m-%d %H:%M:%S}.{ns % NS // 1000:06d} UTC"


def _clocks(offsets: Sequence[int], boots: Sequence[str]) -> list[int]:
    """Which clock each journal counted on, numbered by their offsets.

    Those of one boot id share one where all their offsets lie within ONE_CLOCK_NS; ids that differ never do. Where a
    journal has no id, as older ones, offsets alone decide; if they fit to those of several ids it keeps a clock of its
    own. The order of the journals changes nothing.
    """
    groups: list[list[int]] = []
    for boot in sorted(set(boots) - {""}):
        groups += _close(offsets, [i for i, each in enumerate(boots) if each == boot])
    known = [list(group) for group in groups]
    for group in _close(offsets, [i for i, each in enumerate(boots) if not each]):
        near = [at for at, each in enumerate(known) if _spread(offsets, [*each, *group]) <= ONE_CLOCK_NS]
        if len(near) == 1 and _spread(offsets, [*groups[near[0]], *group]) <= ONE_CLOCK_NS:
            groups[near[0]] += group
        else:
            groups.append(group)
    groups.sort(key=lambda group: min(offsets[i] for i in group))
    clock_of = {i: clock for clock, group in enumerate(groups) for i in group}
    return [clock_of[i] for i in range(len(offsets))]


def _close(offsets: Sequence[int], which: Sequence[int]) -> list[list[int]]:
    """These journals in groups, each in order of offsets: from the smallest on, as many as all lie close together."""
    groups: list[list[int]] = []
    for i in sorted(which, key=lambda i: offsets[i]):
        if groups and offsets[i] - offsets[groups[-1][0]] <= ONE_CLOCK_NS:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def _spread(offsets: Sequence[int], which: Sequence[int]) -> int:
    """How far apart the offsets of these journals lie."""
    return max(offsets[i] for i in which) - min(offsets[i] for i in which)


def _names(paths: Sequence[str]) -> list[str]:
    """The shortest ends of paths that differ."""
    parts = [Path(path).resolve().parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]
