"""What users read off a result: texts, ends, and times that come from the engine's own record."""

from __future__ import annotations

import itertools

import pytest

from nanolens.engine.outputs import CompletionOutput, RequestMetrics
from nanolens.engine.plan import TokenLogprobs
from nanolens.engine.sampling_params import SamplingParams
from nanolens.engine.sequence import Sequence

SECOND = 1_000_000_000
ids = itertools.count()


def sequence(outputs: int = 0, arrived: float = 10, **times: float) -> Sequence:
    """A sequence with a prompt of 4 tokens; times in seconds by field name without `_t`."""
    seq = Sequence(
        next(ids), "r", [1, 2, 3, 4], SamplingParams(), 0, int(arrived * SECOND), lambda event: None, lambda: 0, 64
    )
    seq.token_ids += [5] * outputs
    for name, seconds in times.items():
        setattr(seq, f"{name}_t", int(seconds * SECOND))
    return seq


def test_durations_run_between_the_recorded_times() -> None:
    seq = sequence(outputs=5, first_scheduled=10.5, first_token=12, last_token=14, finished=14.25)
    metrics = RequestMetrics.from_sequences([seq], wall_offset_ns=0)
    durations = (
        metrics.queue_s,
        metrics.prefill_s,
        metrics.ttft_s,
        metrics.decode_s,
        metrics.e2e_s,
        metrics.mean_itl_s,
    )
    assert durations == pytest.approx((0.5, 1.5, 2.0, 2.0, 4.25, 0.5))


def test_wall_times_are_clock_times_moved_by_the_offset() -> None:
    seq = sequence(outputs=1, first_scheduled=11, first_token=12, last_token=12, finished=13)
    metrics = RequestMetrics.from_sequences([seq], wall_offset_ns=1000 * SECOND)
    walls = (metrics.arrival_time, metrics.first_scheduled_time, metrics.first_token_time, metrics.finished_time)
    assert walls == (1010.0, 1011.0, 1012.0, 1013.0)


def test_what_has_not_happened_is_none() -> None:
    metrics = RequestMetrics.from_sequences([sequence()], wall_offset_ns=SECOND)
    assert metrics.arrival_time == 11.0
    for name in ("first_scheduled_time", "first_token_time", "last_token_time", "finished_time"):
        assert getattr(metrics, name) is None
    for name in ("queue_s", "prefill_s", "ttft_s", "decode_s", "e2e_s", "mean_itl_s"):
        assert getattr(metrics, name) is None


def test_one_token_has_no_time_between_tokens() -> None:
    seq = sequence(outputs=1, first_scheduled=11, first_token=12, last_token=12, finished=12)
    assert RequestMetrics.from_sequences([seq], 0).mean_itl_s is None


def test_over_several_sequences_the_first_token_is_the_fastest_and_the_end_the_slowest() -> None:
    fast = sequence(outputs=3, first_scheduled=11, first_token=12, last_token=14, finished=14)
    slow = sequence(outputs=5, first_scheduled=12, first_token=13, last_token=19, finished=19)
    fast.num_cached_tokens, slow.num_cached_tokens, slow.num_preemptions = 0, 4, 2
    metrics = RequestMetrics.from_sequences([fast, slow], 0)
    assert (metrics.ttft_s, metrics.e2e_s) == (2.0, 9.0)
    assert metrics.mean_itl_s == pytest.approx((2 + 6) / (2 + 4))
    assert (metrics.num_prompt_tokens, metrics.num_output_tokens, metrics.num_cached_tokens) == (4, 8, 0)
    assert metrics.num_preemptions == 2


def test_a_request_ends_with_its_last_sequence() -> None:
    done = sequence(outputs=1, first_scheduled=11, first_token=12, last_token=12, finished=12)
    running = sequence(outputs=1, first_scheduled=11, first_token=12, last_token=12)
    assert RequestMetrics.from_sequences([done, running], 0).e2e_s is None


def test_an_output_is_finished_once_it_has_a_reason() -> None:
    assert not CompletionOutput(0, "", []).finished
    assert CompletionOutput(0, "", [], finish_reason="length").finished


def test_the_cumulative_logprob_sums_those_of_the_tokens() -> None:
    entries = [TokenLogprobs(1, -0.5, 1, []), TokenLogprobs(2, -1.5, 3, [])]
    assert CompletionOutput(0, "ab", [1, 2], logprobs=entries).cumulative_logprob == -2.0
    assert CompletionOutput(0, "ab", [1, 2]).cumulative_logprob is None
