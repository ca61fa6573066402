"""What a whole run paid beside its work: cache misses, work done again, the host's time. Knows no terminals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..telemetry.latency import PARTS, Latency
from .request_table import Ints, RequestTable


@dataclass(frozen=True, slots=True)
class CacheLookups:
    """Tokens of all first admissions: looked up, found, copied from a sibling, and missed by reason."""

    queried: int
    hit: int
    never_seen: int
    evicted: int
    sub_block: int
    copied: int


@dataclass(frozen=True, slots=True)
class RecomputeTax:
    """Work that was done again, or kept elsewhere, because sequences lost their place.

    Attributes:
        preemptions: cause -> how often.
        prefill_tokens: computed in all.
        recomputed_tokens: those of them that had been computed before.
        part_ns: preempted, recompute and swap -> nanoseconds of all requests.
        total_ns: of all requests.
    """

    preemptions: dict[str, int]
    prefill_tokens: int
    recomputed_tokens: int
    part_ns: dict[str, int]
    total_ns: int


@dataclass(frozen=True, slots=True)
class HostShare:
    """The time in which any sequence was RUNNING, in nanoseconds.

    Attributes:
        device: the device worked.
        host: it had nothing to do, and the engine was not paused.
        plan, launch, collect: what the host measured of its own work, a step in the mean, without its waiting for the
            device; part of it may lie beside the device's.
        steps: how many.
    """

    device: int
    host: int
    plan: float
    launch: float
    collect: float
    steps: int

    @property
    def share(self) -> float:
        """The host's, of both."""
        return self.host / (self.host + self.device) if self.host + self.device else 0.0


@dataclass(frozen=True, slots=True)
class RunTaxes:
    """All of a run."""

    cache: CacheLookups
    recompute: RecomputeTax
    host: HostShare


def run_taxes(latency: Latency, table: RequestTable) -> RunTaxes:
    """What a run paid.

    Args:
        latency: the run.
        table: its requests that have ended.
    """
    return RunTaxes(_cache(latency), _recompute(latency, table), _host(latency))


def _cache(latency: Latency) -> CacheLookups:
    tracks = [track for track in latency.tracks.tracks.values() if track.matched is not None]
    found = [track.matched for track in tracks if track.matched is not None]
    missed = Counter[str]()
    for track in tracks:
        missed.update(track.missed)
    return CacheLookups(
        sum(e.queried for e in found), sum(e.hit for e in found), missed["never_seen"], missed["evicted"],
        missed["sub_block"], sum(e.sub_block for e in found) - missed["sub_block"],
    )  # fmt: skip


def _recompute(latency: Latency, table: RequestTable) -> RecomputeTax:
    tracks = latency.tracks.tracks.values()
    chunks = [chunk for track in tracks for run in track.runs for chunk in run.chunks]
    causes = Counter(e.cause for track in tracks for e in track.preemptions)
    parts = {part: int(table.parts[:, PARTS.index(part)].sum()) for part in ("preempted", "recompute", "swap")}
    return RecomputeTax(
        dict(causes.most_common()), sum(chunk[2] for chunk in chunks), sum(chunk[3] for chunk in chunks),
        parts, int(table.e2e.sum()),
    )  # fmt: skip


def _host(latency: Latency) -> HostShare:
    windows = latency.windows
    steps = len(windows)
    if not steps:
        return HostShare(0, 0, 0.0, 0.0, 0.0, 0)
    running = _running_until(latency)
    begins = windows.end_t - windows.device
    device = running(windows.end_t) - running(begins)
    host = np.maximum(running(begins) - running(windows.begin_t) - windows.paused, 0)
    columns = windows.columns
    collect = np.maximum(columns["collect_ns"] - columns["wait_ns"], 0)
    return HostShare(
        int(device.sum()), int(host.sum()), float(columns["plan_ns"].mean()), float(columns["launch_ns"].mean()),
        float(collect.mean()), steps,
    )  # fmt: skip


def _running_until(latency: Latency) -> Callable[[Ints], Ints]:
    """Times [n] -> nanoseconds [n] up to each in which any sequence was RUNNING."""
    runs = sorted(
        (run.begin_t, run.end_t or latency.tracks.t) for track in latency.tracks.tracks.values() for run in track.runs
    )
    merged: list[list[int]] = []
    for begin, end in runs:
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    if not merged:
        return np.zeros_like
    times = np.array(merged, dtype=np.int64)
    before = np.concatenate(([0], np.cumsum(times[:, 1] - times[:, 0])))

    def until(t: Ints) -> Ints:
        index = np.searchsorted(times[:, 0], t, "right") - 1
        last = np.maximum(index, 0)
        inside = np.minimum(t, times[last, 1]) - times[last, 0]
        covered: Ints = np.where(index < 0, 0, before[last] + inside)
        return covered

    return until
