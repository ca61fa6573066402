"""Histograms in whole numbers, so that sums are exact: nanoseconds where the unit is seconds. Knows no events."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import product

from prometheus_client import Metric
from prometheus_client.metrics_core import HistogramMetricFamily
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from .metric_families import ANY, HISTOGRAMS, LATENCY_BUCKETS, Family

NS = 1_000_000_000
TraceOf = Callable[[str], str]
BY_RANK = tuple(family for family in HISTOGRAMS if "rank" in family.labels)


class Histogram:
    """One series of a histogram.

    Args:
        bounds: upper bounds of its buckets, in the family's unit, rising.
        scale: what an observed number of 1 is a part of: 1e9 for nanoseconds where the unit is seconds.
    """

    __slots__ = ("_bounds", "_counts", "_examples", "_labels", "_scale", "total")

    def __init__(self, bounds: Sequence[float], scale: int) -> None:
        self._scale = scale
        self._bounds = [round(bound * scale) for bound in bounds]
        self._labels = [*map(floatToGoString, bounds), "+Inf"]
        self.clear()

    def clear(self) -> None:
        """Forget what was observed."""
        self._counts = [0] * len(self._labels)
        self._examples: dict[int, tuple[int, str, int]] = {}
        self.total = 0

    def observe(self, value: int, count: int = 1, trace: str = "", wall_ns: int = 0) -> None:
        """Count a value `count` times.

        Args:
            value: in parts of the unit.
            count: how often.
            trace: id of the trace that it belongs to; "" where there is none.
            wall_ns: when it was seen, in nanoseconds since 1970.
        """
        index = bisect_left(self._bounds, value)
        self._counts[index] += count
        self.total += value * count
        if trace:
            self._examples[index] = (value, trace, wall_ns)

    @property
    def count(self) -> int:
        """How many values were observed."""
        return sum(self._counts)

    def buckets(self) -> Iterator[tuple[str, float, Exemplar | None]]:
        """(upper bound, values up to it, the newest example among those above the bound before) of each bucket."""
        below = 0
        for index, label in enumerate(self._labels):
            below += self._counts[index]
            found = self._examples.get(index)
            example = Exemplar({"trace_id": found[1]}, found[0] / self._scale, found[2] / NS) if found else None
            yield label, below, example

    @property
    def sum(self) -> float:
        """The sum of what was observed, in the family's unit."""
        return self.total / self._scale


class Histograms:
    """All series of all histogram families, by the values of their labels; empty ones are there from the start.

    Args:
        latency_buckets: bounds in seconds of the families that have the default ones; None keeps those.

    Raises:
        ValueError: bounds that don't rise, are not above 0, or are none.
    """

    def __init__(self, latency_buckets: Sequence[float] | None = None) -> None:
        bounds = LATENCY_BUCKETS if latency_buckets is None else tuple(map(float, latency_buckets))
        rising = all(low < high for low, high in zip((0.0, *bounds), bounds, strict=False))
        if not bounds or not rising or bounds[-1] == float("inf"):
            raise ValueError(f"latency_buckets={latency_buckets!r}: must be rising numbers of seconds above 0")
        self._ranks = 0
        self._series = {family.name: _series(family, bounds) for family in HISTOGRAMS}

    def of(self, name: str, *labels: str) -> Histogram:
        """One series, by its family's full name and the values of its labels (that of the run's model left out)."""
        return self._series[name][labels]

    def clear(self) -> None:
        """Forget all that was observed: another run begins."""
        for series in self._series.values():
            for histogram in series.values():
                histogram.clear()

    def add_ranks(self, size: int) -> None:
        """See that families by rank have series for so many."""
        for rank in range(self._ranks, size):
            for family in BY_RANK:
                self._series[family.name][str(rank),] = Histogram(family.buckets, NS)
        self._ranks = max(self._ranks, size)

    def forget_ranks(self) -> None:
        """Take these series away: another run begins, perhaps on fewer ranks."""
        self._ranks = 0
        for family in BY_RANK:
            self._series[family.name].clear()

    def collect(self, model: str) -> Iterator[Metric]:
        """The families as the exposition formats take them."""
        for family in HISTOGRAMS:
            metric = HistogramMetricFamily(family.name, family.help, labels=list(family.labels), unit=family.unit)
            own = [model] if family.labels.get("model") == ANY else []
            for labels, histogram in self._series[family.name].items():
                metric.add_metric([*labels, *own], list(histogram.buckets()), histogram.sum)  # type: ignore[arg-type]
            yield metric


def _series(family: Family, latency_buckets: Sequence[float]) -> dict[tuple[str, ...], Histogram]:
    if family in BY_RANK:
        return {}
    scale = NS if family.unit == "seconds" else 1
    bounds = latency_buckets if family.buckets is LATENCY_BUCKETS else family.buckets
    known = [values for values in family.labels.values() if values != ANY]
    return {labels: Histogram(bounds, scale) for labels in product(*known)}
