"""A what-if against runs of a fake engine on a device whose steps take modelled time: prediction is then near exact."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fake_engine import Clock, FakeEngine
from nanolens.engine.plan import StepPlan
from nanolens.engine.sampling_params import SamplingParams
from nanolens.errors import JournalError
from nanolens.inspector.replay import simulate_costs
from nanolens.inspector.replay.recording import Recording, read_recording
from nanolens.inspector.replay.simulate import WhatIf
from nanolens.inspector.replay.simulate_costs import MIN_STEPS
from nanolens.inspector.replay.simulate_figures import Figures
from nanolens.inspector.replay.simulate_settings import parse_setting, parse_sweep
from nanolens.inspector.trace_cli import main
from nanolens.telemetry.events import EngineReady
from nanolens.telemetry.journal import JournalWriter
from nanolens.telemetry.recorder import Recorder
from replay_runs import EOS, random_run, wild_run
from timed_engine import TimedDevice

BASE: dict[str, Any] = {
    "num_blocks": 96, "max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 200, "aging_s": 1.0,
}  # fmt: skip
TIMES = ("ttft_p50", "ttft_p99", "itl_p50", "itl_p99", "e2e_p50", "e2e_p99", "tokens_per_s")


def timed_run(
    path: Path,
    requests: int = 80,
    gap_ms: float = 40.0,
    seed: int = 1,
    stretch: Callable[[StepPlan], float] | None = None,
    **options: Any,
) -> Recording:
    """Requests that arrive on their own, some with a prefix in common, on a device that takes modelled time."""
    clock = Clock()
    recorder = Recorder(JournalWriter(path, "run", clock=clock), clock)
    engine = FakeEngine(recorder=recorder, clock=clock, **(BASE | options))
    TimedDevice(engine, clock, stretch=stretch or (lambda plan: 1.0))
    recorder.record(EngineReady(clock(), {"swap_ns_per_block": 1}))
    rng, due, left = random.Random(seed), clock.now, requests
    prefixes = [[rng.randrange(900) for _ in range(24)] for _ in range(3)]
    while left or engine.core.has_work:
        while left and (due <= clock.now or not engine.core.has_work):
            clock.now = max(clock.now, due)
            prompt = [rng.randrange(900) for _ in range(rng.randint(2, 60))]
            prompt = rng.choice(prefixes) * (rng.random() < 0.6) + prompt
            params = SamplingParams(max_tokens=rng.randint(4, 40), temperature=0.0, priority=rng.randrange(3))
            engine.add_request(prompt, params)
            due += int(rng.expovariate(1.0) * gap_ms * 1e6)
            left -= 1
        engine.core.step()
    engine.close()
    return read_recording(path)


def assert_close(predicted: Figures, real: Figures, within: float) -> None:
    off = {name: getattr(predicted, name) / getattr(real, name) - 1 for name in TIMES}
    assert all(abs(value) <= within * (3 if name.endswith("p99") else 1) for name, value in off.items()), off
    assert predicted.requests == real.requests


def test_a_run_as_it_was_takes_the_time_that_it_took(tmp_path: Path) -> None:
    what_if = WhatIf(timed_run(tmp_path))
    simulated = what_if.run().figures
    assert_close(simulated, what_if.recorded, 0.02)
    assert simulated.hit_rate == pytest.approx(what_if.recorded.hit_rate, abs=0.01) and simulated.hit_rate > 0.1


@pytest.mark.parametrize(
    ("set_to", "options"),
    [
        ("num_blocks=0.5x", {"num_blocks": 48}),
        ("num_blocks=4x", {"num_blocks": 384}),
        ("max_num_seqs=3", {"max_num_seqs": 3}),
        ("max_num_batched_tokens=24", {"max_num_batched_tokens": 24}),
        ("max_prefill_chunk=8", {"max_prefill_chunk": 8}),
        ("batching=prefill_first", {"batching": "prefill_first"}),
        ("policy=sjf", {"policy": "sjf"}),
        ("policy=priority", {"policy": "priority"}),
        ("prefix_cache=false", {"prefix_cache": False}),
    ],
)
def test_settings_come_out_as_in_a_real_run_with_them(tmp_path: Path, set_to: str, options: dict[str, Any]) -> None:
    recording = timed_run(tmp_path / "a", overlap=False)
    real = WhatIf(timed_run(tmp_path / "b", overlap=False, **options)).recorded
    what_if = WhatIf(recording)
    predicted = what_if.run([parse_setting(set_to, recording.started)]).figures
    assert_close(predicted, real, 0.1)
    assert predicted.preemptions == pytest.approx(real.preemptions, rel=0.3, abs=2)
    if real.hit_rate > 0:
        assert predicted.hit_rate == pytest.approx(real.hit_rate, abs=0.05)


def test_a_shorter_pool_preempts_as_in_a_real_run(tmp_path: Path) -> None:
    recording = timed_run(tmp_path / "a", gap_ms=5)
    real = WhatIf(timed_run(tmp_path / "b", gap_ms=5, num_blocks=40)).recorded
    predicted = WhatIf(recording).run([parse_setting("num_blocks=40", recording.started)]).figures
    assert real.preemptions > 5 and predicted.preemptions == pytest.approx(real.preemptions, rel=0.2)
    assert_close(predicted, real, 0.08)


def test_a_time_in_which_the_machine_was_slow_is_slow_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate_costs, "PACE_NS", 100_000_000)  # of a run of four seconds
    slow = range(300, 600)
    what_if = WhatIf(timed_run(tmp_path, stretch=lambda plan: 2.0 if plan.step in slow else 1.0))
    times = what_if.times
    assert max(times.pace) > 1.8 * min(times.pace)
    assert what_if.run().figures.ttft_p99 == pytest.approx(what_if.recorded.ttft_p99, rel=0.1)
    even = dataclasses.replace(times, pace=())
    assert WhatIf(what_if.recording, even).run().figures.ttft_p99 < 0.8 * what_if.recorded.ttft_p99


def test_overlap_is_simulated_as_it_was(tmp_path: Path) -> None:
    what_if = WhatIf(timed_run(tmp_path, overlap=True))
    assert what_if.recording.overlap
    assert_close(what_if.run().figures, what_if.recorded, 0.05)


@pytest.mark.parametrize("seed", range(6))
def test_any_run_can_be_simulated_with_any_settings(tmp_path: Path, seed: int) -> None:
    options = {"policy": "priority", "eos": EOS, "overlap": seed > 2, "tensor_parallel_size": 1 + seed % 3}
    (wild_run if seed % 2 else random_run)(tmp_path, seed, **options)
    recording = read_recording(tmp_path)
    what_if = WhatIf(recording)
    for text in ("num_blocks=2x", "policy=sjf", "max_num_seqs=1", "block_size=8", "preemption_mode=recompute"):
        simulated = what_if.run([parse_setting(text, recording.started)])
        assert simulated.figures.requests + len(what_if.story.cut) >= what_if.recorded.requests * 0.9
        tracks = simulated.tracks
        engine_paused = bool(tracks.pauses) and tracks.pauses[-1][1] == tracks.t  # to the end, as it was
        assert engine_paused or all(track.end_t or track.status == "PAUSED" for track in tracks.tracks.values())


def test_as_it_was_each_sequence_ends_with_as_many_tokens(tmp_path: Path) -> None:
    recording = timed_run(tmp_path, eos=EOS)
    tracks = WhatIf(recording).run([parse_setting("max_num_seqs=2", recording.started)]).tracks
    assert any(outcome.reason == "stop" for outcome in recording.outcomes.values())
    for seq, outcome in recording.outcomes.items():
        assert (tracks.tracks[seq].num_output_tokens, tracks.tracks[seq].reason) == (
            outcome.num_output_tokens, outcome.reason,
        )  # fmt: skip


def run_cli(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["replay", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_table_has_recorded_and_simulated_beside_what_if(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    timed_run(tmp_path, requests=20)
    code, out, _ = run_cli(capsys, str(tmp_path), "--set", "num_blocks=2x", "--set", "policy=sjf")
    assert code == 0 and "What if num_blocks=192, policy=sjf:" in out
    lines = out.splitlines()
    assert lines[3].split() == ["recorded", "simulated", "error", "what", "if", "change"]
    assert lines[4].startswith("TTFT p50") and max(map(len, lines[3:15])) <= 80


def test_as_json_a_what_if_is_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timed_run(tmp_path, requests=20)
    code, out, _ = run_cli(capsys, str(tmp_path), "--set", "max_num_seqs=0.5x", "--json")
    found = json.loads(out)
    assert code == 0 and found["what_if"][0]["settings"] == {"max_num_seqs": 4}
    assert found["recorded"].keys() == found["simulated"].keys() == found["what_if"][0]["figures"].keys()


def test_a_sweep_is_a_table_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timed_run(tmp_path / "j", requests=20)
    picture = tmp_path / "pool.svg"
    code, out, _ = run_cli(
        capsys, str(tmp_path / "j"), "--sweep", "num_blocks=0.5x..2x:3", "--set", "policy=sjf", "--plot", str(picture)
    )
    assert code == 0 and "Sweep of num_blocks with policy=sjf:" in out
    rows = [line.split()[0] for line in out.splitlines()[3:9]]
    assert rows == ["num_blocks", "(recorded)", "(simulated)", "48", "96", "192"]
    root = ElementTree.parse(picture).getroot()
    assert len(root.findall("{*}polyline")) == 3 and len(root.findall("{*}circle")) == 9


def test_a_range_rises_in_equal_ratios_and_a_list_is_taken_as_it_is(tmp_path: Path) -> None:
    started = timed_run(tmp_path, requests=12).started
    assert [s.value for s in parse_sweep("num_blocks=1x..4x:3", started)] == [96, 192, 384]
    assert len(parse_sweep("num_blocks=1x..4x", started)) == 7
    assert [s.value for s in parse_sweep("policy=fcfs,sjf", started)] == ["fcfs", "sjf"]
    assert [s.value for s in parse_sweep("max_prefill_chunk=8,none", started)] == [8, None]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "colour=red"], "no setting that a replay can change"),
        (["--set", "num_blocks"], "must be NAME=VALUE"),
        (["--set", "num_blocks=0"], "at least 1"),
        (["--set", "num_blocks=many"], "must be a whole number"),
        (["--set", "num_blocks=twox"], "must be a number before the x"),
        (["--set", "num_blocks=none"], "must be a number here"),
        (["--set", "num_blocks=2147483647"], "num_blocks=2147483647: a replay has room for 2,097,152 blocks"),
        (["--set", "host_blocks=3000000"], "host_blocks=3000000: a replay has room for 2,097,152 blocks"),
        (["--sweep", "num_blocks=1,2"], "blocks are needed"),
        (["--set", "max_num_seqs=0x"], "max_num_seqs=0x: must be a number above 0 before the x"),
        (["--set", "num_blocks=3"], "blocks are needed"),
        (["--set", "block_size=8", "--set", "num_blocks=2"], "trace: block_size=8, num_blocks=2: request req-"),
        (["--set", "max_prefill_chunk=2x"], "nothing to multiply: it was None"),
        (["--set", "policy=best"], "must be one of fcfs, priority, sjf"),
        (["--set", "policy=sjf", "--set", "policy=fcfs"], "named twice"),
        (["--set", "preemption_mode=swap"], "nowhere to swap to"),
        (["--sweep", "num_blocks=1x..4x:1"], "must be a number from 2 to 64"),
        (["--sweep", "num_blocks=5"], "at least two values"),
        (["--sweep", "policy=fcfs..sjf"], "needs numbers above 0"),
        (["--plot", "x.svg"], "give --sweep too"),
        (["--set", "host_blocks=5x"], "host_blocks=5x: nothing to multiply: it was 0 in the recorded run"),
        (["--set", "host_blocks=1x"], "host_blocks=1x: nothing to multiply: it was 0 in the recorded run"),
        (["--sweep", "host_blocks=1x..4x"], "host_blocks=1x: nothing to multiply"),
        (["--sweep", "num_blocks=1x..2x", "--sweep", "policy=fcfs,sjf"], "--sweep policy=fcfs,sjf: one at a time"),
        (["--set", "block_size=100000"], "block_size=100000: more than the 384 tokens that num_blocks=96 had room for"),
        (["--sweep", "policy=fcfs,sjf", "--plot", "x.gif"], "ends in .svg"),
    ],
)
def test_impossible_settings_are_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    timed_run(tmp_path, requests=12)
    code, out, err = run_cli(capsys, str(tmp_path), *arguments)
    assert code == 2 and not out and words in err and err.count("\n") == 1


def test_what_is_wrong_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timed_run(tmp_path, requests=12)
    assert run_cli(capsys, str(tmp_path), "--set", "num_blocks=0")[2].count("num_blocks=0") == 1


def test_a_value_of_a_sweep_that_cannot_be_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timed_run(tmp_path, requests=12)
    sweep = ("--sweep", "num_blocks=3,96,1000000000,192")
    code, out, _ = run_cli(capsys, str(tmp_path), *sweep)
    left_out = [line.split(": ")[0] for line in out.splitlines() if "is left out" in line]
    assert (code, left_out) == (0, ["num_blocks=3 is left out", "num_blocks=1000000000 is left out"])
    found = json.loads(run_cli(capsys, str(tmp_path), *sweep, "--json")[1])
    assert [each["settings"]["num_blocks"] for each in found["what_if"]] == [96, 192]
    assert list(found["unfit"]) == ["num_blocks=3", "num_blocks=1000000000"]


def test_too_few_steps_and_an_empty_run_are_told(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="no request arrived"):
        WhatIf(timed_run(tmp_path / "none", requests=0))
    engine = FakeEngine(recorder=Recorder(JournalWriter(tmp_path / "few", "run")))
    engine.add_request([1, 2, 3], SamplingParams(max_tokens=MIN_STEPS - 2, temperature=0.0))
    while engine.core.has_work:
        engine.core.step()
    engine.close()
    with pytest.raises(JournalError, match=f"at least {MIN_STEPS}"):
        WhatIf(read_recording(tmp_path / "few"))


def test_a_run_without_hashes_needs_the_cache_to_stay_off(tmp_path: Path) -> None:
    recording = timed_run(tmp_path, requests=12, prefix_cache=False)
    what_if = WhatIf(recording)
    assert what_if.run().figures.requests == 12
    with pytest.raises(JournalError, match="which prompts share is not known"):
        what_if.run([parse_setting("prefix_cache=true", recording.started)])


def test_another_block_size_leaves_the_pool_its_tokens(tmp_path: Path) -> None:
    recording = timed_run(tmp_path, requests=12)
    simulated = WhatIf(recording).run([parse_setting("block_size=8", recording.started)])
    assert (simulated.config.block_size, simulated.config.num_blocks) == (8, 48)


def test_a_request_that_waits_for_its_user_waits_as_long_again(tmp_path: Path) -> None:
    clock = Clock()
    engine = FakeEngine(recorder=Recorder(JournalWriter(tmp_path, "run", clock=clock), clock), clock=clock, **BASE)
    TimedDevice(engine, clock)
    params = SamplingParams(max_tokens=12, temperature=0.0, on_stop="pause")
    handles = [engine.add_request([i, 2, 3, 4, 5], params) for i in range(3)]
    while engine.core.has_work:
        engine.core.step()
    clock.now += 500_000_000
    for handle in handles:
        engine.resume(handle, [7, 8, 9], max_tokens=10)
    while engine.core.has_work:
        engine.core.step()
    for handle in handles:
        engine.finish(handle)
    engine.close()
    what_if = WhatIf(read_recording(tmp_path))
    simulated = what_if.run()
    assert simulated.figures.requests == 3
    assert simulated.figures.e2e_p50 == pytest.approx(what_if.recorded.e2e_p50, rel=0.02)
    assert simulated.figures.e2e_p50 > 0.5
