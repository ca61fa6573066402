"""Planted causes come out on top, named: the first line of the verdict on each, word by word."""

from __future__ import annotations

from typing import Any

import pytest

import planted_causes
from nanolens.telemetry.culprit import Culprit
from nanolens.telemetry.culprits import CulpritFinder, culprits
from nanolens.telemetry.latency import Breakdown, Latency
from nanolens.telemetry.verdict import Verdict, verdict
from nanolens.telemetry.verdict_words import Cause, words
from planted_causes import latency_of

FIRST_LINES = {
    "long_prefill": "req-0 took 121.4 ms: 51% of it (62.0 ms) stretched by the prefill of others in its steps: req-1.",
    "short_pool": "req-2 took 64.5 ms: 83% of it (53.2 ms) waiting for free blocks, held by req-0 (76%) "
    "and req-1 (24%).",
    "behind_the_head": "req-2 took 92.5 ms: 83% of it (76.4 ms) waiting for free blocks, held by req-0.",
    "sequence_cap": "req-2 took 58.7 ms: 89% of it (52.3 ms) waiting for a place in the batch of 2 (max_num_seqs), "
    "taken by req-0 (50%) and req-1 (50%).",
    "token_budget": "req-1 took 103.5 ms: 88% of it (91.4 ms) waiting for room in the token budget of 32 of a step "
    "(max_num_batched_tokens), taken by req-0.",
    "priority_preemption": "req-0 took 141.1 ms: 82% of it (115.1 ms) after it lost its place to req-1: priority, "
    "5 blocks and 20 computed tokens lost in step 6.",
    "blocks_preemption": "req-1 took 87.4 ms: 23% of it (20.3 ms) after it lost its place to req-0: no_blocks, "
    "8 blocks and 32 computed tokens lost in step 18.",
    "slow_caller": "req-0 took 74.5 ms: 67% of it (50.1 ms) with the device idle, the host outside the engine's step "
    "(the longest before step 5: 50.0 ms).",
    "slow_callback": "req-0 took 84.5 ms: 71% of it (60.1 ms) with the device idle, the host in what followed from the "
    "tokens before: callbacks, texts, the queues (the longest before step 5: 60.0 ms).",
    "slow_reader": "req-0 took 124.5 ms: 80% of it (100.0 ms) waiting for its own reader, which held its stream up "
    "once, for 0.11 s in all.",
    "operator_pause": "req-0 took 104.5 ms: 77% of it (80.0 ms) paused: operator.",
    "breakpoint_pause": "req-0 took 116.1 ms: 78% of it (90.0 ms) while the engine was paused: breakpoint 1 "
    "(on=request.arrived).",
    "cold_cache": "req-2 took 18.9 ms: 82% of it (15.4 ms) computing prompt tokens that the cache had lost: "
    "72 tokens had been cached and were evicted.",
    "swap_in": "req-0 took 111.0 ms: 65% of it (72.0 ms) waiting for its KV to come back from the swap space "
    "(move 2 of 0.00 MiB took 70.00 ms).",
}


def told(name: str) -> tuple[Latency, Breakdown, Verdict]:
    engine, request = getattr(planted_causes, name)()
    latency = latency_of(engine)
    breakdown = latency.breakdown(latency.tracks.requests[request])
    assert breakdown is not None
    return latency, breakdown, verdict(latency, breakdown)


def found(name: str, part: str) -> tuple[list[Culprit], int]:
    latency, breakdown, _ = told(name)
    return culprits(latency, breakdown, part), breakdown.parts[part]


@pytest.mark.parametrize("name", FIRST_LINES)
def test_the_first_line_names_what_was_planted(name: str) -> None:
    assert told(name)[2].headline == FIRST_LINES[name]


@pytest.mark.parametrize("name", FIRST_LINES)
def test_causes_add_up_to_the_time_of_the_request(name: str) -> None:
    _, breakdown, said = told(name)
    assert sum(cause.ns for cause in said.causes) == breakdown.total_ns
    assert min(cause.ns for cause in said.causes) > 0


@pytest.mark.parametrize("name", FIRST_LINES)
def test_culprits_of_a_part_never_weigh_more_than_it(name: str) -> None:
    _, breakdown, said = told(name)
    for part, culprits_of_part in said.culprits.items():
        weights = [culprit.weight_ns for culprit in culprits_of_part if culprit.kind != "head"]
        assert sum(weights) <= breakdown.parts[part]
        assert weights == sorted(weights, reverse=True)


@pytest.mark.parametrize("name", FIRST_LINES)
def test_the_evidence_covers_the_life_without_gap_or_overlap(name: str) -> None:
    _, breakdown, said = told(name)
    at = breakdown.begin_t
    for piece in said.evidence:
        assert piece.begin_t == at < piece.end_t
        at = piece.end_t
    assert at == breakdown.end_t


def test_the_head_of_the_queue_is_named_after_those_it_waited_for() -> None:
    behind, total = found("behind_the_head", "queue_head_of_line")
    assert [(c.kind, c.request, c.weight_ns) for c in behind] == [("holder", "req-0", total), ("head", "req-1", total)]


def test_a_prefill_is_named_with_its_tokens_and_steps() -> None:
    (culprit,), total = found("long_prefill", "prefill_interference")
    assert (culprit.kind, culprit.request, culprit.seq, culprit.weight_ns) == ("prefill", "req-1", 1, total)
    assert culprit.words == "prefill of 240 tokens, steps 5 to 8"
    assert culprit.step == 8  # the last chunk attends to the most keys


def test_who_shared_the_batch_is_named_with_its_decodes() -> None:
    (culprit,), total = found("sequence_cap", "batch_cost")
    assert (culprit.kind, culprit.request, culprit.weight_ns) == ("batch", "req-0", total)


def test_recomputing_is_put_down_to_the_preemption_that_lost_the_tokens() -> None:
    (culprit,), total = found("blocks_preemption", "recompute")
    assert (culprit.kind, culprit.request, culprit.weight_ns) == ("lost", "req-0", total)
    assert culprit.words == "32 computed tokens lost in step 18 (no_blocks)"


def test_a_preemption_is_counted_by_the_wait_that_follows_it() -> None:
    (culprit,), total = found("priority_preemption", "preempted")
    assert (culprit.kind, culprit.request, culprit.weight_ns) == ("preemptor", "req-1", total)


def test_misses_share_the_prefill_by_their_tokens() -> None:
    missed, total = found("cold_cache", "own_prefill")
    assert [culprit.words for culprit in missed] == [
        "72 tokens had been cached and were evicted", "4 tokens in a block that is not full",
    ]  # fmt: skip
    assert missed[0].weight_ns == pytest.approx(total * 72 / 76, abs=1)


def test_the_host_is_told_apart_by_what_it_did() -> None:
    between, _ = found("slow_caller", "host_gap")
    collect, _ = found("slow_callback", "host_gap")
    assert [c[0].kind for c in (between, collect)] == ["between", "collect"]
    assert [c[0].step for c in (between, collect)] == [5, 5]


def test_a_verdict_on_the_first_token_counts_only_what_was_before_it() -> None:
    engine, request = planted_causes.slow_caller()
    latency = latency_of(engine)
    breakdown = latency.breakdown(latency.tracks.requests[request])
    assert breakdown is not None
    said = verdict(latency, breakdown, "ttft")
    assert said.headline == (
        "The first token of req-0 took 3.2 ms: 100% of it (3.2 ms) for its own work: 8 of 8 prompt tokens computed."
    )
    assert said.evidence[-1].end_t == breakdown.track.first_token_t


def test_one_that_lives_is_told_so_far() -> None:
    engine, _ = planted_causes.timed_engine(max_num_seqs=1)
    engine.add(planted_causes.prompt(8, 1), 30)
    late = engine.add(planted_causes.prompt(8, 2), 2)
    planted_causes.steps(engine, 10)
    latency = latency_of(engine)
    breakdown = latency.breakdown(latency.tracks.requests[late])
    assert breakdown is not None
    assert verdict(latency, breakdown).headline == (
        "req-1 lives and has taken 24.5 ms: 100% of it (24.5 ms) waiting for a place in the batch of 1 (max_num_seqs), "
        "taken by req-0."
    )


def test_a_request_alone_is_told_to_be_its_own_work() -> None:
    engine, _ = planted_causes.timed_engine()
    request = engine.add(planted_causes.prompt(8), 10)
    engine.run()
    latency = latency_of(engine)
    breakdown = latency.breakdown(latency.tracks.requests[request])
    assert breakdown is not None
    said = verdict(latency, breakdown, finder=CulpritFinder(latency))
    assert said.headline == (
        "req-0 took 24.5 ms: 100% of it (24.4 ms) for its own work: 8 of 8 prompt tokens computed, 10 tokens generated."
    )
    assert said.sentences == ()


def test_siblings_are_not_named_as_if_they_were_others() -> None:
    engine, _ = planted_causes.timed_engine(max_num_seqs=1)
    group = engine.add(planted_causes.prompt(8), 10, n=2, temperature=1.0)
    engine.run()
    latency = latency_of(engine)
    breakdown = latency.breakdown(latency.tracks.requests[group])
    assert breakdown is not None
    assert verdict(latency, breakdown).headline.endswith(
        "waiting for a place in the batch of 1 (max_num_seqs), taken by its siblings."
    )


def test_what_was_copied_from_a_sibling_was_not_computed() -> None:
    engine, _ = planted_causes.timed_engine()
    group = engine.add(planted_causes.prompt(22), 6, n=2, temperature=1.0)
    engine.run()
    latency = latency_of(engine)
    breakdown = latency.breakdown(latency.tracks.requests[group])
    first, second = (latency.of_track(track) for track in breakdown.siblings)
    said = verdict(latency, second)
    assert "1 of 22 prompt tokens computed" in " ".join((said.headline, *said.sentences))
    assert [c.words for c in said.culprits["own_prefill"]] == ["1 token in a block that is not full"]
    assert said.culprits["own_prefill"][0].weight_ns == second.parts["own_prefill"]
    assert "22 of 22 prompt tokens computed" in verdict(latency, first).headline


def test_a_sibling_that_took_the_place_is_not_the_request_itself() -> None:
    """Two siblings outgrow the pool: the later one goes for the other, and computes its tokens again."""
    engine, _ = planted_causes.timed_engine(num_blocks=15)
    group = engine.add(planted_causes.prompt(16), 26, n=2, temperature=1.0)
    engine.run()
    latency = latency_of(engine)
    breakdown = latency.breakdown(latency.tracks.requests[group])
    assert [e.by for e in breakdown.track.preemptions] == [breakdown.siblings[0].seq]
    said = verdict(latency, breakdown)
    text = " ".join((said.headline, *said.sentences))
    assert "after it lost its place to its siblings: no_blocks, " in text
    assert group not in text.removeprefix(group)


def test_evicted_tokens_do_not_count_again_as_its_own_work() -> None:
    (own,) = [line for line in told("cold_cache")[2].sentences if line.startswith("Its own work")]
    assert own.endswith(": 4 of 80 prompt tokens computed besides those, 2 tokens generated.")


@pytest.mark.parametrize(("tokens", "is_told"), [(100, True), (250, False)])
def test_evicted_tokens_count_as_its_own_work_where_they_were_not_told_before(tokens: int, is_told: bool) -> None:
    """It decodes for so long that its prompt is a small part of its time, or one that is not worth a sentence."""
    _, breakdown, said = evicted_then_decoding(tokens)
    assert ("the cache had lost" in " ".join(said.sentences)) == is_told
    assert said.headline.endswith(
        f" for its own work: 72 of 80 prompt tokens computed (68 of them had been cached and were evicted), "
        f"{tokens} tokens generated."
    )
    assert "besides" not in " ".join(said.sentences)
    assert sum(chunk[2] for run in breakdown.track.runs for chunk in run.chunks) == 72  # as the timeline has it


def evicted_then_decoding(tokens: int) -> tuple[Latency, Breakdown, Verdict]:
    """The cold cache again, and a long answer."""
    engine, _ = planted_causes.timed_engine(num_blocks=100, max_model_len=512)
    engine.add(planted_causes.prompt(80, 1), 2)
    engine.run()
    engine.add(planted_causes.prompt(390, 2), 2)
    engine.run()
    again = engine.add(planted_causes.prompt(80, 1), tokens)
    engine.run()
    latency = latency_of(engine)
    breakdown = latency.breakdown(latency.tracks.requests[again])
    return latency, breakdown, verdict(latency, breakdown)


def test_a_prompt_that_is_under_way_counts_as_far_as_it_is_computed() -> None:
    engine, _ = planted_causes.timed_engine(max_prefill_chunk=20, num_blocks=128)
    request = engine.add(planted_causes.prompt(100), 4)
    planted_causes.steps(engine, 2)
    latency = latency_of(engine)
    said = verdict(latency, latency.breakdown(latency.tracks.requests[request]))
    assert "for its own work: 40 of 100 prompt tokens computed, 0 tokens generated." in said.headline


def test_only_holders_hold_and_only_a_request_takes_a_place() -> None:
    def preemption(*culprits: Culprit) -> str:
        return words(Cause("preemption", 100, culprits))

    lost = Culprit("lost", "", 3, 10, "512 computed tokens lost in step 9 (no_blocks)")
    given_up = Culprit("lost", "", -1, 10, "its KV was given up while it did not run")
    holder = Culprit("holder", "slow", 1, 90, "held 90% of the blocks in use")
    taker = Culprit("preemptor", "vip", 2, 90, "priority, 4 blocks and 8 computed tokens lost in step 3")
    assert preemption(holder, lost) == "after it was preempted for want of blocks, held by slow (90%)"
    assert preemption(taker, given_up) == f"after it lost its place to vip (90%): {taker.words}"
    itself = Culprit("preemptor", "", 3, 90, "no_blocks, 4 blocks and 8 computed tokens lost in step 3")  # from spans
    assert preemption(itself) == f"after it lost its place to itself: {itself.words}"
    assert preemption(lost, given_up) == f"computing again: {lost.words}"


def test_advice_names_a_setting_only_where_one_helps() -> None:
    def last(name: str) -> Any:
        return told(name)[2].sentences[-1]

    assert last("short_pool").endswith("--set num_blocks=2x.")
    assert last("long_prefill").endswith("--set max_prefill_chunk=30.")
    assert "help" not in last("priority_preemption") + last("operator_pause")
