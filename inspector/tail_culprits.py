"""Who the slowest requests of a run have to thank for it: the culprits of each, put together. Knows no terminals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..telemetry.culprits import CulpritFinder
from ..telemetry.latency import Breakdown, Latency

MOST_REQUESTS = 200  # that are worth the time to look at
MOST_CULPRITS = 3  # of a part
LEAST_SHARE = 0.01  # of a part, below which a culprit is not named
_COUNTED_TWICE = "head"  # this kind's time is also that of those whom the head waited for


@dataclass(frozen=True, slots=True)
class TailCulprit:
    """One culprit of several requests.

    Attributes:
        part: of their time.
        kind: of culprit.
        request: whose it is; "" where it is no request's.
        weight_ns: over all those requests.
        share: of the part, over all those that were looked at.
        requests: how many have it as a culprit.
        words: what it did to the one that it did most to.
        replica: where it did so, where several journals are read.
    """

    part: str
    kind: str
    request: str
    weight_ns: int
    share: float
    requests: int
    words: str
    replica: str = ""


def tail_culprits(
    latency: Latency, slowest: Sequence[Breakdown], parts: Iterable[str], by: str = "e2e"
) -> list[TailCulprit]:
    """The culprits of some parts, part by part, those that weigh most first.

    Args:
        latency: the run.
        slowest: requests; MOST_REQUESTS of them take long enough.
        parts: of PARTS.
        by: e2e or ttft.
    """
    finder, found = CulpritFinder(latency), []
    for part in parts:
        whole = sum((b.ttft_parts if by == "ttft" else b.parts).get(part, 0) for b in slowest)
        groups: dict[tuple[str, str], list[tuple[int, str]]] = {}
        for breakdown in slowest:
            for culprit in finder.find(breakdown, part, by):
                if culprit.kind != _COUNTED_TWICE and culprit.weight_ns:
                    same = groups.setdefault((culprit.kind, culprit.request), [])
                    same.append((culprit.weight_ns, culprit.words))
        ranked = sorted(groups.items(), key=lambda item: -sum(weight for weight, _ in item[1]))
        named = [_named(part, kind, request, same, whole) for (kind, request), same in ranked]
        large = [culprit for culprit in named[:MOST_CULPRITS] if culprit.share >= LEAST_SHARE]
        if not large and named:
            words = f"{len(named)} of them, none with more than {named[0].share:.1%}"
            weight = sum(culprit.weight_ns for culprit in named)
            large = [TailCulprit(part, f"{named[0].kind}s", "", weight, weight / whole, len(slowest), words)]
        found += large
    return found


def _named(part: str, kind: str, request: str, same: list[tuple[int, str]], whole: int) -> TailCulprit:
    weight = sum(weight for weight, _ in same)
    return TailCulprit(part, kind, request, weight, weight / whole if whole else 0.0, len(same), max(same)[1])
