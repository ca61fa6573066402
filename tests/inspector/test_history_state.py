"""At any moment, however one comes there, a journal's history shows the engine's own state, field by field."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from histories import Recording, own_state, witnessed_run
from nanolens.engine.sampling_params import SamplingParams
from nanolens.inspector.history.history import History
from nanolens.inspector.view import Moment
from nanolens.telemetry.differences import keyframe_differences
from nanolens.telemetry.reader import JournalReader
from nanolens.telemetry.state import EngineState
from real_engine import prompt_of, tiny_llm

MOMENTS = 200
FAKE_RUNS: list[dict[str, Any]] = [
    {"policy": "fcfs", "preemption_mode": "swap"},
    {"policy": "priority", "preemption_mode": "recompute", "overlap": True},
    {"policy": "sjf", "preemption_mode": "swap", "overlap": True},
]


def check(recording: Recording, history: History, moments: list[Moment]) -> None:
    for moment in moments:
        found = history.keyframe(moment)
        assert found.is_order_sure
        assert keyframe_differences(found.keyframe, recording.own[moment]) == [], moment
        assert history.tick(moment).step == found.keyframe.step


def check_all_ways(recording: Recording) -> None:
    """200 random moments: forward, backward, and jumping."""
    rng = random.Random(5)
    moments = sorted(rng.sample(sorted(recording.own), min(MOMENTS, len(recording.own))))
    assert len(moments) == MOMENTS
    history = History(recording.path)
    check(recording, history, moments)
    check(recording, history, moments[::-1])
    check(recording, history, rng.sample(moments, len(moments)))
    fresh = History(recording.path)
    check(recording, fresh, rng.sample(moments, len(moments)))


@pytest.mark.parametrize("options", FAKE_RUNS, ids=lambda options: options["policy"])
def test_a_fake_run_with_pauses_swaps_and_preemptions(options: dict[str, Any], tmp_path: Path) -> None:
    recording = witnessed_run(tmp_path, **options)
    totals = History(tmp_path).keyframe(History(tmp_path).last()).keyframe.totals
    assert min(totals["preemptions"], totals["pauses"]) > 0
    assert totals["swapped_out_blocks"] > 0 or options["preemption_mode"] == "recompute"
    check_all_ways(recording)


def test_a_real_run_with_overlap(tmp_path: Path) -> None:
    rng = random.Random(3)
    own = {}
    with tiny_llm(num_blocks=40, max_num_seqs=6, overlap=True, journal=str(tmp_path)) as llm:
        for i in range(60):
            prompt = prompt_of(12)[: 4 * (i % 4)] + prompt_of(1 + rng.randrange(9), i)
            params = SamplingParams(max_tokens=rng.randint(6, 40), n=1 + (i % 5 == 4), temperature=0.7, ignore_eos=True)
            llm.engine.add_request(prompt, params)
        llm.engine.step()
        live = History(tmp_path)
        while llm.engine.step():
            live.refresh()
            own[live.last()] = own_state(llm.engine)
    history = History(tmp_path)
    assert history.keyframe(history.last()).keyframe.totals["preemptions"] > 0
    check_all_ways(Recording(tmp_path, own))


def test_checkpoints_and_keyframes_tell_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = witnessed_run(tmp_path, commands=500, keyframe_ns=1 << 60, policy="priority")
    monkeypatch.setattr("nanolens.inspector.history.states._CHECKPOINT_EVENTS", 50)
    monkeypatch.setattr("nanolens.inspector.history.states._MAX_BYTES", 100_000)
    check_all_ways(recording)


def test_a_state_that_was_given_does_not_change(tmp_path: Path) -> None:
    recording = witnessed_run(tmp_path, commands=300)
    history = History(tmp_path)
    moments = sorted(recording.own)
    early = history.keyframe(moments[100]).keyframe
    history.keyframe(moments[130])
    assert keyframe_differences(early, recording.own[moments[100]]) == []


def test_amid_a_frame_only_the_events_up_to_there_have_happened(tmp_path: Path) -> None:
    witnessed_run(tmp_path, policy="priority", preemption_mode="swap")
    state, own = EngineState(), {}
    for frame in JournalReader(tmp_path).frames():
        for count, event in enumerate(frame.events, 1):
            state.apply(event)
            if count < len(frame.events):
                own[Moment(frame.segment, frame.offset, count)] = state.to_keyframe()
    rng = random.Random(7)
    moments = sorted(rng.sample(sorted(own), MOMENTS))
    recording, history = Recording(tmp_path, own), History(tmp_path)
    check(recording, history, moments)
    check(recording, history, rng.sample(moments, len(moments)))
    check(recording, History(tmp_path), rng.sample(moments, len(moments)))


def test_checkpoints_take_no_more_memory_than_they_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = witnessed_run(tmp_path, commands=500, keyframe_ns=1 << 60, policy="priority")
    monkeypatch.setattr("nanolens.inspector.history.states._CHECKPOINT_EVENTS", 50)
    monkeypatch.setattr("nanolens.inspector.history.states._CHECKPOINT_BYTES", 1 << 20)
    history = History(tmp_path)
    moments = sorted(recording.own)
    check(recording, history, moments)
    kept = history._states._checkpoints
    whole, largest = sum(map(len, kept.values())), max(map(len, kept.values()))
    assert len(kept) > 5
    limit = whole // 2
    monkeypatch.setattr("nanolens.inspector.history.states._MAX_BYTES", limit)
    bounded = History(tmp_path)
    check(recording, bounded, moments)
    assert limit - largest <= sum(map(len, bounded._states._checkpoints.values())) <= limit
