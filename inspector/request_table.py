"""All requests of a run in columns: their times, what those were spent on, and what they asked for. Knows no files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ..telemetry.latency import PARTS, Breakdown

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

MEASURES = ("e2e", "ttft", "itl")
_COLUMNS = (
    "request", "arrived_ns", "ended", "finish_reason", "priority", "sequences", "prompt_tokens", "output_tokens",
    "cached_tokens", "preemptions", "e2e_ns", "ttft_ns", "itl_ns",
)  # fmt: skip


def header(parts: Sequence[str]) -> list[str]:
    """The names of the columns of `rows`, for these parts."""
    return [*_COLUMNS, *(f"{part}_ns" for part in parts), *(f"ttft_{part}_ns" for part in parts)]


def row(breakdown: Breakdown, wall_offset_ns: int, parts: Sequence[str]) -> list[str | int]:
    """One request in the order of `header`; "" where there is no value.

    Args:
        breakdown: of the request.
        wall_offset_ns: wall clock minus the journal's.
        parts: of PARTS, those that are told.
    """
    request, itl = breakdown.request, itl_ns(breakdown)
    finished = request.finished
    values: list[str | int] = [
        request.request,
        breakdown.begin_t + wall_offset_ns,
        int(breakdown.ended),
        finished.finish_reason if finished else "",
        request.priority,
        len(request.seqs),
        request.num_prompt_tokens,
        output_tokens(breakdown),
        finished.num_cached_tokens if finished else "",
        sum(len(track.preemptions) for track in breakdown.siblings),
        breakdown.total_ns,
        breakdown.ttft_ns or "",
        "" if itl is None else round(itl),
    ]
    values += [breakdown.parts.get(part, 0) for part in parts]
    return values + [breakdown.ttft_parts.get(part, 0) for part in parts]


def output_tokens(breakdown: Breakdown) -> int:
    """Tokens that all sequences of a request have, its own count where it has ended."""
    finished = breakdown.request.finished
    return finished.num_output_tokens if finished else sum(track.num_output_tokens for track in breakdown.siblings)


def itl_ns(breakdown: Breakdown) -> float | None:
    """Mean time between two tokens of a sequence of the request, in nanoseconds; None where none has two."""
    having = [track for track in breakdown.siblings if track.num_output_tokens > 1 and track.first_token_t]
    if not having:
        return None
    whole = sum(track.last_token_t - track.first_token_t for track in having)
    return whole / sum(track.num_output_tokens - 1 for track in having)


@dataclass(frozen=True, slots=True)
class RequestTable:
    """Requests by row, n of them. Times are nanoseconds.

    Attributes:
        request: ids [n].
        use: [n], 1, or more where the id was used before.
        arrived_us: [n], wall clock in microseconds: nanoseconds of a clock that is far off would not fit.
        e2e: [n], from arrival to end; NaN where it has not ended.
        ttft: [n], to the first token; NaN where there is none.
        itl: [n], mean between tokens of a sequence; NaN with fewer than two.
        prompt_tokens, output_tokens, priority: [n].
        parts: [n, PARTS], of `e2e`, or of what there is of it.
        ttft_parts: [n, PARTS], of `ttft`; zeros where there is none.
    """

    request: NDArray[np.object_]
    use: Ints
    arrived_us: Ints
    e2e: Floats
    ttft: Floats
    itl: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    priority: Ints
    parts: Ints
    ttft_parts: Ints

    def __len__(self) -> int:
        return len(self.request)

    def select(self, rows: Ints | Bools) -> RequestTable:
        """Some of them."""
        return RequestTable(*(getattr(self, field.name)[rows] for field in fields(self)))

    @property
    def ended(self) -> RequestTable:
        """Those that have ended."""
        return self.select(~np.isnan(self.e2e))

    def measure(self, name: str) -> Floats:
        """The column of one of MEASURES."""
        values: Floats = getattr(self, name)
        return values

    def parts_of(self, name: str) -> Ints:
        """The parts of `e2e` or of `ttft`."""
        return self.ttft_parts if name == "ttft" else self.parts


def is_counted(breakdown: Breakdown) -> bool:
    """Whether a request has any of the measures: of those that live, some have a first token."""
    return breakdown.ended or bool(breakdown.ttft_ns)


def request_table(breakdowns: Iterable[Breakdown], wall_offset_ns: int) -> RequestTable:
    """The table of those requests that have ended, or have a first token."""
    found = [b for b in breakdowns if is_counted(b)]
    arrived = [(b.begin_t + wall_offset_ns) // 1000 for b in found]
    return RequestTable(
        np.array([b.request.request for b in found], dtype=object),
        np.array([b.request.use for b in found], dtype=np.int64),
        np.array(arrived, dtype=np.int64),
        np.array([b.total_ns if b.ended else np.nan for b in found], dtype=np.float64),
        np.array([b.ttft_ns or np.nan for b in found], dtype=np.float64),
        np.array([np.nan if (itl := itl_ns(b)) is None else itl for b in found], dtype=np.float64),
        np.array([b.request.num_prompt_tokens for b in found], dtype=np.int64),
        np.array([output_tokens(b) for b in found], dtype=np.int64),
        np.array([b.request.priority for b in found], dtype=np.int64),
        _matrix([b.parts for b in found]),
        _matrix([b.ttft_parts for b in found]),
    )


def joined(tables: Sequence[RequestTable]) -> RequestTable:
    """The rows of all of them, at least one table, in their order."""
    columns = (np.concatenate([getattr(table, field.name) for table in tables]) for field in fields(RequestTable))
    return RequestTable(*columns)


def rows(breakdowns: Iterable[Breakdown], wall_offset_ns: int, parts: Sequence[str]) -> Iterator[list[str | int]]:
    """All requests in the order of `header`, those that live too."""
    return (row(breakdown, wall_offset_ns, parts) for breakdown in breakdowns)


def _matrix(parts: list[dict[str, int]]) -> Ints:
    """[n, PARTS]."""
    result = np.zeros((len(parts), len(PARTS)), dtype=np.int64)
    column = {part: i for i, part in enumerate(PARTS)}
    for i, named in enumerate(parts):
        for part, value in named.items():
            result[i, column[part]] = value
    return result
