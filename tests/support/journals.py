"""Builders for tests of the journal: events without an engine, and journals of a fake engine."""

from __future__ import annotations

from pathlib import Path

from fake_engine import Clock, FakeEngine
from nanolens.telemetry.events import AnyEvent, EngineStarted, EngineStopped, Keyframe, Mark
from nanolens.telemetry.journal import JournalWriter
from nanolens.telemetry.reader import JournalReader
from nanolens.telemetry.recorder import Recorder


def started(run_id: str = "run", num_blocks: int = 8) -> EngineStarted:
    """A run's first event."""
    return EngineStarted(0, run_id, 0, 1, "0", "fake", {"policy": "fcfs"}, num_blocks, 4, 100, 64)


def empty_keyframe(step: int = 0, num_blocks: int = 8) -> Keyframe:
    """The state of an engine that has nothing to do."""
    return Keyframe(0, step, started(num_blocks=num_blocks), [], [], [], [], b"", [], list(range(num_blocks)), {})


def marks(count: int, first: int = 0, text: str = "x") -> list[AnyEvent]:
    """Events that are told apart by their time, `first` and on."""
    return [Mark(first + i, text, "test") for i in range(count)]


def times(journal: Path, run: str | None = None) -> list[int]:
    """Times of the marks in a journal."""
    frames = JournalReader(journal, run).frames()
    return [event.t for frame in frames for event in frame.events if isinstance(event, Mark)]


def writer_of(journal: Path, run_id: str = "run", **options: int) -> JournalWriter:
    """A writer that has its first frame, and empty keyframes for the segments to come."""
    writer = JournalWriter(journal, run_id, **options)
    writer.make_keyframe = empty_keyframe
    writer.append([started(run_id)])
    return writer


def stopped() -> EngineStopped:
    """A run's last event."""
    return EngineStopped(0, "closed")


def busy_engine(journal: Path | None = None, segment_bytes: int = 1 << 20, **options: object) -> FakeEngine:
    """A fake engine after a run with shared prefixes, n > 1, preemptions, evictions and an abort; not yet closed.

    Its journal has a keyframe after each frame, made from the engine's own objects.
    """
    clock = Clock()
    writer = JournalWriter(journal, "run", segment_bytes=segment_bytes, clock=clock) if journal else None
    recorder = Recorder(writer, clock, keyframe_interval_ns=0)
    settings: dict[str, object] = {"num_blocks": 20, "max_num_seqs": 6, "max_prefill_chunk": 6} | options
    engine = FakeEngine(recorder=recorder, **settings)  # type: ignore[arg-type]
    for i in range(24):
        prompt = [1, 2, 3, 4, 5, 6, 7, 8][: 4 * (i % 3)] + [20 + i] * (1 + i % 5)
        request = engine.add(prompt, max_tokens=8 + 3 * (i % 6), n=1 + (i % 6 == 5), priority=i % 3)
        engine.step()
        if i % 8 == 7:
            engine.abort(request)
    engine.run()
    return engine
