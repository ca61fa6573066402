"""The percentile bootstrap of two samples: sound intervals, no change where there is none, and one where there is."""

from __future__ import annotations

import numpy as np
import pytest

from nanolens.inspector.bootstrap import Difference, differences

COLUMNS = 8


def sample(seed: int, rows: int = 300) -> np.ndarray:
    """Columns as the parts of requests are: some dense, some skewed, some rare."""
    rng = np.random.default_rng(seed)
    dense = [rng.normal(5, 1, rows), rng.exponential(1, rows), rng.lognormal(0, 1, rows)]
    rare = [rng.exponential(1, rows) * (rng.random(rows) < chance) for chance in (0.3, 0.1, 0.05, 0.02)]
    return np.column_stack([*dense, *rare, sum(dense)])


def changed(found: list[dict[str, Difference] | None]) -> set[tuple[int, str]]:
    return {(i, name) for i, named in enumerate(found) if named for name, d in named.items() if d.changed}


def test_samples_of_one_population_seldom_show_a_change() -> None:
    """24 statistics in each of 40 comparisons: at most 5% of the comparisons may have any, with room for chance."""
    wrong = sum(bool(changed(differences(sample(2 * i), sample(2 * i + 1)))) for i in range(40))
    assert wrong <= 4


def queue(seed: int, requests: int = 400, load: float = 0.8) -> np.ndarray:
    """[requests, 2]: waits and times of requests that are served one after another; neighbours wait alike."""
    rng = np.random.default_rng(seed)
    served, gaps = rng.exponential(1, requests), rng.exponential(1 / load, requests)
    waits = np.zeros(requests)
    for i in range(1, requests):
        waits[i] = max(0.0, waits[i - 1] + served[i - 1] - gaps[i])
    return np.column_stack([waits, waits + served])


def test_requests_that_wait_alike_do_not_count_as_many() -> None:
    """Two runs of one queue differ by whole busy periods: as independent ones most would show a change."""
    wrong = sum(bool(changed(differences(queue(2 * i), queue(2 * i + 1), resamples=500))) for i in range(20))
    assert wrong <= 2


def test_a_change_in_a_queue_is_found_nevertheless() -> None:
    found = changed(differences(queue(1, 2000, load=0.4), queue(2, 2000, load=0.8)))
    assert (0, "mean") in found


def test_a_planted_shift_of_one_column_is_found_there_alone() -> None:
    a, b = sample(1), sample(2)
    b[:, 1] += 0.5
    found = changed(differences(a, b))
    assert (1, "mean") in found
    assert {column for column, _ in found} == {1}


def test_the_interval_of_the_mean_is_that_of_the_textbook() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(0, 1, (500, 1)), rng.normal(1, 1, (400, 1))
    mean = differences(a, b)[0]["mean"]  # type: ignore[index]
    error = np.sqrt(a.var() / 500 + b.var() / 400)
    assert mean.delta == pytest.approx(float(b.mean() - a.mean()))
    assert mean.low == pytest.approx(mean.delta - 1.96 * error, abs=0.15 * error)
    assert mean.high == pytest.approx(mean.delta + 1.96 * error, abs=0.15 * error)


def test_quantiles_are_resampled_as_drawing_with_replacement_would() -> None:
    a, zero = np.random.default_rng(4).exponential(1, (101, 1)), np.zeros((101, 1))
    d = differences(zero, a, resamples=20_000)[0]["p50"]  # type: ignore[index]
    rng = np.random.default_rng(5)
    drawn = np.sort(a[rng.integers(101, size=(20_000, 101)), 0], axis=1)[:, 50]
    low, high = np.percentile(drawn, (2.5, 97.5))
    assert (d.low, d.high) == (pytest.approx(low, rel=0.05), pytest.approx(high, rel=0.05))


def test_a_seed_gives_the_same_numbers_again_and_another_one_others() -> None:
    a, b = sample(1), sample(2)
    assert differences(a, b, seed=7) == differences(a, b, seed=7)
    assert differences(a, b, seed=7) != differences(a, b, seed=8)


def test_rows_without_a_value_are_left_out() -> None:
    a, b = sample(1), sample(2)
    b[:, 1] += 0.5
    holes_a, holes_b = (np.vstack([rows, np.full((50, COLUMNS), np.nan)]) for rows in (a, b))
    with_holes = differences(holes_a, holes_b)[1]["mean"]  # type: ignore[index]
    assert with_holes.a == pytest.approx(float(a[:, 1].mean()))
    assert with_holes.changed


def test_a_column_without_values_in_one_sample_has_no_difference() -> None:
    a, b = sample(1), sample(2)
    b[:, 3] = np.nan
    found = differences(a, b)
    assert found[3] is None
    assert all(found[i] is not None for i in range(COLUMNS) if i != 3)


def test_a_quantile_with_too_few_values_beyond_it_is_not_judged() -> None:
    found = differences(sample(1, 100), sample(2, 100) + 50.0)[0]
    assert found is not None
    assert {name: d.judged for name, d in found.items()} == {"mean": True, "p50": True, "p99": False}
    assert not found["p99"].changed


def test_constant_samples_that_differ_have_changed() -> None:
    found = differences(np.full((50, 1), 3.0), np.full((50, 1), 4.0))[0]
    assert found is not None
    assert (found["mean"].low, found["mean"].high, found["mean"].changed) == (1.0, 1.0, True)
