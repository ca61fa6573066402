"""What `nano-trace explain` knows of one request, wherever it was read from, and as JSON. Knows no terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from ..errors import JournalError
from ..telemetry.culprit import Culprit
from ..telemetry.culprits import CulpritFinder
from ..telemetry.ending import Ending
from ..telemetry.latency import Breakdown
from ..telemetry.life_pieces import LifePiece
from ..telemetry.quantile import rank
from ..telemetry.verdict import verdict
from .latency_reading import LatencyReading
from .route_words import Route, with_found

NS = 1_000_000_000
VERSION = 1


@dataclass(frozen=True, slots=True)
class Explained:
    """One request.

    Attributes:
        request: its id.
        seq: the sequence whose time was the request's.
        begin_t: its arrival, in the nanoseconds of its source.
        total_ns: that `parts` add up to: to its end, or to its first token.
        ended: whether it has ended.
        parts: name -> nanoseconds.
        headline, sentences: the verdict.
        culprits: part -> who it was spent on, the heaviest first.
        pieces: what it did when.
        use, uses: which one of those that had this id it is, and of how many.
        route: what a fleet's router decided on, where it was sent by one; with `found_blocks` where fewer were found.
        ending: how it ended.
    """

    request: str
    seq: int
    begin_t: int
    total_ns: int
    ended: bool
    parts: dict[str, int]
    headline: str
    sentences: tuple[str, ...]
    culprits: dict[str, list[Culprit]]
    pieces: tuple[LifePiece, ...]
    use: int = 1
    uses: int = 1
    route: Route | None = None
    ending: Ending = field(default_factory=Ending)


def explain(reading: LatencyReading, breakdowns: Iterable[Breakdown], by: str) -> list[Explained]:
    """Explain requests of a journal."""
    finder, found = CulpritFinder(reading.latency), []
    for breakdown in breakdowns:
        said = verdict(reading.latency, breakdown, by, finder, reading.engine)
        ttft = by == "ttft"
        found.append(
            Explained(
                breakdown.request.request, (breakdown.first if ttft else breakdown.track).seq, breakdown.begin_t,
                breakdown.ttft_ns if ttft else breakdown.total_ns, breakdown.ended,
                breakdown.ttft_parts if ttft else breakdown.parts,
                said.headline, said.sentences, said.culprits, said.evidence,
                breakdown.request.use, reading.latency.tracks.requests[breakdown.request.request].use,
                _route(breakdown, reading.started.block_size), said.ending,
            )
        )  # fmt: skip
    return found


def _route(breakdown: Breakdown, block_size: int) -> Route | None:
    """What the router decided on, and what its replica then found in its cache for the first of the sequences."""
    found = [track for track in breakdown.siblings if track.matched is not None and not track.matched.recompute]
    first = min(found, key=lambda track: track.matched.t if track.matched is not None else 0, default=None)
    hit = first.matched.hit if first is not None and first.matched is not None else None
    return with_found(breakdown.request.route, hit, breakdown.track.num_prompt_tokens, block_size)


def left_out_words(count: int, by: str) -> str:
    """What to say behind the number of all requests, where some could not be ranked; "" where none was left out."""
    if not count:
        return ""
    one = count == 1
    lack = ("has" if one else "have") + (" no first token" if by == "ttft" else " not ended")
    return f", {count} of which {lack} and {'is' if one else 'are'} left out"


Key = TypeVar("Key")


def ranked(totals: Mapping[Key, int], slowest: int, p99: bool) -> list[Key]:
    """The requests asked for.

    Args:
        totals: request, as its caller knows it -> nanoseconds.
        slowest: so many of them, the slowest first.
        p99: the one at the 99th percentile instead (nearest rank).
    """
    names = sorted(totals, key=lambda name: -totals[name])
    if not p99:
        return names[:slowest]
    return [names[len(names) - rank(len(names), 0.99)]]


def require(name: str, known: Iterable[str], where: str) -> None:
    """Check that a request is there.

    Raises:
        JournalError: it isn't; the message names those that are.
    """
    names = list(known)
    if name not in names:
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        raise JournalError(f"{where}: holds no request {name!r}; it has {shown}")


def as_dict(explained: Explained) -> dict[str, Any]:
    """One request for JSON; times in nanoseconds, `begin_ns` of pieces counts from its arrival."""
    pieces = []
    for piece in explained.pieces:
        named = asdict(piece)
        begin, end = named.pop("begin_t"), named.pop("end_t")
        pieces.append(named | {"begin_ns": begin - explained.begin_t, "duration_ns": end - begin})
    return {
        "request": explained.request,
        "seq": explained.seq,
        "use": explained.use,
        "uses": explained.uses,
        "ended": explained.ended,
        "finish_reason": explained.ending.reason or None,
        "end": explained.ending.how or None,
        "error": explained.ending.error or None,
        "total_ns": explained.total_ns,
        "route": None if explained.route is None else dict(explained.route),
        "verdict": {"headline": explained.headline, "sentences": list(explained.sentences)},
        "parts": explained.parts,
        "culprits": {part: [asdict(culprit) for culprit in found] for part, found in explained.culprits.items()},
        "evidence": pieces,
    }
