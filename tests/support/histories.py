"""Builders for tests of a journal's history: runs that are recorded with the engine's own state at many moments."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fake_engine import Clock, FakeEngine
from nanolens.inspector.history.history import History
from nanolens.inspector.view import Moment
from nanolens.telemetry.events import Keyframe
from nanolens.telemetry.journal import JournalWriter
from nanolens.telemetry.recorder import Recorder
from random_lives import Driver


@dataclass
class Recording:
    """A journal, and what the engine itself said at moments of it."""

    path: Path
    own: dict[Moment, Keyframe]


def witnessed_run(path: Path, commands: int = 700, keyframe_ns: int = 150_000, **options: Any) -> Recording:
    """Random commands to a fake engine with a swap space; its own state after each that wrote a frame.

    The journal has several segments, and a keyframe each few hundred events.
    """
    rng = random.Random(str(sorted(options.items())))
    clock = Clock()
    writer = JournalWriter(path, "run", segment_bytes=30_000, clock=clock)
    recorder = Recorder(writer, clock, keyframe_interval_ns=keyframe_ns)
    settings: dict[str, Any] = {
        "num_blocks": 10, "host_blocks": 4, "disk_blocks": 9, "max_num_seqs": 4, "max_prefill_chunk": 6,
        "aging_s": 1e-4, "paused_ttl_s": None, "max_model_len": 40,
    }  # fmt: skip
    engine = FakeEngine(recorder=recorder, clock=clock, **(settings | options))
    driver = Driver(engine, rng)
    engine.core.flush()
    live, own = History(path), {}
    for _ in range(commands):
        rng.choice(driver.commands())()
        engine.core.flush()
        if live.refresh():
            own[live.last()] = own_state(engine)
    driver.drain()
    engine.close()
    live.close()
    return Recording(path, own)


def own_state(engine: Any) -> Keyframe:
    """The engine's state from its objects, with the counters of its recorder."""
    keyframe: Keyframe = engine.snapshot()
    keyframe.totals = engine.core.recorder.totals.snapshot()
    return keyframe
