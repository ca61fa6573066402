"""Percentiles and ratios of measured values. Knows nothing of what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Distribution:
    """Count, mean and percentiles of some values, in their unit; None throughout where there were none."""

    count: int
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Distribution:
        """Of any number of values."""
        if not values:
            return cls(0, None, None, None, None, None)
        ordered = sorted(values)
        p50, p90, p99 = (percentile(ordered, each) for each in PERCENTILES)
        return cls(len(ordered), math.fsum(ordered) / len(ordered), p50, p90, p99, ordered[-1])


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the values lie, interpolated linearly between neighbours.

    Args:
        ordered: rising, at least one.
        percent: 0 to 100.
    """
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two in the middle."""
    return percentile(sorted(values), 50)


def ratio_of_medians(values: Sequence[float], base: Sequence[float]) -> float:
    """Median of `values` over median of `base`."""
    return median(values) / median(base)
