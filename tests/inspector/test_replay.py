"""A recorded run comes out the same when it is decided again, whatever happened in it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from nanolens.engine.outputs import Delta
from nanolens.engine.sampling_params import SamplingParams
from nanolens.errors import JournalError
from nanolens.inspector.replay.recording import Recording, read_recording, record_frames
from nanolens.inspector.replay.replay import replay
from nanolens.telemetry.events import (
    BlocksDuplicate,
    BlocksSwapped,
    BreakpointHit,
    EngineError,
    RequestArrived,
    SequencePreempted,
    StatusChanged,
    StepRanks,
    StepRetried,
    SwapFinished,
)
from replay_runs import EOS, frames_of, random_run, recorded_engine, wild_run

POLICIES, BATCHINGS, MODES = ("fcfs", "priority", "sjf"), ("mixed", "prefill_first"), ("recompute", "swap", "auto")
RUNS: list[dict[str, Any]] = [
    {"policy": policy, "batching": batching, "preemption_mode": mode}
    for policy, batching, mode in itertools.product(POLICIES, BATCHINGS, MODES)
] + [
    {"policy": "sjf", "preemption_mode": "auto", "overlap": True},
    {"policy": "priority", "preemption_mode": "swap", "overlap": True, "batching": "prefill_first", "eos": EOS},
    {"policy": "fcfs", "overlap": True, "paused_ttl_s": 3e-4},
    {"policy": "priority", "paused_ttl_s": 3e-4, "host_blocks": 0},
    {"policy": "fcfs", "prefix_cache": False, "eos": EOS},
    {"policy": "priority", "disk_blocks": 0, "preemption_mode": "swap", "eos": EOS},
    {"policy": "fcfs", "host_blocks": 0, "disk_blocks": 0, "max_prefill_chunk": None},
    {"policy": "sjf", "tensor_parallel_size": 2},
    {"policy": "priority", "tensor_parallel_size": 3, "overlap": True, "preemption_mode": "auto", "eos": EOS},
]


def same(recording: Recording) -> bool:
    """Whether it all came out the same; the divergence is in the failure's words."""
    result = replay(recording)
    assert result.divergence is None, (str(result.divergence), result.divergence.expected, result.divergence.got)
    return result.decisions == len(recording.events) > 0


@pytest.mark.parametrize("options", RUNS, ids=lambda o: "-".join(f"{v}" for v in o.values() if v is not EOS))
def test_every_decision_of_a_random_run_comes_out_the_same(tmp_path: Path, options: dict[str, Any]) -> None:
    random_run(tmp_path, len(str(options)), **options)
    recording = read_recording(tmp_path)
    assert recording.overlap == options.get("overlap", False) and not recording.ended
    told = [event for frame in frames_of(tmp_path) for event in frame if isinstance(event, StepRanks)]
    assert bool(told) == (options.get("tensor_parallel_size", 1) > 1)
    assert same(recording)


# Where what a callback did shows only in what comes much later: 3: it read a step to pause what had ended then; 4, 153:
# an abort waits for a token behind other commands; 77, 117: moves are lost with a step; 152: a delivery wakes another
# callback, which aborts; 304, 307: a request is aborted whose sequences have all ended.
@pytest.mark.parametrize("seed", [*range(12), 77, 117, 152, 153, 304, 307])
def test_faults_breakpoints_and_commands_from_callbacks_come_out_the_same(tmp_path: Path, seed: int) -> None:
    options = {"policy": POLICIES[seed % 3], "overlap": seed % 2 == 1, "preemption_mode": MODES[seed // 2 % 3]}
    wild_run(tmp_path, seed, **options)
    assert same(read_recording(tmp_path))


def test_the_runs_hold_what_they_are_to_show(tmp_path: Path) -> None:
    kinds: set[type] = set()
    reasons: set[str] = set()
    for seed in range(6):
        wild_run(tmp_path / str(seed), seed, policy="priority", preemption_mode="swap", paused_ttl_s=3e-4, eos=EOS)
        for event in itertools.chain(*frames_of(tmp_path / str(seed))):
            kinds.add(type(event))
            reasons |= {event.reason} if isinstance(event, StatusChanged) else set()
    assert kinds >= {
        BlocksDuplicate, BlocksSwapped, BreakpointHit, EngineError, SequencePreempted, StepRetried, SwapFinished,
    }  # fmt: skip
    assert reasons >= {
        "aborted", "breakpoint", "delivered", "error", "expired", "length", "operator", "preempted", "prefill_complete",
        "readmitted", "resumed", "stop",
    }  # fmt: skip


def test_a_run_that_goes_on_is_replayed_up_to_its_last_frame(tmp_path: Path) -> None:
    engine = recorded_engine(tmp_path)
    for i in range(5):
        engine.add([i] * 9, max_tokens=9)
    for _ in range(6):
        engine.step()
    recording = read_recording(tmp_path)
    assert same(recording) and len(recording.arrivals) == 5 and not recording.finished


def test_an_engine_that_died_comes_out_the_same(tmp_path: Path) -> None:
    engine = recorded_engine(tmp_path)
    engine.add([1] * 9, n=2)
    engine.add([2] * 9)
    engine.step()
    engine.die("the loop failed")
    assert same(read_recording(tmp_path))


def test_an_engine_whose_device_broke_comes_out_the_same(tmp_path: Path) -> None:
    engine = recorded_engine(tmp_path, overlap=True)
    for i in range(4):
        engine.add([i] * 9)
    engine.step()
    engine.runner.fail_launch = lambda plan: RuntimeError("no device")
    engine.runner.sound = False
    engine.step()
    recording = read_recording(tmp_path)
    assert any(isinstance(e, EngineError) and "no longer computes" in e.message for e in recording.events)
    assert same(recording)


@pytest.mark.parametrize("overlap", [False, True])
def test_an_interrupt_out_of_a_callback_comes_out_the_same(tmp_path: Path, overlap: bool) -> None:
    engine = recorded_engine(tmp_path, overlap=overlap)
    told: list[Delta] = []

    def interrupt(delta: Delta) -> None:
        told.append(delta)
        if len(told) == 3:
            raise KeyboardInterrupt

    for first in (1, 2, 3):
        engine.add_request([first] * 5, SamplingParams(max_tokens=6, temperature=0.0), on_output=interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.run()
    engine.add([4] * 5)
    engine.run()
    engine.close()
    recording = read_recording(tmp_path)
    assert any(isinstance(e, EngineError) and "KeyboardInterrupt" in e.message for e in recording.events)
    assert same(recording)


def test_appended_tokens_that_are_cached_elsewhere_are_found_again(tmp_path: Path) -> None:
    engine = recorded_engine(tmp_path, num_blocks=20)
    first = engine.add([1, 2, 3, 4, 5], max_tokens=4, on_stop="pause")
    engine.run()
    turn = [*engine.seq(first).token_ids[5:], 7, 7, 7, 7, 7, 7, 7, 7]
    engine.add([1, 2, 3, 4, 5, *turn], max_tokens=2)
    engine.run()
    for i in range(4):  # needs the blocks of the one that is paused
        engine.add([20 + i] * 17, max_tokens=6)
    engine.run()
    engine.resume(first, append=[7] * 8, max_tokens=3)
    engine.run()
    engine.close()
    assert same(read_recording(tmp_path))


def test_blocks_are_hashed_once_and_the_journal_tells_their_hashes(tmp_path: Path) -> None:
    engine = recorded_engine(tmp_path, num_blocks=20)
    cache, hashed = engine.core.blocks.prefixes, []
    hash_block = cache.hash_block

    def counted(parent: bytes, tokens: bytes) -> bytes:
        hashed.append(tokens)
        return hash_block(parent, tokens)

    cache.hash_block = counted  # type: ignore[method-assign]
    engine.add([1] * 11, max_tokens=2, n=3)
    assert len(hashed) == 2
    engine.run()
    assert len(hashed) == 2 + 3  # and the third block of each sibling, with its output
    engine.close()
    recording = read_recording(tmp_path)
    (arrived,) = recording.arrivals
    assert arrived.block_hashes == b"".join(recording.hashes[1][i] for i in range(2)) != b""
    assert set(recording.hashes[2]) == {0, 1, 2}


def test_a_run_without_recording_hashes_nothing_on_arrival(tmp_path: Path) -> None:
    engine = recorded_engine(tmp_path)
    engine.core.recorder.on = False
    engine.add([1] * 11)
    assert engine.seq("req-0").block_hashes == []


def test_a_second_block_of_the_same_content_is_told(tmp_path: Path) -> None:
    engine = recorded_engine(tmp_path, num_blocks=20, max_num_seqs=2, max_prefill_chunk=None)
    engine.add([1] * 9)
    engine.add([1] * 9)  # admitted with the first one, before its blocks are in the cache
    engine.step()
    (told,) = engine.of(BlocksDuplicate)
    assert told.seq == 1 and told.blocks == engine.seq("req-1").block_table[:2]
    assert told.hashes == engine.of(RequestArrived)[1].block_hashes


def test_outcomes_tell_what_became_of_each_sequence(tmp_path: Path) -> None:
    engine = recorded_engine(tmp_path, num_blocks=20)
    engine.add([1] * 5, max_tokens=3)
    stopped = engine.add([2] * 5, max_tokens=20, on_stop="pause", stop_token_ids=[int(i) for i in range(0, 1000, 3)])
    engine.run()
    engine.resume(stopped, append=[5] * 3, max_tokens=30)
    engine.step()
    engine.abort(stopped)
    engine.close()
    first, second = read_recording(tmp_path).outcomes.values()
    assert (first.num_output_tokens, first.status, first.reason) == (3, "FINISHED", "length")
    assert (second.status, second.reason, second.num_appended_tokens) == ("FINISHED", "aborted", 3)
    assert second.stops and second.stops[0] <= second.num_output_tokens


def test_a_journal_without_hashes_is_refused(tmp_path: Path) -> None:
    random_run(tmp_path, 1, commands=40)
    frames = frames_of(tmp_path)
    for event in itertools.chain(*frames):
        if isinstance(event, RequestArrived):
            event.block_hashes = b""
    with pytest.raises(JournalError, match="without the hashes of its blocks"):
        replay(record_frames("run", frames))


def test_a_recording_ends_where_the_writer_lost_events(tmp_path: Path) -> None:
    random_run(tmp_path, 2, commands=60)
    frames = frames_of(tmp_path)
    from nanolens.telemetry.events import JournalDropped

    frames.insert(20, [JournalDropped(1, 7, 1, "no space left")])
    recording = record_frames("run", frames)
    assert recording.ended == "7 events were lost by the writer: no space left"
    assert same(recording)
