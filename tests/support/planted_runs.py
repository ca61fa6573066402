"""Journals of made-up runs with known latencies: requests served one after another, each with its own planted times."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from nanolens.telemetry.events import (
    AnyEvent,
    BlocksAllocated,
    BlocksFreed,
    EngineStarted,
    EngineStopped,
    PrefixMatched,
    RequestArrived,
    RequestFinished,
    StatusChanged,
    StepFinished,
    StepPlanned,
    WaitReasonChanged,
)
from nanolens.telemetry.journal import JournalWriter

MS = 1_000_000


@dataclass(frozen=True)
class Planted:
    """One request. Times are nanoseconds.

    Attributes:
        wait: it waits so long for `reason` before it is admitted.
        device: of each of its steps.
        host: between two of its steps.
        outputs: with 0 it is aborted after its wait.
        idle: after it, until the next one arrives.
    """

    prompt: int = 32
    outputs: int = 5
    wait: int = 10 * MS
    reason: str = "no_blocks"
    device: int = 20 * MS
    host: int = 1 * MS
    idle: int = 1000 * MS
    priority: int = 0
    hit: int = 0
    evicted: int = 0


def jittered(count: int, base: Planted = Planted(), seed: int = 0, spread: float = 0.2) -> list[Planted]:
    """So many requests around one, their times off by up to `spread` of each."""
    rng = random.Random(seed)

    def near(value: int) -> int:
        return round(value * rng.uniform(1 - spread, 1 + spread))

    return [
        replace(base, wait=near(base.wait), device=near(base.device), host=near(base.host), prompt=near(base.prompt))
        for _ in range(count)
    ]


class PlantedRun:
    """The events of a run; `events` grows with each request."""

    def __init__(self, run_id: str = "run", **config: str | int) -> None:
        self.t = 1000
        self.step = 0
        self.seqs = 0
        self.held = 0  # blocks
        self.run_id = run_id
        self.events: list[AnyEvent] = [
            EngineStarted(self.t, run_id, 0, 1, "0", "fake", {"policy": "fcfs", **config}, 256, 16, 100, 4096)
        ]

    def serve(self, planted: Planted) -> None:
        """One request, from its arrival to its end."""
        seq, name, add = self.seqs, f"req-{self.seqs}", self.events.append
        self.seqs += 1
        add(RequestArrived(self.t, name, [seq], planted.prompt, max(1, planted.outputs), planted.priority, {}))
        add(StatusChanged(self.t, self.step, seq, "", "WAITING", "arrived", name))
        add(WaitReasonChanged(self.t, self.step, seq, planted.reason))
        self.t += planted.wait
        if not planted.outputs:
            add(StatusChanged(self.t, self.step, seq, "WAITING", "FINISHED", "aborted"))
            add(RequestFinished(self.t, name, "abort", planted.prompt, 0, 0))
            return
        add(StatusChanged(self.t, self.step + 1, seq, "WAITING", "RUNNING", "admitted"))
        hit, evicted = planted.hit, planted.evicted
        new = planted.prompt - hit - evicted
        add(PrefixMatched(self.t, self.step + 1, seq, planted.prompt, hit, new, evicted, 0, False))
        blocks = list(range(-(-(planted.prompt + planted.outputs) // 16)))
        self.held = len(blocks)
        add(BlocksAllocated(self.t, self.step + 1, seq, [], blocks, [], 256 - len(blocks)))
        for i in range(planted.outputs):
            self._step(planted, [(seq, hit, planted.prompt - hit)] if i == 0 else [])
        add(StatusChanged(self.t, self.step, seq, "RUNNING", "FINISHED", "length"))
        add(BlocksFreed(self.t, self.step, seq, blocks[::-1], 256))
        add(RequestFinished(self.t, name, "length", planted.prompt, planted.outputs, hit))
        self.t += planted.idle

    def _step(self, planted: Planted, chunks: list[tuple[int, int, int]]) -> None:
        self.step += 1
        self.t += planted.host
        kind = "prefill" if chunks else "decode"
        self.events.append(StepPlanned(self.t, self.step, kind, chunks, 0 if chunks else 1, [], 0, 1, 256 - self.held))
        self.t += planted.device
        host = planted.host // 4
        tokens = sum(count for _, _, count in chunks) or 1
        self.events.append(StepFinished(self.t, self.step, host, host, planted.device, host, tokens, 1, []))


def planted_events(requests: Iterable[Planted], run_id: str = "run", **config: str | int) -> list[AnyEvent]:
    """A whole run, stopped in order."""
    run = PlantedRun(run_id, **config)
    for planted in requests:
        run.serve(planted)
    return [*run.events, EngineStopped(run.t, "closed")]


def planted_journal(path: Path, requests: Iterable[Planted], run_id: str = "run", **config: str | int) -> Path:
    """The same, written."""
    return write_events(path, planted_events(requests, run_id, **config), run_id)


def write_events(path: Path, events: list[AnyEvent], run_id: str = "run") -> Path:
    """Write a journal of these events."""
    writer = JournalWriter(path, run_id)
    writer.append(events)
    writer.close()
    return path
