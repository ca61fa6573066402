"""Gauges and counters of a run in which everything happens, against a count of its journal made here."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from metric_runs import (
    NOT_COUNTED,
    Key,
    collected,
    fed,
    flat,
    key,
    of_kinds,
    rich_run,
    samples,
    value,
)
from nanolens.telemetry.events import (
    AnyEvent,
    BlocksAllocated,
    BlocksCached,
    BlocksFreed,
    BlocksSwapped,
    CallbackFailed,
    EngineContinued,
    EngineError,
    EnginePaused,
    EngineStopped,
    Keyframe,
    PrefixMatched,
    RequestArrived,
    RequestFinished,
    RequestRefused,
    SequencePreempted,
    SequenceResumed,
    StatusChanged,
    StepFinished,
    StepPlanned,
    SwapFinished,
    WaitReasonChanged,
)
from nanolens.telemetry.metric_families import COUNTERS, FAMILIES, GAUGES
from nanolens.telemetry.metrics import Metrics

BLOCKS, BLOCK_SIZE, HOST, DISK = 20, 4, 5, 7


def counted(events: list[AnyEvent]) -> dict[Key, float]:
    """What counters have to say, one event after the other."""
    found: Counter[Key] = Counter()
    for e in events:
        if isinstance(e, RequestArrived):
            found[key("requests_arrived_total")] += 1
            found[key("prompt_tokens_total")] += e.num_prompt_tokens * len(e.seqs)
        elif isinstance(e, RequestFinished):
            found[key("requests_total", finish_reason=e.finish_reason)] += 1
            found[key("cached_prompt_tokens_total")] += e.num_cached_tokens
        elif isinstance(e, RequestRefused):
            reason = {"too long": "prompt_too_long", "odd": "params"}[e.request]
            found[key("refused_requests_total", reason=reason)] += 1
        elif isinstance(e, SequencePreempted):
            found[key("preemptions_total", reason=e.cause, mode=e.mode)] += 1
            found[key("recomputed_tokens_total")] += e.num_tokens
        elif isinstance(e, PrefixMatched) and e.recompute:
            found[key("refound_tokens_total")] += e.hit
        elif isinstance(e, PrefixMatched):
            found[key("prefix_cache_queried_tokens_total")] += e.queried
            found[key("prefix_cache_hit_tokens_total")] += e.hit
            for reason in ("never_seen", "evicted", "sub_block"):
                found[key("prefix_cache_misses_total", reason=reason)] += getattr(e, reason)
        elif isinstance(e, BlocksAllocated):
            found[key("block_allocations_total")] += len(e.new)
            found[key("block_shares_total")] += len(e.cached)
            found[key("block_evictions_total")] += len(e.evicted)
        elif isinstance(e, BlocksFreed):
            found[key("dropped_tokens_total")] += e.lost
        elif isinstance(e, BlocksSwapped):
            found[key("swapped_blocks_total", direction=e.kind)] += len(e.sources)
            found[key("block_evictions_total")] += len(e.evicted)
        elif isinstance(e, SwapFinished):
            found[key("swap_failures_total")] += bool(e.error)
        elif isinstance(e, StatusChanged):
            found[key("pauses_total")] += e.new == "PAUSED"
        elif isinstance(e, SequenceResumed):
            found[key("resumes_total")] += 1
        elif isinstance(e, StepPlanned):
            found[key("steps_total", kind=e.kind)] += 1
        elif isinstance(e, StepFinished):
            found[key("generated_tokens_total")] += e.num_sampled - len(e.wasted)
            found[key("wasted_tokens_total")] += len(e.wasted)
            found[key("computed_tokens_total")] += e.num_tokens
        elif isinstance(e, EngineError):
            found[key("engine_errors_total")] += 1
        elif isinstance(e, CallbackFailed):
            found[key("callback_failures_total")] += 1
    return dict(found)


def gauged(events: list[AnyEvent], now: int) -> dict[Key, float]:
    """What gauges have to say after these events; the last keyframe among them comes after all that moves tokens."""
    status: dict[int, StatusChanged] = {}
    why: dict[int, str] = {}
    refs: Counter[int] = Counter()
    cached: set[int] = set()
    slots: set[int] = set()
    paused, last_step_t, keyframe = False, 0, None
    for e in events:
        if isinstance(e, StatusChanged):
            status[e.seq], why[e.seq] = e, "not_considered"
        elif isinstance(e, WaitReasonChanged):
            why[e.seq] = e.reason
        elif isinstance(e, BlocksAllocated):
            refs.update([*e.cached, *e.new])
            cached -= set(e.evicted)
        elif isinstance(e, BlocksCached):
            cached |= set(e.blocks)
        elif isinstance(e, BlocksFreed):
            refs.subtract(entry for entry in e.blocks if entry >= 0)
            slots -= {-1 - entry for entry in e.blocks if entry < 0}
        elif isinstance(e, BlocksSwapped):
            refs.subtract(entry for entry in e.sources if entry >= 0)
            refs.update(entry for entry in e.targets if entry >= 0)
            slots -= {-1 - entry for entry in e.sources if entry < 0}
            slots |= {-1 - entry for entry in e.targets if entry < 0}
            cached -= set(e.evicted)
        elif isinstance(e, EnginePaused | EngineContinued):
            paused = isinstance(e, EnginePaused)
        elif isinstance(e, StepFinished):
            last_step_t = e.t
        elif isinstance(e, Keyframe):
            keyframe = e
    waiting = {seq: e for seq, e in status.items() if e.new == "WAITING"}
    reasons = Counter(
        "engine_paused" if paused and why[seq] == "not_considered" else why[seq] for seq in waiting
    )
    used = {block for block, count in refs.items() if count}
    found: dict[Key, float] = {
        key("engine_up"): 1,
        key("engine_paused"): int(paused),
        key("preempted_waiting_sequences"): sum(e.reason == "preempted" for e in waiting.values()),
        key("oldest_wait_seconds"): max((now - e.t for e in waiting.values()), default=0) / 1e9,
        key("kv_blocks", state="used"): len(used),
        key("kv_blocks", state="cached"): len(cached - used),
        key("kv_blocks", state="free"): BLOCKS - len(used | cached),
        key("kv_blocks_capacity"): BLOCKS,
        key("kv_token_fill_ratio"): fill(keyframe),
        key("host_kv_blocks", state="used"): sum(slot < HOST for slot in slots),
        key("host_kv_blocks", state="free"): HOST - sum(slot < HOST for slot in slots),
        key("disk_kv_blocks", state="used"): sum(slot >= HOST for slot in slots),
        key("disk_kv_blocks", state="free"): DISK - sum(slot >= HOST for slot in slots),
    }
    for name in ("WAITING", "RUNNING", "PAUSED"):
        found[key("sequences", status=name)] = sum(e.new == name for e in status.values())
    for reason, count in reasons.items():
        found[key("waiting_sequences", reason=reason)] = count
    if last_step_t:
        started: Any = events[0]
        found[key("last_step_timestamp_seconds")] = (last_step_t + started.wall_offset_ns) / 1e9
    return found


def fill(keyframe: Keyframe | None) -> float:
    """Computed tokens in the blocks of all tables, over what these blocks can hold, from the engine's own words."""
    held: dict[int, int] = {}
    for seq in keyframe.sequences if keyframe else ():
        for index, block in enumerate(seq.block_table):
            if block >= 0:
                tokens = min(BLOCK_SIZE, max(0, seq.num_computed_tokens - index * BLOCK_SIZE))
                held[block] = max(tokens, held.get(block, 0))
    return sum(held.values()) / (BLOCK_SIZE * len(held)) if held else 0.0


@pytest.mark.parametrize("overlap", [False, True])
def test_the_run_has_everything_in_it(overlap: bool) -> None:
    counts = Counter(type(event) for event in flat(rich_run(overlap)))
    needed = (SequencePreempted, BlocksSwapped, RequestRefused, EngineError, CallbackFailed, SequenceResumed)
    assert all(counts[kind] for kind in (*needed, EnginePaused))
    seen = of_kinds(samples(fed(rich_run(overlap)).render()), COUNTERS)
    assert {dict(labels)["finish_reason"] for name, labels in seen if name == "nanolens_requests_total"} == {
        "length", "abort", "error",
    }  # fmt: skip
    missing = {family.name for family in COUNTERS} - NOT_COUNTED - {name for name, _ in seen}
    assert missing == {"nanolens_step_retries_total", "nanolens_journal_dropped_events_total"}


@pytest.mark.parametrize("overlap", [False, True])
def test_gauges_and_counters_equal_a_count_of_the_journal_all_along(overlap: bool) -> None:
    frames = rich_run(overlap)[:-1]  # without the engine's last word
    now = 0
    metrics = Metrics(clock=lambda: now)
    seen: list[AnyEvent] = []
    busy = 0
    for number, frame in enumerate(frames):
        metrics.apply_all(frame)
        seen += frame
        if not isinstance(frame[-1], Keyframe) or number % 3:
            continue
        now = frame[-1].t + 7_000_000
        found = samples(metrics.render())
        assert of_kinds(found, COUNTERS) == of_kinds(counted(seen), COUNTERS)
        shown, expected = of_kinds(found, GAUGES), of_kinds(gauged(seen, now), GAUGES)
        assert shown.keys() == expected.keys()
        assert all(shown[sample] == pytest.approx(number, rel=1e-12) for sample, number in expected.items())
        busy += bool(found[key("sequences", status="WAITING")] and found[key("kv_blocks", state="used")])
    assert busy >= 10
    assert metrics.num_contradictions == 0


def test_the_end_of_a_run_leaves_all_live_gauges_at_nothing() -> None:
    frames = rich_run(True)
    assert isinstance(frames[-1][-1], EngineStopped)
    found = samples(fed(frames, now=1 << 60).render())
    left = {name for name, _ in of_kinds(found, GAUGES)}
    assert left == {"nanolens_last_step_timestamp_seconds", "nanolens_engine_ended"}
    assert of_kinds(found, COUNTERS) == of_kinds(counted(flat(frames)), COUNTERS)


@pytest.mark.parametrize("overlap", [False, True])
def test_no_counter_and_no_bucket_ever_falls_and_nothing_is_negative(overlap: bool) -> None:
    metrics = Metrics(clock=lambda: 0)
    scrapes = []
    for frame in rich_run(overlap):
        metrics.apply_all(frame)
        scrapes.append(collected(metrics))
    gauges = {family.name for family in GAUGES}
    for before, after in pairwise(scrapes):
        assert all(number >= 0 for number in after.values())
        assert all(after[sample] >= number for sample, number in before.items() if sample[0] not in gauges)


def test_every_family_is_exported_as_declared_and_nothing_else_is() -> None:
    metrics = fed(rich_run(True))
    metrics.exporter.spans["exported"] = 3
    found = {family.name: family for family in metrics.registry.collect()}
    assert set(found) == {family.name.removesuffix("_total").removesuffix("_info") for family in FAMILIES}
    for family in FAMILIES:
        exported = found[family.name.removesuffix("_total").removesuffix("_info")]
        assert (exported.type, exported.documentation, exported.unit) == (family.kind, family.help, family.unit)
        assert exported.samples or "rank" in family.labels  # a model on one rank
        for sample in exported.samples:
            labels = {name: text for name, text in sample.labels.items() if name != "le"}
            assert set(labels) == set(family.labels)
            assert all(text in family.labels[name] or family.labels[name] == () for name, text in labels.items())


def test_all_known_label_values_are_there_from_the_first_scrape() -> None:
    before, after = samples(Metrics().render()), samples(fed(rich_run(True)).render())
    appears = {name for name, _ in after.keys() - before.keys() if not name.startswith("gen_ai")}
    assert appears == {"nanolens_engine_info", "nanolens_last_step_timestamp_seconds"}
    assert not [sample for sample, number in before.items() if number]


def test_labelled_totals_add_up_to_the_plain_ones() -> None:
    totals = fed(rich_run(True)).state.totals.counts
    for name, plain in (("preemptions_", "preemptions"), ("requests_refused_", "requests_refused")):
        assert sum(count for total, count in totals.items() if total.startswith(name)) == totals[plain] > 0
    kinds = ("decode", "prefill", "mixed", "moves")
    assert sum(totals[f"steps_{kind}"] for kind in kinds) == totals["steps"]


def test_what_the_exporter_counts_is_shown() -> None:
    metrics = Metrics()
    metrics.exporter.journal_bytes = 12
    metrics.exporter.spans |= {"recorded": 7, "dropped": 2, "of another kind": 5}
    found = samples(metrics.render())
    assert found[key("journal_bytes_total")] == 12
    shown = {labels: number for (name, labels), number in found.items() if name == "nanolens_spans_total"}
    outcomes = {"recorded": 7, "exported": 0, "not_kept": 0, "dropped": 2}
    assert shown == {frozenset({("outcome", outcome)}): number for outcome, number in outcomes.items()}


def test_the_lag_is_the_age_of_the_newest_event_that_was_read() -> None:
    frame = rich_run(True)[10]
    newest = max(getattr(event, "t", 0) for event in frame)
    assert value(fed(rich_run(True)[:11], now=newest + 250_000_000), "journal_lag_seconds") == 0.25
