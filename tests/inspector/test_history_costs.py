"""What a jump into a journal reads, and what stays in memory of it: bounded, however long the journal is."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from histories import witnessed_run
from nanolens.benchmarks.inspect_history import record
from nanolens.inspector.history import frame_store, states
from nanolens.inspector.history.history import History
from nanolens.telemetry.events import AnyEvent

FRAMES_OF_A_JUMP = 600  # on from a whole state, a few hundred for the steps and events shown, and some to find it
STEP_NS = 10_000_000


def test_a_jump_decodes_no_more_frames_the_longer_the_journal_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, decoded = frame_store.decode_payload, [0]

    def counted(payload: bytes, where: str) -> list[AnyEvent]:
        decoded[0] += 1
        return decode(payload, where)

    monkeypatch.setattr(frame_store, "decode_payload", counted)
    most = {}
    for steps in (2000, 8000):
        path = tmp_path / str(steps)
        record(path, num_seqs=4, steps=steps, events=0, step_ns=STEP_NS)
        rng, counts = random.Random(2), []
        for _ in range(10):
            history = History(path)  # nothing is known from the jump before
            decoded[0] = 0
            moment = history.at_step(rng.randint(steps // 2, steps))
            history.keyframe(moment)
            history.steps(moment)
            history.events(moment)
            counts.append(decoded[0])
        most[steps] = max(counts)
    assert max(most.values()) <= FRAMES_OF_A_JUMP, most


def test_what_is_kept_of_a_journal_stays_within_its_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert states._MAX_BYTES <= 32 << 20 and frame_store._MAX_DECODED <= 4 << 20 and frame_store._MAX_SEGMENTS <= 16
    recording = witnessed_run(tmp_path, commands=500, keyframe_ns=1 << 60)
    monkeypatch.setattr(states, "_CHECKPOINT_EVENTS", 50)
    monkeypatch.setattr(states, "_MAX_BYTES", 60_000)
    monkeypatch.setattr(frame_store, "_MAX_DECODED", 20_000)
    monkeypatch.setattr(frame_store, "_MAX_SEGMENTS", 2)
    history, made = History(tmp_path), 0
    store, kept = history._store, history._states
    for moment in sorted(recording.own):
        history.keyframe(moment)
        made = max(made, len(kept._checkpoints))
        assert kept._bytes == sum(map(len, kept._checkpoints.values())) <= 60_000
        assert store._decoded_bytes == sum(size for size, _ in store._decoded.values()) <= 20_000
        assert len(store._segments) <= 2
    assert made > 2
