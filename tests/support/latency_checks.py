"""What holds for the latency model of any journal, and its division of steps once more, slowly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nanolens.engine.plan import StepPlan
from nanolens.telemetry.events import (
    AnyEvent,
    EngineContinued,
    EnginePaused,
    EngineStarted,
    RequestArrived,
    StatusChanged,
    StepFinished,
    StepPlanned,
)
from nanolens.telemetry.latency import PARTS, Breakdown, Latency
from nanolens.telemetry.latency_tracks import LatencyTracks
from nanolens.telemetry.lives import Lives
from nanolens.telemetry.step_costs import StepCostModel, pairs_of

FINAL = ("FINISHED", "ERROR")
RUNNING_PARTS = frozenset({
    "own_prefill", "prefill_interference", "own_decode", "batch_cost", "recompute", "host_gap", "engine_paused"
})  # fmt: skip


def latency_of(events: Iterable[AnyEvent], model: StepCostModel | None = None, t: int | None = None) -> Latency:
    """The model over these events, as of `t` or the last of them."""
    tracks = LatencyTracks()
    for event in events:
        tracks.apply(event)
    tracks.finish(t)
    return Latency(tracks, model)


def check_exact(latency: Latency) -> list[Breakdown]:
    """Everything that holds for every request, ended or not; all of them."""
    found = list(latency.breakdowns())
    for b in found:
        where = (b.request.request, b.track.seq, b.parts)
        assert sum(b.parts.values()) == b.total_ns == b.end_t - b.begin_t, where
        assert sum(b.ttft_parts.values()) == b.ttft_ns, (where, b.ttft_parts, b.ttft_ns)
        assert b.parts.keys() <= set(PARTS) >= b.ttft_parts.keys(), where
        assert all(type(value) is int and value > 0 for value in (*b.parts.values(), *b.ttft_parts.values())), where
        if b.first is b.track:
            assert all(value <= b.parts[name] for name, value in b.ttft_parts.items()), (where, b.ttft_parts)
    return found


def check_whole(events: Sequence[AnyEvent], model: StepCostModel | None = None) -> Latency:
    """The same for a journal without gaps, whose times are known from its events alone."""
    latency = latency_of(events, model)
    found = check_exact(latency)
    arrived = [event for event in events if isinstance(event, RequestArrived)]
    assert [(b.request.request, b.begin_t) for b in found] == [(event.request, event.t) for event in arrived]
    ends = {event.seq: event.t for event in events if isinstance(event, StatusChanged) and event.new in FINAL}
    lives = Lives()
    lives.apply_all(events)
    for event, b in zip(arrived, found, strict=True):
        assert b.ended == all(seq in ends for seq in event.seqs)
        if b.ended and not b.request.stalls:
            assert b.end_t == max(ends[seq] for seq in event.seqs)
        first = min((t for seq in event.seqs if (t := lives.lives[seq].first_token_t)), default=0)
        assert b.ttft_ns == (first - event.t if first else 0)
        assert "unknown" not in b.parts
    return latency


@dataclass
class _Window:
    step: int
    idle: list[tuple[int, int]]  # intervals in which neither the device worked nor the engine was paused
    busy: tuple[int, int]  # when the device worked


def slow_parts(events: Sequence[AnyEvent], plans: Iterable[StepPlan], model: StepCostModel) -> dict[int, list[float]]:
    """Sequence -> [own, recompute, interference, batch, host, paused] nanoseconds in RUNNING, step by step.

    Whose tokens a step computed is taken from the plans that the runner got.
    """
    planned = {event.step: event for event in events if isinstance(event, StepPlanned)}
    given = {plan.step: plan for plan in plans}
    windows, pauses = _windows(events), _pauses(events)
    rows: dict[int, dict[int, tuple[int, int, float]]] = {}  # step -> sequence -> start, tokens, known of them
    high: dict[int, int] = defaultdict(int)
    for step, plan in sorted(given.items()):
        rows[step] = {}
        for seq, start, count in zip(plan.sequences, plan.starts, plan.counts, strict=True):
            known = min(max(high[seq.seq_id] - start, 0), count) / count
            rows[step][seq.seq_id] = start, count, known
            high[seq.seq_id] = max(high[seq.seq_id], start + count)
    result: dict[int, list[float]] = defaultdict(lambda: [0.0] * 6)
    for seq_id, begin, end in _runs(events):
        sums, rest = result[seq_id], end - begin
        for window in windows:
            host, device = _overlap(window.idle, begin, end), _overlap([window.busy], begin, end)
            if device:
                chunked = {chunk[0] for chunk in planned[window.step].chunks}
                shares = _shares(rows[window.step], chunked, seq_id, model)
                for i, value in enumerate(shares):
                    sums[i] += value / sum(shares) * device
            sums[4] += host
            rest -= host + device
        after = max(begin, windows[-1].busy[1])
        host = max(0, end - after - _overlap(pauses, after, end))
        sums[4] += host
        sums[5] += rest - host
    return result


def _shares(
    rows: dict[int, tuple[int, int, float]], chunked: set[int], me: int, model: StepCostModel
) -> tuple[float, float, float, float]:
    """(own, recompute, interference, batch) of one step, in the model's nanoseconds."""
    own = recompute = interference = batch = 0.0
    for seq, (start, count, known) in rows.items():
        if seq in chunked:
            cost = model.prefill_token * count + model.prefill_pair * pairs_of(start, count)
        else:
            cost = model.decode + model.decode_context * (start + 1)
        if seq == me and seq in chunked:
            own, recompute = (cost + model.fixed) * (1 - known), (cost + model.fixed) * known
        elif seq == me:
            own = cost + model.fixed
        elif seq in chunked:
            interference += cost
        else:
            batch += cost
    if me not in rows:
        if rows.keys() <= chunked:
            interference += model.fixed
        else:
            batch += model.fixed
    return own, recompute, interference, batch


def _windows(events: Sequence[AnyEvent]) -> list[_Window]:
    pauses, result = _pauses(events), []
    begin = next(event.t for event in events if isinstance(event, EngineStarted))
    for event in events:
        if isinstance(event, StepFinished):
            works = max(begin, event.t - event.device_ns)
            result.append(_Window(event.step, _without(pauses, begin, works), (works, event.t)))
            begin = event.t
    return result


def _pauses(events: Sequence[AnyEvent]) -> list[tuple[int, int]]:
    result, since = [], 0
    for event in events:
        if isinstance(event, EnginePaused) and not since:
            since = event.t
        elif isinstance(event, EngineContinued) and since:
            result.append((since, event.t))
            since = 0
    return result


def _without(holes: Sequence[tuple[int, int]], begin: int, end: int) -> list[tuple[int, int]]:
    result = []
    for since, to in holes:
        if begin < since < end:
            result.append((begin, since))
        if since < end and to > begin:
            begin = min(to, end)
    return [*result, (begin, end)]


def _overlap(intervals: Iterable[tuple[int, int]], begin: int, end: int) -> int:
    return sum(max(0, min(end, to) - max(begin, since)) for since, to in intervals)


def _runs(events: Sequence[AnyEvent]) -> list[tuple[int, int, int]]:
    """(sequence, begin, end) of the times in RUNNING."""
    result, since = [], {}
    for event in events:
        if isinstance(event, StatusChanged):
            if event.old == "RUNNING":
                result.append((event.seq, since.pop(event.seq), event.t))
            if event.new == "RUNNING":
                since[event.seq] = event.t
    assert not since
    return result
