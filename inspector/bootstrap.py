"""How far statistics of two samples differ, and how sure that is: the percentile bootstrap. Knows only numbers.

Sources: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapters 13 (percentile interval) and 16; batch
means of correlated values: Law, Simulation Modeling and Analysis, section 9.5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..telemetry.quantile import quantile, rank

Floats = NDArray[np.float64]

STATISTICS = ("mean", "p50", "p99")
RESAMPLES = 2_000
LEVEL = 0.95
LEAST = 5  # independent values of both samples, beyond the quantile where it is one, for a judgement
_QUANTILES = {"p50": 0.5, "p99": 0.99}
_BATCHES = (10, 5)  # long ones, beside short ones that are as many as they are long
_CELLS = 1 << 22  # of one batch of resamples


@dataclass(frozen=True, slots=True)
class Difference:
    """One statistic of two samples.

    Attributes:
        a, b: its values.
        low, high: the interval of b - a.
        changed: whether b - a is more than chance makes of all the differences looked at together.
        judged: whether there were values enough to tell.
    """

    a: float
    b: float
    low: float
    high: float
    changed: bool
    judged: bool

    @property
    def delta(self) -> float:
        """b - a."""
        return self.b - self.a


def differences(a: Floats, b: Floats, seed: int = 0, resamples: int = RESAMPLES) -> list[dict[str, Difference] | None]:
    """STATISTICS of each column of two samples; None for a column that has no value in one of them.

    All are judged together: one counts as changed if 0 is outside its percentile interval and its distance from 0, in
    standard errors, is more than that of the largest of all in 95% of the resamples. Else one in twenty would change
    where nothing did.

    Args:
        a: [n, columns], in order of arrival, NaN where a row has no value.
        b: [m, columns].
        seed: of the resamples.
        resamples: how many.
    """
    rng = np.random.default_rng(seed)
    of_a, of_b = _resampled(a, rng, resamples), _resampled(b, rng, resamples)
    found: list[dict[str, Difference] | None] = []
    critical = _largest([{name: y[name] - x[name] for name in x} for x, y in zip(of_a, of_b, strict=True) if x and y])
    for column, (x, y) in enumerate(zip(of_a, of_b, strict=True)):
        values_a, values_b = _present(a[:, column]), _present(b[:, column])
        named = {name: _judge(name, values_a, values_b, y[name] - x[name], critical) for name in x if name in y}
        found.append(named or None)
    return found


def _judge(name: str, a: Floats, b: Floats, deltas: Floats, critical: float) -> Difference:
    tail = (1 - LEVEL) / 2
    low, high = quantile(deltas, tail), quantile(deltas, 1 - tail)
    at_a, at_b = _value(a, name), _value(b, name)
    judged = _enough(a, name) and _enough(b, name)
    sure = not low <= 0.0 <= high and abs(at_b - at_a) > critical * float(deltas.std())
    return Difference(at_a, at_b, low, high, judged and sure, judged)


def _resampled(rows: Floats, rng: np.random.Generator, resamples: int) -> list[dict[str, Floats]]:
    """Each statistic [resamples] of each column, of rows drawn with replacement; an empty dict for an empty column.

    The k-th smallest of n draws from n sorted values is the one at n * Beta(k, n - k + 1), rounded down: the order
    statistics of uniform numbers. So no quantile needs the draws themselves.
    """
    means, found = _means(rows, rng, resamples), []
    for column in range(rows.shape[1]):
        values = _present(rows[:, column])
        ordered, count, named = np.sort(values), len(values), {}
        if count:
            usual = float(values.mean())
            named["mean"] = usual + math.sqrt(_likeness(values)) * (means[:, column] - usual)
            for name, q in _QUANTILES.items():
                k = rank(count, q)
                alike = _likeness(_up_to(ordered[k - 1], values))
                place = (count * rng.beta(k / alike, (count - k + 1) / alike, resamples)).astype(np.int64)
                named[name] = ordered[np.minimum(place, count - 1)]
        found.append(named)
    return found


def _likeness(values: Floats) -> float:
    """How many values that follow each other tell as much as one that is independent; at least 1.

    Requests that meet in a queue wait alike, and drawing each by itself would take them for more than they are. The
    variance of means of batches, against what it would be for independent values, says by how much.
    """
    alone, most = float(values.var()), 1.0
    for count in (max(2, math.isqrt(len(values))), *_BATCHES):
        size = len(values) // count
        if size > 1 and alone > 0:
            batches = values[: count * size].reshape(count, size).mean(axis=1)
            most = max(most, size * float(batches.var(ddof=1)) / alone)
    return most


def _means(rows: Floats, rng: np.random.Generator, resamples: int) -> Floats:
    """[resamples, columns] of drawn rows: a row counts as often as it was drawn."""
    count = len(rows)
    here = ~np.isnan(rows)
    values, present = np.where(here, rows, 0.0), here.astype(np.float64)
    usual = values.sum(axis=0) / np.maximum(present.sum(axis=0), 1.0)
    means = np.empty((resamples, rows.shape[1]))
    batch = max(1, _CELLS // max(count, 1))
    for first in range(0, resamples, batch):
        size = min(batch, resamples - first)
        drawn = rng.integers(count, size=(size, count)) + count * np.arange(size)[:, None]
        times = np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count).astype(np.float64)
        weight = times @ present
        means[first : first + size] = np.where(weight > 0, (times @ values) / np.maximum(weight, 1.0), usual)
    return means


def _largest(spread: Sequence[dict[str, Floats]]) -> float:
    """The distance from its mean, in standard errors, that the farthest of all statistics keeps within in LEVEL."""
    farthest: Floats | None = None
    for deltas in spread:
        for values in deltas.values():
            error = float(values.std())
            if error > 0:
                distance = np.abs(values - values.mean()) / error
                farthest = distance if farthest is None else np.maximum(farthest, distance)
    return quantile(farthest, LEVEL) if farthest is not None else 0.0


def _present(column: Floats) -> Floats:
    values: Floats = column[~np.isnan(column)]
    return values


def _value(values: Floats, name: str) -> float:
    return float(values.mean()) if name == "mean" else quantile(values, _QUANTILES[name])


def _enough(values: Floats, name: str) -> bool:
    """Whether there are values enough to judge a statistic, after those that tell the same are put together."""
    count = len(values)
    if name == "mean":
        return count / _likeness(values) >= LEAST
    k = rank(count, _QUANTILES[name])
    return (count - k) / _likeness(_up_to(np.sort(values)[k - 1], values)) >= LEAST


def _up_to(limit: float, values: Floats) -> Floats:
    """1 where a value does not exceed the limit, else 0."""
    return (values <= limit).astype(np.float64)
