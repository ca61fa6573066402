"""Causes planted in a real engine on a tiny model, with real time: each comes out on top, named."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from nanolens.engine.llm import LLM
from nanolens.telemetry.events import AnyEvent
from nanolens.telemetry.latency import Breakdown, Latency
from nanolens.telemetry.latency_tracks import LatencyTracks
from nanolens.telemetry.verdict import Verdict, verdict
from real_engine import greedy, prompt_of, recorded, tiny_llm


def judged(llm: LLM, events: Sequence[AnyEvent], request: str) -> tuple[Breakdown, Verdict]:
    """The verdict on a request, the engine's first event put before what was recorded."""
    llm.engine.core.flush()
    tracks = LatencyTracks()
    for event in [llm.engine.core.started, *events]:
        tracks.apply(event)
    tracks.finish()
    latency = Latency(tracks)
    breakdown = latency.breakdown(tracks.requests[request])
    assert breakdown is not None and sum(breakdown.parts.values()) == breakdown.total_ns
    return breakdown, verdict(latency, breakdown)


def run(llm: LLM) -> None:
    while llm.engine.has_work:
        llm.engine.step()


def top(said: Verdict) -> Any:
    """The heaviest cause that is not the request's own work."""
    return next(cause for cause in said.causes if cause.name != "own")


def test_a_long_prefill_beside_a_decoder() -> None:
    with tiny_llm(num_blocks=256, max_prefill_chunk=128) as llm:
        events = recorded(llm)
        for salt in range(3):  # steps of each kind, for the cost model
            llm.generate([prompt_of(40 + 60 * salt, salt)], greedy(12))
        decoder = llm.engine.add_request(prompt_of(8), greedy(16), request_id="decoder")
        for _ in range(3):
            llm.engine.step()
        llm.engine.add_request(prompt_of(440, 9), greedy(2), request_id="long")
        run(llm)
        breakdown, said = judged(llm, events, decoder)
    (culprit,) = said.culprits["prefill_interference"]
    assert (culprit.kind, culprit.request) == ("prefill", "long")
    assert culprit.words.startswith("prefill of 440 tokens, steps ")
    assert breakdown.parts["prefill_interference"] == culprit.weight_ns


def test_a_pool_that_is_short() -> None:
    with tiny_llm(num_blocks=24) as llm:
        events = recorded(llm)
        llm.engine.add_request(prompt_of(60, 1), greedy(24), request_id="holder")
        llm.engine.step()
        llm.engine.add_request(prompt_of(48, 2), greedy(2), request_id="late")
        run(llm)
        _, said = judged(llm, events, "late")
    assert top(said).name == "no_blocks"
    assert said.headline.endswith(" waiting for free blocks, held by holder.")


def test_a_sleep_of_the_caller() -> None:
    with tiny_llm() as llm:
        events = recorded(llm)
        llm.engine.add_request(prompt_of(8), greedy(8), request_id="r")
        for _ in range(3):
            llm.engine.step()
        time.sleep(0.5)
        run(llm)
        _, said = judged(llm, events, "r")
    assert (top(said).name, top(said).culprits[0].kind) == ("host", "between")
    assert "the host outside the engine's step (the longest before step 4: " in said.headline


def test_a_sleep_in_a_callback() -> None:
    seen: list[int] = []

    def slow(output: Any) -> None:
        seen.append(1)
        time.sleep(0.5 if len(seen) == 3 else 0.0)

    with tiny_llm() as llm:
        events = recorded(llm)
        llm.engine.add_request(prompt_of(8), greedy(8), request_id="r", on_output=slow)
        run(llm)
        _, said = judged(llm, events, "r")
    assert (top(said).name, top(said).culprits[0].kind) == ("host", "collect")
    assert "callbacks" in said.headline


def test_a_preemption_for_want_of_blocks() -> None:
    with tiny_llm(num_blocks=16) as llm:
        events = recorded(llm)
        llm.engine.add_request(prompt_of(20, 1), greedy(24), request_id="first")
        llm.engine.add_request(prompt_of(20, 2), greedy(24), request_id="second")
        run(llm)
        breakdown, said = judged(llm, events, "second")
    assert breakdown.parts["preempted"] > 0 and breakdown.parts["recompute"] > 0
    assert [c.request for c in said.culprits["preempted"]] == ["first"]
    assert [(c.kind, c.request) for c in said.culprits["recompute"]] == [("lost", "first")]
