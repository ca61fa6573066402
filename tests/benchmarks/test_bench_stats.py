"""Percentiles and ratios."""

from __future__ import annotations

from nanolens.benchmarks.report import milliseconds, table
from nanolens.benchmarks.stats import Distribution, median, percentile, ratio_of_medians


def test_percentiles_are_values_that_were_measured() -> None:
    values = [10.0, 20.0, 30.0, 40.0]
    assert [percentile(values, p) for p in (0, 50, 51, 90, 100)] == [10.0, 20.0, 30.0, 40.0, 40.0]


def test_the_median_of_few_repetitions_is_their_middle() -> None:
    assert (median([1.0, 4.0]), median([9.0, 1.0, 2.0])) == (2.5, 2.0)


def test_a_distribution_sorts_and_counts() -> None:
    found = Distribution.of([3.0, 1.0, 2.0])
    assert (found.count, found.mean, found.p50, found.max) == (3, 2.0, 2.0, 3.0)


def test_a_distribution_of_nothing_has_no_figures() -> None:
    found = Distribution.of([])
    assert (found.count, found.mean, found.p99) == (0, None, None)


def test_one_value_is_every_percentile() -> None:
    found = Distribution.of([7.0])
    assert (found.p50, found.p90, found.p99, found.max) == (7.0, 7.0, 7.0, 7.0)


def test_the_ratio_of_medians_ignores_one_wild_run() -> None:
    assert median([1.0, 2.0, 100.0]) == 2.0
    assert ratio_of_medians([4.0, 4.0, 400.0], [2.0, 2.0, 0.1]) == 2.0


def test_figures_keep_three_digits() -> None:
    assert [milliseconds(v) for v in (None, 1.234, 12.34, 1234.5)] == ["-", "1.23", "12.3", "1,234"]


def test_a_table_lines_its_columns_up() -> None:
    assert table(["", "b"], [["row", "1"], ["x", "200"]]) == "       b\nrow    1\nx    200"
