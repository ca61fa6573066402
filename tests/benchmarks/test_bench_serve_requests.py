"""What is sent and when: arrivals, traces' own times, and clients that misbehave."""

from __future__ import annotations

import json
import math
import statistics
from itertools import islice, pairwise
from pathlib import Path

import pytest

from nanolens.benchmarks.serve_requests import (
    CHAT,
    COMPLETIONS,
    Ask,
    Behaviour,
    Pace,
    Prompt,
    Shape,
    asks,
    prompts,
    trace_pace,
)
from nanolens.benchmarks.traces import read_times
from nanolens.benchmarks.workload import WorkloadSpec
from nanolens.errors import InvalidConfig

SHAPE, ALL_WELL = Shape("m"), Behaviour()


def gaps(pace: Pace, count: int = 4000) -> list[float]:
    return [b - a for a, b in pairwise(islice(pace.times(seed=1), count))]


def made(total: int, behaviour: Behaviour = ALL_WELL, shape: Shape = SHAPE, seed: int = 0) -> list[Ask]:
    """Requests for eight tokens each, of three prompts."""
    drawn = [Prompt([n + 1, n + 2], 8) for n in range(3)]
    return list(asks(drawn, Pace(), shape, behaviour, seed, total))


def test_a_poisson_process_has_its_rate_and_spread() -> None:
    found = gaps(Pace(rate=50.0))
    assert statistics.mean(found) == pytest.approx(1 / 50, rel=0.06)
    assert statistics.stdev(found) == pytest.approx(1 / 50, rel=0.1)


def test_burstiness_keeps_the_rate_and_changes_the_spread() -> None:
    found = gaps(Pace(rate=50.0, burstiness=0.25), 16_000)
    assert statistics.mean(found) == pytest.approx(1 / 50, rel=0.06)
    assert statistics.stdev(found) == pytest.approx(2 / 50, rel=0.1)


def test_without_a_rate_all_are_due_at_once() -> None:
    assert set(gaps(Pace())) == {0.0}


def test_a_traces_own_times_are_scaled(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,1,1\n2023-11-16 18:15:48.6805900,1,1\n"
    )
    pace = trace_pace(WorkloadSpec(trace=path), 0.5)
    assert pace is not None
    assert list(pace.times(seed=0)) == pytest.approx([0.0, 1.0])


def test_mooncakes_times_are_milliseconds_and_texts_have_none(tmp_path: Path) -> None:
    mooncake, questions = tmp_path / "m.jsonl", tmp_path / "q.jsonl"
    mooncake.write_text("".join(json.dumps({"timestamp": t, "hash_ids": []}) + "\n" for t in (500, 3500, 2000)))
    questions.write_text('{"turns": ["Why?"]}\n')
    assert read_times(mooncake, None) == [0.0, 1.5, 3.0]
    assert read_times(questions, None) is None


def test_a_time_that_is_none_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nnow,1,1\n")
    with pytest.raises(InvalidConfig, match="line 2: 'now' is no time"):
        read_times(path, None)


def test_the_shared_azure_trace_has_its_known_duration(shared_data: Path) -> None:
    times = read_times(shared_data / "azure2023_conv_first3000.csv", None)
    assert times is not None
    assert (len(times), round(times[-1])) == (3000, 629)


def test_drawn_prompts_go_to_completions_and_texts_to_chat(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"turns": ["Why?", "And?"]}\n')
    text = prompts(WorkloadSpec(trace=path, output_len=(5, 5)), 100)
    drawn = prompts(WorkloadSpec(num_requests=2, input_len=(3, 3), output_len=(4, 4)), 100)
    (chat,) = asks(text, Pace(), SHAPE, Behaviour(), 0, 1)
    (ids,) = asks(drawn, Pace(), SHAPE, Behaviour(), 0, 1)
    assert chat.path == CHAT and json.loads(chat.body)["messages"] == [{"role": "user", "content": "Why?"}]
    assert ids.path == COMPLETIONS and len(json.loads(ids.body)["prompt"]) == 3
    assert (json.loads(chat.body)["max_tokens"], json.loads(ids.body)["max_tokens"]) == (5, 4)


def test_lengths_are_exact_unless_a_model_may_end_them() -> None:
    (exact,), (open_ended,) = made(1), made(1, shape=Shape("m", stop_at_eos=True))
    assert exact.exact and json.loads(exact.body)["ignore_eos"] is True
    assert not open_ended.exact and "ignore_eos" not in json.loads(open_ended.body)


def test_prompts_go_round_and_equal_keys_have_equal_bodies() -> None:
    found = made(7)
    assert [ask.key for ask in found] == [0, 1, 2, 0, 1, 2, 0]
    assert found[0].body == found[3].body != found[1].body


def test_clients_misbehave_in_their_shares() -> None:
    found = made(4000, Behaviour(early_close=0.1, bad_requests=0.05, slow_readers=0.2))
    assert sum(ask.close_after is not None for ask in found) / 4000 == pytest.approx(0.1, abs=0.02)
    assert sum(ask.is_bad for ask in found) / 4000 == pytest.approx(0.05, abs=0.015)
    assert sum(ask.is_slow for ask in found) / 4000 == pytest.approx(0.2, abs=0.03)
    assert not any((ask.close_after is not None) + ask.is_bad + ask.is_slow > 1 for ask in found)
    assert {ask.close_after for ask in found} == {None, *range(1, 8)}


def test_the_same_seed_sends_the_same() -> None:
    behaviour = Behaviour(early_close=0.3, bad_requests=0.3)
    assert made(50, behaviour) == made(50, behaviour) != made(50, behaviour, seed=1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Pace(rate=0.0), "rate=0.0: must be above 0"),
        (lambda: Pace(burstiness=-1.0), "burstiness=-1.0"),
        (lambda: Pace(rate=math.nan), "rate=nan"),
        (lambda: Behaviour(early_close=1.5), "early_close=1.5: must be from 0 to 1"),
        (lambda: Behaviour(early_close=0.6, slow_readers=0.6), "at most 1 together"),
        (lambda: trace_pace(WorkloadSpec(), 0.0), "scale_times=0.0"),
    ],
)
def test_what_can_not_be_sent_is_refused(make, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        make()
