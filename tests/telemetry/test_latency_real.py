"""Exact parts on the real engine and runner, with a tiny model: real clocks, real device times."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from latency_checks import check_whole
from nanolens.telemetry.events import AnyEvent
from nanolens.telemetry.latency import Latency
from real_engine import greedy, preemptions, prompt_of, recorded, tiny_llm

SMALL = {"num_blocks": 24, "max_num_seqs": 5, "max_prefill_chunk": 8, "host_blocks": 8}


def run(**options: Any) -> list[AnyEvent]:
    """A run with more than fits: queues, chunks, preemptions, pauses and siblings."""
    with tiny_llm(**(SMALL | options)) as llm:
        events: list[AnyEvent] = [llm.engine.core.started]
        later = recorded(llm)
        prompts = [prompt_of(4 + 3 * (i % 7), salt=i) for i in range(20)]
        llm.generate(prompts, [greedy(6 + 2 * (i % 9), n=1 + (i % 8 == 7)) for i in range(20)])
        paused = llm.generate([prompts[0]], [greedy(5, on_stop="pause")])[0]
        llm.resume(paused.request_id, append=[5, 6, 7])
        llm.finish(paused.request_id)
    return events + later


@pytest.mark.parametrize(
    ("mode", "overlap", "policy"), itertools.product(("recompute", "swap"), (False, True), ("fcfs", "priority"))
)
def test_every_nanosecond_of_a_real_run_is_in_one_part(mode: str, overlap: bool, policy: str) -> None:
    events = run(preemption_mode=mode, overlap=overlap, policy=policy)
    assert preemptions(events) > 0
    latency = check_whole(events)
    seen = {part for b in latency.breakdowns() for part in b.parts}
    assert {"own_prefill", "own_decode", "host_gap", "preempted", "paused"} <= seen


def test_a_request_alone_on_a_real_engine_shares_nothing() -> None:
    with tiny_llm() as llm:
        events: list[AnyEvent] = [llm.engine.core.started]
        later = recorded(llm)
        for i in range(4):
            llm.generate([prompt_of(20, salt=i)], [greedy(8)])
    latency: Latency = check_whole(events + later)
    for b in latency.breakdowns():
        assert not b.parts.keys() & {"prefill_interference", "batch_cost", "recompute"}
        assert b.parts["own_decode"] > 0 and b.parts["own_prefill"] > 0
