"""Percentiles and ratios of measured values. Knows nothing of what was measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ..telemetry.quantile import rank

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
    """The smallest value that at least `percent` of all do not exceed, as everywhere in this project.

    Args:
        ordered: rising, at least one.
        percent: 0 to 100.
    """
    return ordered[rank(len(ordered), percent / 100) - 1]


def median(values: Sequence[float]) -> float:
    """Of a few repetitions of one measurement: the middle one, or the mean of the two in the middle."""
    return statistics.median(values)


def ratio_of_medians(values: Sequence[float], base: Sequence[float]) -> float:
    """Median of `values` over median of `base`."""
    return median(values) / median(base)
