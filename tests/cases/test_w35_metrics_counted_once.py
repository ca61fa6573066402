"""W35: a preemption, or an admission that is tried again, counts cache queries, hits or a first token twice.

The metrics' side: what a scrape says after each step.
"""

from __future__ import annotations

import pytest

from fake_engine import FakeEngine
from metric_runs import Key, collected, key
from nanolens.telemetry.events import RequestArrived, SequencePreempted
from nanolens.telemetry.metric_families import GAUGES
from nanolens.telemetry.metrics import Metrics

NOT_RISING = {family.name for family in GAUGES}


def run_scraping(engine: FakeEngine) -> dict[Key, float]:
    """Run to the end; nothing is negative in any scrape, and no counter falls."""
    metrics = Metrics(clock=lambda: 0)
    engine.core.flush()
    metrics.apply_all(engine.events)
    engine.core.recorder.subscribe(metrics.apply_all)
    before = collected(metrics)
    while engine.step():
        now = collected(metrics)
        assert all(number >= 0 for number in now.values())
        assert all(now[sample] >= number for sample, number in before.items() if sample[0] not in NOT_RISING)
        cached, prompts = now[key("cached_prompt_tokens_total")], now[key("prompt_tokens_total")]
        assert 0 <= cached <= prompts
        before = now
    return collected(metrics)


@pytest.mark.parametrize("overlap", [False, True])
def test_preempted_requests_look_up_and_answer_once(overlap: bool) -> None:
    engine = FakeEngine(num_blocks=8, block_size=4, overlap=overlap)
    prompts = [list(range(i * 20, i * 20 + 7)) for i in range(4)]
    names = [engine.add(prompt, 12) for prompt in prompts]
    found = run_scraping(engine)
    preemptions = sum(number for (name, _), number in found.items() if name == "nanolens_preemptions_total")
    assert preemptions == len(engine.of(SequencePreempted)) >= 1
    assert found[key("prefix_cache_queried_tokens_total")] == sum(map(len, prompts))
    assert found[key("prefix_cache_hit_tokens_total")] == 0
    assert found[key("refound_tokens_total")] > 0
    arrived = {event.request: event.t for event in engine.of(RequestArrived)}
    waits = []
    for name in names:
        metrics = engine.outputs[name].metrics
        assert metrics is not None
        waits.append(metrics.first_token_t - arrived[name])
    assert found[key("time_to_first_token_seconds_count")] == 4
    assert found[key("time_to_first_token_seconds_sum")] == sum(waits) / 1e9
    assert found[key("generated_tokens_total")] == 4 * 12
    assert found[key("inter_token_seconds_count")] == 4 * 11


def test_an_admission_that_fails_for_five_steps_counts_one_look_up() -> None:
    engine = FakeEngine(num_blocks=6, block_size=4)
    engine.add(list(range(10)), 9)
    engine.step()
    engine.add(list(range(100, 114)), 2)
    found = run_scraping(engine)
    assert found[key("prefix_cache_queried_tokens_total")] == 24
    assert found[key("prefix_cache_hit_tokens_total")] == 0
    assert found[key("time_to_first_token_seconds_count")] == found[key("requests_arrived_total")] == 2
