"""The cost model of steps: it finds the coefficients that made the times, and says how far off it is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latency_checks import latency_of
from nanolens.telemetry.step_costs import FEATURES, Floats, StepCostModel, fit, pairs_of
from timed_engine import COSTS, timed_engine

coefficients = st.tuples(*[st.one_of(st.just(0.0), st.floats(1.0, 1e6)) for _ in FEATURES])


def work(count: int, seed: int = 0) -> Floats:
    """Features of steps, mixed, prefill and decode alone."""
    rng = np.random.default_rng(seed)
    rows = []
    for kind in rng.integers(0, 3, count):
        tokens, start = (int(rng.integers(1, 512)), int(rng.integers(0, 2000))) if kind else (0, 0)
        decodes = int(rng.integers(1, 64)) if kind != 1 else 0
        context = decodes * int(rng.integers(1, 3000))
        rows.append((1, tokens, pairs_of(start, tokens), decodes, context))
    return np.array(rows, dtype=np.float64)


def test_pairs_are_each_query_with_itself_and_all_keys_before_it() -> None:
    for start, count in ((0, 1), (0, 5), (7, 1), (7, 9)):
        assert pairs_of(start, count) == sum(position + 1 for position in range(start, start + count))


@settings(max_examples=60, deadline=None)
@given(coefficients)
def test_times_made_by_a_model_are_predicted(planted: tuple[float, ...]) -> None:
    features = work(200)
    times = features @ np.array(planted)
    model = fit(features, times)
    known = times > 0
    assert np.allclose(features[known] @ model.coefficients, times[known], rtol=1e-6)
    assert model.median_error < 1e-6 and model.num_steps == known.sum()


def test_the_planted_coefficients_are_found_under_noise_and_outliers() -> None:
    planted = StepCostModel(4e6, 3e4, 20.0, 2e5, 150.0)
    features, rng = work(4000), np.random.default_rng(1)
    times = features @ planted.coefficients * rng.normal(1.0, 0.03, len(features))
    times[::25] *= 8.0  # a step in 25 was held up by something else
    model = fit(features, times)
    assert np.allclose(model.coefficients, planted.coefficients, rtol=0.05)
    assert 0.01 < model.median_error < 0.04 < model.p90_error < 0.1


def test_no_coefficient_is_negative() -> None:
    features, rng = work(50), np.random.default_rng(2)
    for _ in range(50):
        model = fit(features, rng.uniform(1.0, 1e7, len(features)))
        assert (model.coefficients >= 0).all() and model.predict(1, 1, 1, 1) >= 0


def test_a_run_with_decodes_alone_says_nothing_of_prefill() -> None:
    features = work(300)
    features[:, 1:3] = 0
    features[:, 3:] += 1
    model = fit(features, features @ COSTS.coefficients)
    assert (model.prefill_token, model.prefill_pair) == (0.0, 0.0)
    assert model.decode == pytest.approx(COSTS.decode) and model.fixed == pytest.approx(COSTS.fixed)


def test_steps_that_were_not_measured_are_left_out() -> None:
    features = work(100)
    times = features @ COSTS.coefficients
    times[::2] = 0
    assert fit(features, times).num_steps == 50
    assert fit(features, np.zeros(100)) == StepCostModel()
    assert fit(features[:0], times[:0]) == StepCostModel()


def test_one_step_is_enough_to_predict_itself() -> None:
    features = work(1)
    model = fit(features, [5e6])
    assert model.predict(*(int(x) for x in features[0, 1:])) == pytest.approx(5e6)


@pytest.mark.parametrize("overlap", [False, True])
def test_it_is_found_from_the_journal_of_an_engine(overlap: bool) -> None:
    engine, _ = timed_engine(overlap=overlap, max_num_seqs=6, num_blocks=128, max_prefill_chunk=9, prefix_cache=False)
    for i in range(60):
        engine.add([1 + i] * (6 + 3 * (i % 11) + (i % 2)), max_tokens=3 + i % 20)
        engine.step()
    engine.run()
    engine.close()
    model = latency_of(engine.events).model
    assert np.allclose(model.coefficients, COSTS.coefficients, rtol=0.02)
    assert model.median_error < 1e-3
