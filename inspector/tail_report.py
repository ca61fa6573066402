"""What the slowest requests of a run spend their time on, beside the median ones. Knows neither flags nor terminals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import InvalidConfig
from ..telemetry.latency import PARTS
from ..telemetry.quantile import quantile
from .request_table import Bools, Floats, Ints, RequestTable

SLOWEST = 0.01  # of the requests
MIDDLE = (0.45, 0.55)  # between these quantiles lie the median requests
NAMED = 5  # of the slowest
TOLD = 0.05  # of what the slowest take more: parts that differ by less don't count
HOUR_US = 3_600_000_000
PROMPT_BANDS = (0, 64, 256, 1024, 4096, 16384, 65536)


@dataclass(frozen=True, slots=True)
class Group:
    """Some requests: how many, their time in the mean, and its parts, which add up to it (nanoseconds)."""

    requests: int
    mean: float
    parts: dict[str, float]


@dataclass(frozen=True, slots=True)
class Named:
    """One slow request.

    Attributes:
        request: its id.
        use: which use of its id it is.
        time: that it took.
        part, part_ns: the largest part of it.
        replica: that it was asked of, where several journals are read.
    """

    request: str
    use: int
    time: float
    part: str
    part_ns: int
    replica: str = ""


@dataclass(frozen=True, slots=True)
class Cohort:
    """Requests that are alike in one thing.

    Attributes:
        label: in what.
        requests: how many.
        slowest: how many of the slowest are among them.
        p50, p99: of their time.
        part, part_share: the largest part of it, and its share of all.
    """

    label: str
    requests: int
    slowest: int
    p50: float
    p99: float
    part: str
    part_share: float


@dataclass(frozen=True, slots=True)
class TailReport:
    """The slowest and the median requests. Times are nanoseconds.

    Attributes:
        by: the measure: e2e or ttft.
        requests: how many have one.
        p50, p99: of it.
        slow_from: the least of the slowest ones.
        slowest, median: the two groups.
        excess: part -> what the slowest spend on it more than the median, the largest first; parts of no request are
            left out.
        named: the slowest of all.
        cohorts: by prompt length, priority, hour -> its cohorts.
        slow_rows: where the slowest stand in the table, the slowest last.
    """

    by: str
    requests: int
    p50: float
    p99: float
    slow_from: float
    slowest: Group
    median: Group
    excess: dict[str, float]
    named: list[Named]
    cohorts: dict[str, list[Cohort]]
    slow_rows: list[int]

    @property
    def causes(self) -> dict[str, float]:
        """Of `excess`, the parts that count: more than TOLD of what the slowest take more."""
        least = TOLD * (self.slowest.mean - self.median.mean)
        return {part: ns for part, ns in self.excess.items() if ns > max(least, 0.0)}

    @property
    def relief(self) -> dict[str, float]:
        """The parts on which the slowest spend as much less, the largest first."""
        least = TOLD * (self.slowest.mean - self.median.mean)
        return {part: ns for part, ns in reversed(self.excess.items()) if ns < -max(least, 0.0)}


def tail_report(
    table: RequestTable, by: str = "e2e", groups: Mapping[str, tuple[Ints, Sequence[str]]] | None = None
) -> TailReport:
    """Look at the tail of a run.

    Args:
        table: the requests.
        by: e2e or ttft.
        groups: name -> (which cohort each request is of, the cohorts' labels), beside those that the table gives.

    Raises:
        InvalidConfig: none has such a time.
    """
    having = np.flatnonzero(~np.isnan(table.measure(by)))
    table = table.select(having)
    count = len(table)
    if not count:
        raise InvalidConfig(f"--by {by}: no request of the run has ended" + (" with a token" if by == "ttft" else ""))
    times, parts = table.measure(by), table.parts_of(by)
    order = np.argsort(times, kind="stable")
    slow = order[-math.ceil(SLOWEST * count - 1e-9) :]
    low = int(MIDDLE[0] * count)
    middle = order[low : max(low + 1, math.ceil(MIDDLE[1] * count - 1e-9))]
    slowest, median = _group(times, parts, slow), _group(times, parts, middle)
    more = {part: slowest.parts[part] - median.parts[part] for part in PARTS
            if slowest.parts[part] or median.parts[part]}  # fmt: skip
    is_slow = np.zeros(count, dtype=bool)
    is_slow[slow] = True
    cohorts = {name: _cohorts(keys(table), label, times, parts, is_slow) for name, (keys, label) in _COHORTS.items()}
    for name, (of_rows, labels) in (groups or {}).items():
        cohorts[name] = _cohorts(of_rows[having], labels.__getitem__, times, parts, is_slow)
    return TailReport(
        by, count, quantile(times, 0.5), quantile(times, 0.99), float(times[slow[0]]), slowest, median,
        dict(sorted(more.items(), key=lambda item: -item[1])),
        [_named(table, times, parts, int(row)) for row in order[::-1][:NAMED]],
        cohorts,
        [int(row) for row in having[slow]],
    )  # fmt: skip


def _group(times: Floats, parts: Ints, rows: Ints) -> Group:
    means = parts[rows].mean(axis=0)
    return Group(len(rows), float(times[rows].mean()), dict(zip(PARTS, map(float, means), strict=True)))


def _named(table: RequestTable, times: Floats, parts: Ints, row: int) -> Named:
    largest = int(np.argmax(parts[row]))
    whose, part = (str(table.request[row]), int(table.use[row])), (PARTS[largest], int(parts[row, largest]))
    return Named(*whose, float(times[row]), *part)


def _cohorts(keys: Ints, label: Callable[[int], str], times: Floats, parts: Ints, slow: Bools) -> list[Cohort]:
    found = []
    for key in np.unique(keys):
        rows = keys == key
        sums = parts[rows].sum(axis=0)
        largest, total = int(np.argmax(sums)), int(sums.sum())
        share = int(sums[largest]) / total if total else 0.0
        found.append(
            Cohort(
                label(int(key)), int(rows.sum()), int(slow[rows].sum()),
                quantile(times[rows], 0.5), quantile(times[rows], 0.99), PARTS[largest], share,
            )
        )  # fmt: skip
    return found


def _band_of(table: RequestTable) -> Ints:
    return np.searchsorted(np.array(PROMPT_BANDS), table.prompt_tokens, "right") - 1


def _band(index: int) -> str:
    low = PROMPT_BANDS[index]
    return f"{low}-{PROMPT_BANDS[index + 1] - 1}" if index + 1 < len(PROMPT_BANDS) else f"{low}+"


def _hour(index: int) -> str:
    day, hour = str(np.datetime64(index, "h")).split("T")
    return f"{day} {hour}h UTC"


_COHORTS: dict[str, tuple[Callable[[RequestTable], Ints], Callable[[int], str]]] = {
    "prompt tokens": (_band_of, _band),
    "priority": (lambda table: table.priority, str),
    "hour": (lambda table: table.arrived_us // HOUR_US, _hour),
}
