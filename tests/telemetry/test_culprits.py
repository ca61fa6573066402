"""Culprits and verdicts of random lives: nothing weighs more than its part, and who is named was there."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from nanolens.telemetry.culprit import Culprit
from nanolens.telemetry.culprit_lives import LifeIndex, clip, joined
from nanolens.telemetry.culprits import CulpritFinder
from nanolens.telemetry.latency import PARTS, Latency
from nanolens.telemetry.latency_tracks import LatencyTracks
from nanolens.telemetry.verdict import verdict
from planted_causes import latency_of, prompt, steps
from random_lives import Driver
from timed_engine import timed_engine

OPTIONS: list[dict[str, Any]] = [
    {},
    {"overlap": True},
    {"policy": "priority", "host_blocks": 6, "preemption_mode": "swap"},
    {"policy": "sjf", "batching": "prefill_first", "host_blocks": 4, "disk_blocks": 5},
    {"max_num_batched_tokens": 8, "max_num_seqs": 3},
]


def random_latency(options: dict[str, Any], seed: int, commands: int = 500, end: bool = True) -> Latency:
    settings = {"num_blocks": 12, "max_num_seqs": 5, "max_prefill_chunk": 6, "max_model_len": 44} | options
    engine, _ = timed_engine(**settings, paused_ttl_s=None)
    driver = Driver(engine, random.Random(seed))
    for _ in range(commands):
        driver.rng.choice(driver.commands())()
    if end:
        driver.drain()
    return latency_of(engine)


@pytest.mark.parametrize("by", ["e2e", "ttft"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_weights_stay_within_their_part_and_name_requests_that_are_there(options: dict[str, Any], by: str) -> None:
    latency = random_latency(options, 1)
    finder, parts_with_culprits = CulpritFinder(latency), set()
    for breakdown in latency.breakdowns():
        for part, ns in (breakdown.ttft_parts if by == "ttft" else breakdown.parts).items():
            found = finder.find(breakdown, part, by)
            parts_with_culprits.update([part] if found else [])
            main = [culprit for culprit in found if culprit.kind != "head"]
            heads = [culprit for culprit in found if culprit.kind == "head"]
            for group in (main, heads):
                assert sum(culprit.weight_ns for culprit in group) <= ns
            for culprit in found:
                assert culprit.weight_ns >= 0 and culprit.words
                assert culprit.request in ("", *latency.tracks.requests)
                assert culprit.seq == -1 or latency.tracks.tracks[culprit.seq].request == culprit.request or (
                    culprit.kind == "lost" and not culprit.request
                )
    assert parts_with_culprits <= set(PARTS) - {"own_decode"} and len(parts_with_culprits) >= 4


@pytest.mark.parametrize("by", ["e2e", "ttft"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_causes_of_random_lives_add_up(options: dict[str, Any], by: str) -> None:
    latency = random_latency(options, 2, end=False)
    finder, told = CulpritFinder(latency), 0
    for breakdown in latency.breakdowns():
        if by == "ttft" and not breakdown.ttft_ns:
            continue
        said = verdict(latency, breakdown, by, finder)
        total = breakdown.ttft_ns if by == "ttft" else breakdown.total_ns
        assert sum(cause.ns for cause in said.causes) == total
        assert sum(piece.end_t - piece.begin_t for piece in said.evidence) == total
        told += 1
    assert told > 10


def test_blocks_weigh_by_how_long_they_were_held() -> None:
    """Two hold all blocks while a third one waits; they grow, and one ends before the other."""
    engine, _ = timed_engine(num_blocks=10, max_num_seqs=8)
    long, short = engine.add(prompt(22, 1), 3), engine.add(prompt(9, 2), 4)
    steps(engine, 1)
    late = engine.add(prompt(30, 3), 2)
    engine.run()
    latency = latency_of(engine)
    tracks = latency.tracks
    breakdown = latency.breakdown(tracks.requests[late])
    assert breakdown is not None
    begin, end = next((r.begin_t, r.end_t) for r in breakdown.track.rests if r.part == "queue_no_blocks")
    held = {name: _by_hand(latency, tracks.requests[name].seqs[0], begin, end) for name in (long, short)}
    found = CulpritFinder(latency).find(breakdown, "queue_no_blocks")
    ns = breakdown.parts["queue_no_blocks"]
    assert {c.request: c.weight_ns for c in found} == {
        name: round(ns * amount / sum(held.values())) for name, amount in held.items()
    }


def _by_hand(latency: Latency, seq: int, begin: int, end: int) -> int:
    """Blocks times nanoseconds, change by change."""
    blocks = latency.tracks.tracks[seq].blocks
    changes = [(blocks[i], blocks[i + 1]) for i in range(0, len(blocks), 2)]
    total = 0
    for index, (t, count) in enumerate(changes):
        to = changes[index + 1][0] if index + 1 < len(changes) else end
        total += count * max(0, min(to, end) - max(t, begin))
    return total


def test_siblings_count_as_one_culprit() -> None:
    engine, _ = timed_engine(max_num_seqs=3, num_blocks=64)
    group = engine.add(prompt(8, 1), 12, n=3, temperature=1.0)
    steps(engine, 3)
    late = engine.add(prompt(8, 2), 2)
    engine.run()
    latency = latency_of(engine)
    breakdown = latency.breakdown(latency.tracks.requests[late])
    assert breakdown is not None
    (culprit,) = CulpritFinder(latency).find(breakdown, "queue_sequence_cap")
    assert (culprit.kind, culprit.request, culprit.weight_ns) == (
        "runner", group, breakdown.parts["queue_sequence_cap"]
    )  # fmt: skip


def test_a_part_without_time_has_no_culprits() -> None:
    latency = random_latency({}, 3, 100)
    breakdown = next(latency.breakdowns())
    assert CulpritFinder(latency).find(breakdown, "no_such_part") == []


def test_what_the_journal_lost_is_told() -> None:
    engine, _ = timed_engine()
    request = engine.add(prompt(8), 20)
    steps(engine, 4)
    engine.core.flush()
    before = len(engine.events)
    keyframe = engine.core.keyframe()
    engine.run()
    engine.core.flush()
    tracks = LatencyTracks()
    for event in [keyframe, *engine.events[before:]]:
        tracks.apply(event)
    tracks.finish()
    latency = Latency(tracks)
    breakdown = latency.breakdown(tracks.requests[request])
    assert breakdown is not None
    found = CulpritFinder(latency).find(breakdown, "unknown")
    assert found == [Culprit("gap", "", -1, breakdown.parts["unknown"], "the journal begins later")]
    assert "in a time that the journal does not tell of" in " ".join(
        [verdict(latency, breakdown).headline, *verdict(latency, breakdown).sentences]
    )


def test_heads_of_the_queue_follow_each_other_without_gaps() -> None:
    latency = random_latency({"max_num_seqs": 2}, 4)
    tracks = latency.tracks
    heads = LifeIndex(tracks).heads([(tracks.begin_t, tracks.t)], -1)
    assert len(heads) > 10
    for (_, end, _, _), (begin, _, _, _) in pairwise(heads):
        assert end <= begin


def test_intervals_are_clipped_and_joined() -> None:
    assert clip([(0, 5), (7, 9), (20, 30)], 3, 25) == [(3, 5), (7, 9), (20, 25)]
    assert joined([(0, 5), (5, 7), (9, 10)]) == [(0, 7), (9, 10)]


def test_the_documentation_tells_of_each_part_that_has_culprits() -> None:
    lines = (Path(__file__).parents[2] / "docs" / "explain.md").read_text(encoding="utf-8").splitlines()
    documented = {line.split("`")[1] for line in lines if line.startswith("| `")}
    assert documented == set(PARTS) - {"own_decode"}
