"""What users did in a recorded run is done again in its simulation, and leaves each request the output that it had."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fake_engine import Clock, FakeEngine
from nanolens.engine.sampling_params import SamplingParams
from nanolens.inspector.replay.recording import Recording, read_recording
from nanolens.inspector.replay.simulate import Simulated, WhatIf
from nanolens.inspector.replay.simulate_settings import parse_setting
from nanolens.inspector.trace_cli import main
from nanolens.telemetry.events import EnginePaused
from nanolens.telemetry.journal import JournalWriter
from nanolens.telemetry.recorder import Recorder
from replay_runs import EOS, random_run, recorded_engine, wild_run

RUNS: list[dict[str, Any]] = [
    {"policy": "fcfs", "preemption_mode": "recompute", "host_blocks": 0, "disk_blocks": 0},
    {"policy": "priority", "preemption_mode": "swap", "batching": "prefill_first"},
    {"policy": "sjf", "preemption_mode": "auto", "overlap": True, "eos": EOS},
    {"policy": "fcfs", "overlap": True, "paused_ttl_s": 3e-4},
    {"policy": "priority", "paused_ttl_s": 3e-4, "eos": EOS},
    {"policy": "fcfs", "prefix_cache": False},
]


def lengths(recording: Recording) -> dict[int, int]:
    """Output tokens of each sequence that ended."""
    return {seq: outcome.num_output_tokens for seq, outcome in recording.outcomes.items()
            if outcome.status in ("FINISHED", "ERROR")}  # fmt: skip


def assert_same_outputs(what_if: WhatIf, simulated: Simulated) -> None:
    recorded, tracks = lengths(what_if.recording), simulated.tracks.tracks
    found = {seq: tracks[seq].num_output_tokens for seq in recorded if tracks[seq].end_t}
    assert found == recorded and not simulated.unended
    assert simulated.figures.requests == what_if.recorded.requests


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("options", RUNS, ids=lambda o: "-".join(f"{v}" for v in o.values() if v is not EOS))
def test_with_nothing_changed_all_requests_end_with_the_output_that_they_had(
    tmp_path: Path, options: dict[str, Any], seed: int
) -> None:
    random_run(tmp_path, seed, **options)
    what_if = WhatIf(read_recording(tmp_path))
    assert_same_outputs(what_if, what_if.run())


@pytest.mark.parametrize("seed", range(12))
def test_so_they_do_after_faults_breakpoints_and_commands_from_callbacks(tmp_path: Path, seed: int) -> None:
    policy = ("fcfs", "priority", "sjf")[seed % 3]
    wild_run(tmp_path, seed, policy=policy, overlap=seed % 2 == 1, preemption_mode=("auto", "swap")[seed // 6])
    what_if = WhatIf(read_recording(tmp_path))
    assert_same_outputs(what_if, what_if.run())


def test_they_have_no_more_output_with_other_settings(tmp_path: Path) -> None:
    random_run(tmp_path, 2, policy="priority")
    what_if = WhatIf(read_recording(tmp_path))
    for text in ("num_blocks=3x", "max_num_seqs=1", "policy=sjf"):
        assert_same_outputs(what_if, what_if.run([parse_setting(text, what_if.recording.started)]))


def test_a_pause_of_one_that_waits_after_its_resume_comes_at_its_tokens_again(tmp_path: Path) -> None:
    engine = recorded_engine(tmp_path, num_blocks=12, max_num_seqs=1)
    first = engine.add([1] * 9, max_tokens=8, on_stop="pause")
    engine.run()
    second = engine.add([2] * 9, max_tokens=16)
    for _ in range(4):
        engine.step()
    engine.resume(first, append=[5] * 3, max_tokens=8)  # has to wait for the second
    engine.step()
    engine.pause(first)
    engine.step()
    assert second in engine.core.requests
    engine.resume(first)
    engine.run()
    engine.finish(first)
    engine.run()
    engine.close()
    what_if = WhatIf(read_recording(tmp_path))
    (early,) = [pause for pause in what_if.story.lives[0].pauses]
    assert (early.place, early.after_tokens) == (1, 8)
    simulated = what_if.run()
    assert_same_outputs(what_if, simulated)
    assert simulated.tracks.tracks[0].num_output_tokens == 16


def test_what_was_cut_short_ends_after_as_many_tokens_as_it_had(tmp_path: Path) -> None:
    engine = recorded_engine(tmp_path, num_blocks=20)
    for i in range(3):
        engine.add([i] * 9, max_tokens=3)
    engine.run()
    engine.add([9] * 9, max_tokens=20)
    for _ in range(12):
        engine.step()
    had = engine.seq("req-3").num_read_output_tokens
    what_if = WhatIf(read_recording(tmp_path))  # the engine is still running
    assert what_if.story.cut == {3} and 1 < had < 20
    assert what_if.run().tracks.tracks[3].num_output_tokens == had


def test_a_pause_of_the_engine_that_lasts_to_the_end_keeps_nobody_from_ending(tmp_path: Path) -> None:
    engine = recorded_engine(tmp_path)
    for i in range(4):
        engine.add([i] * 9, max_tokens=9)
    engine.run()
    engine.core.pause_engine("operator")
    engine.add([7] * 9)
    engine.close()
    recording = read_recording(tmp_path)
    assert any(isinstance(event, EnginePaused) for event in recording.events)
    what_if = WhatIf(recording)
    simulated = what_if.run()
    assert what_if.story.engine == [] and simulated.figures.requests == 4 and not simulated.unended


def expired_run(path: Path) -> None:
    """Eight requests that pause at their end; six of them expire there."""
    clock = Clock()
    recorder = Recorder(JournalWriter(path, "run", clock=clock), clock)
    engine = FakeEngine(recorder=recorder, clock=clock, paused_ttl_s=1.0)
    params = SamplingParams(max_tokens=12, temperature=0.0, on_stop="pause")
    handles = [engine.add_request([i, 2, 3, 4, 5], params) for i in range(8)]
    engine.run()
    for handle in handles[:2]:
        engine.finish(handle)
    clock.now += 2_000_000_000
    engine.run()
    engine.close()


def test_requests_that_cannot_end_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expired_run(tmp_path)
    assert main(["replay", str(tmp_path), "--set", "paused_ttl_s=none"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "could not end" in line]
    assert line.startswith("With paused_ttl_s=none 6 requests could not end, and the figures are without: req-2 is ")
    assert line.endswith("; and 3 more.")
    assert main(["replay", str(tmp_path), "--set", "paused_ttl_s=none", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert not told["unended"] and list(told["what_if"][0]["unended"]) == [f"req-{i}" for i in range(2, 8)]
