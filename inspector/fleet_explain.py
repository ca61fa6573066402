"""`nano-trace explain` on several journals: which request is meant, its tries on other replicas, and its lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import JournalError
from ..telemetry.events import RequestRefused
from .describe import plural
from .explain_view import explained_lines
from .explained import VERSION, Explained, as_dict, explain, left_out_words, ranked, require
from .fleet_reading import Asked, Fleet, Replica, about, heads, wall_words
from .latency_reading import refusal
from .trace_text import DIM, Paint, fold, safe, time


@dataclass(frozen=True, slots=True)
class Told:
    """One request of a fleet.

    Attributes:
        asked: the request.
        explained: the same as from its journal alone.
        tries: itself and its tries on other replicas, in order; itself alone where there are none.
    """

    asked: Asked
    explained: Explained
    tries: list[Asked]


def tell(fleet: Fleet, asked: Sequence[Asked], by: str) -> list[Told]:
    """Explain requests, each by its own journal."""
    found: dict[int, Explained] = {}
    for replica in fleet.replicas:
        its = [one for one in asked if one.replica is replica]
        explained = explain(replica.reading, [one.breakdown() for one in its], by)
        found |= {id(one.request): words for one, words in zip(its, explained, strict=True)}
    return [Told(one, found[id(one.request)], fleet.tries(one)) for one in asked]


def named(fleet: Fleet, name: str, use: int | None, by: str) -> list[Asked]:
    """The request called `ID` or `ID@REPLICA`; by its id alone, also its tries elsewhere.

    Raises:
        JournalError: there is none, it has no first token to explain, or several replicas have another one each.
    """
    same = fleet.named(name)
    if not same:
        away = [f"{replica.name}: {refusal(found)}" for replica in fleet.replicas if (found := _refused(replica, name))]
        if away:
            raise JournalError(f"explain: {'; '.join(away)}")
        where = ", ".join(replica.reading.path for replica in fleet.replicas)
        require(name, dict.fromkeys(map(fleet.name_of, fleet.asked)), f"{where}: no journal at {name!r}, and the fleet")
    uses = {replica.name: [one for one in same if one.replica is replica] for replica in fleet.replicas}
    most = max(map(len, uses.values()))
    if use is not None and use > most:
        times = "once" if most == 1 else f"{most} times at most"
        raise JournalError(f"explain: --use {use}: {name!r} was used {times}")
    picked = [its[-1 if use is None else use - 1] for its in uses.values() if len(its) >= (use or 1)]
    tries = fleet.tries(picked[0])
    if any(one not in tries for one in picked):
        names = " or ".join(map(fleet.name_of, picked))
        raise JournalError(f"explain: {name!r} is another request on each replica; give {names}")
    chosen = tries if use is None and name == picked[0].request.request else picked
    if by == "ttft":
        chosen = [one for one in chosen if one.breakdown().ttft_ns]
        if not chosen:
            raise JournalError(f"explain: request {name!r} has no first token")
    return chosen


def _refused(replica: Replica, name: str) -> RequestRefused | None:
    """The request called `ID` or `ID@REPLICA` that a replica turned away."""
    return replica.reading.refused.get(name.removesuffix(f"@{replica.name}"))


def slowest(fleet: Fleet, count: int, p99: bool, by: str) -> tuple[list[Asked], int]:
    """The slowest of all replicas, and how many requests could not be ranked: they have not ended, or no first token.

    Raises:
        JournalError: none has ended, or none has a first token.
    """
    totals = {}
    for index, one in enumerate(fleet.asked):
        found = one.breakdown()
        if found.ttft_ns if by == "ttft" else found.ended:
            totals[index] = found.ttft_ns if by == "ttft" else found.total_ns
    if not totals:
        raise JournalError(f"explain: no request of the fleet has {'a first token' if by == 'ttft' else 'ended'}")
    return [fleet.asked[index] for index in ranked(totals, count, p99)], len(fleet.asked) - len(totals)


def as_json(fleet: Fleet, told: Sequence[Told], by: str, left_out: int) -> dict[str, Any]:
    """All of it as one JSON object; `left_out`: requests that could not be ranked."""
    requests = [
        {"name": fleet.name_of(one.asked), "replica": one.asked.replica.name, "arrived_ns": one.asked.arrived,
         "tries": [{"replica": each.replica.name, "request": each.request.request, "arrived_ns": each.arrived}
                   for each in one.tries],
         "tries_ns": _through_all(one.tries, by)[0], **as_dict(one.explained)}
        for one in told
    ]  # fmt: skip
    return {"version": VERSION, "by": by, **about(fleet), "left_out": left_out, "requests": requests}


def lines(
    fleet: Fleet, told: Sequence[Told], by: str, left_out: int, paint: Paint, columns: int
) -> Iterator[str]:
    """All of it for a terminal; `left_out`: requests that could not be ranked."""
    said: set[tuple[int, ...]] = set()
    for one in told:
        group = tuple(id(each.request) for each in one.tries)
        if len(group) > 1 and group not in said:
            said.add(group)
            yield from fold(_tried(one.tries, by), columns, "  ").splitlines()
        asked = one.asked
        head = f"{fleet.name_of(asked)} on replica {asked.replica.name}, arrived {wall_words(asked.arrived)}"
        yield from (paint(line, DIM) for line in fold(safe(head, 1000), columns, "  ").splitlines())
        yield from [*explained_lines(one.explained, paint, columns), ""]
    count = f"{plural(len(fleet.replicas), 'replica')}, {fleet.count_words(fleet.asked)}"
    count += left_out_words(left_out, by)
    for sentence in (f"{count}; {fleet.clock_words()}", *heads(fleet)):
        yield from (paint(line, DIM) for line in fold(safe(sentence, 10_000), columns, "  ").splitlines())


def _through_all(tries: Sequence[Asked], by: str) -> tuple[int, bool]:
    """Nanoseconds from the first try's arrival to the last one's end (by ttft: to the first token of any, if there is
    one), and whether that is all: the last try has ended."""
    begin = tries[0].arrived
    found = [(one, one.breakdown()) for one in tries]
    if by == "ttft" and (firsts := [one.replica.wall(b.begin_t + b.ttft_ns) for one, b in found if b.ttft_ns]):
        return min(firsts) - begin, True
    end, last = max(((one.replica.wall(b.end_t), b) for one, b in found), key=lambda pair: pair[0])
    return end - begin, last.ended


def _tried(tries: Sequence[Asked], by: str) -> str:
    """On which replicas, what became of each, and what it took its client in all."""
    words = []
    for one in tries:
        found, finished = one.breakdown(), one.request.finished
        end = finished.finish_reason if finished else "ended" if found.ended else "not ended in its journal"
        words.append(f"on {one.replica.name} ({end} after {time(found.total_ns)})")
    ns, is_all = _through_all(tries, by)
    until = "first token" if by == "ttft" else "last end"
    total = f"From the first arrival to the {until} it took {time(ns)}."
    if not is_all:
        total = f"From the first arrival on it has taken {time(ns)} so far."
    missing = max(_attempt(one) for one in tries) - len(tries)
    lost = f" {plural(missing, 'other attempt')} of the router {'is' if missing == 1 else 'are'} in no journal given."
    told = f"{tries[0].request.request} was tried {', then '.join(words)}. {total}{lost if missing > 0 else ''}"
    return safe(told, 10_000)


def _attempt(one: Asked) -> int:
    """Which attempt of its router it was; 0 where that is not known."""
    attempt = (one.request.route or {}).get("attempt", 0)
    return attempt if isinstance(attempt, int) else 0
