"""A decision that was recorded otherwise is found where it stands, and told as a bug report."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nanolens.errors import JournalError
from nanolens.inspector.replay.recording import read_recording, record_frames
from nanolens.inspector.replay.replay import Result, replay
from nanolens.inspector.replay.report import report
from nanolens.inspector.trace_cli import main
from nanolens.telemetry.events import (
    AnyEvent,
    BlocksAllocated,
    BlocksCached,
    BlocksFreed,
    BlocksSwapped,
    EnginePaused,
    PrefixMatched,
    RequestFinished,
    SequencePreempted,
    StepFinished,
    StepPlanned,
    WaitReasonChanged,
)
from replay_runs import frames_of, random_run, recorded_engine, write_journal

Frames = list[list[AnyEvent]]


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with preemptions, moves and evictions."""
    path = tmp_path_factory.mktemp("journal")
    random_run(path, 4, policy="priority", preemption_mode="swap", overlap=True)
    return path


def place(frames: Frames, kind: type, wanted: Callable[[Any], bool] = lambda e: True) -> tuple[int, int]:
    """Where the middle one of the events of a kind stands: frame, and index in it."""
    found = [
        (i, j) for i, frame in enumerate(frames) for j, e in enumerate(frame) if isinstance(e, kind) and wanted(e)
    ]
    return found[len(found) // 2]


def index_of(frames: Frames, at: tuple[int, int]) -> int:
    """The event's place in a recording of these frames."""
    return len(record_frames("run", [*frames[: at[0]], frames[at[0]][: at[1]]]).events)


CHANGES: dict[str, tuple[type, Callable[[Any], bool], dict[str, Callable[[Any], Any]]]] = {
    "another block": (BlocksAllocated, lambda e: e.new, {"new": lambda blocks: [b ^ 1 for b in blocks]}),
    "a block that was not evicted": (BlocksAllocated, lambda e: e.evicted, {"evicted": lambda blocks: blocks[1:]}),
    "fewer free blocks": (BlocksAllocated, lambda e: True, {"free": lambda free: free + 1}),
    "a shorter chunk": (
        StepPlanned, lambda e: e.chunks, {"chunks": lambda c: [(c[0][0], c[0][1], c[0][2] + 1), *c[1:]]},
    ),
    "one decode less": (StepPlanned, lambda e: e.decodes, {"decodes": lambda n: n - 1}),
    "another victim": (SequencePreempted, lambda e: True, {"seq": lambda seq: seq + 1}),
    "another preemptor": (SequencePreempted, lambda e: True, {"by": lambda seq: seq + 1}),
    "recomputed instead of swapped": (SequencePreempted, lambda e: e.mode == "swap", {"mode": lambda m: "recompute"}),
    "another reason to wait": (WaitReasonChanged, lambda e: True, {"reason": lambda r: "token_budget"}),
    "more of the prefix found": (PrefixMatched, lambda e: e.hit, {"hit": lambda n: n - 4}),
    "another slot": (BlocksSwapped, lambda e: e.kind == "out", {"targets": lambda t: [x - 1 for x in t]}),
    "another order of release": (BlocksFreed, lambda e: len(e.blocks) > 1, {"blocks": lambda b: b[::-1]}),
    "more output": (RequestFinished, lambda e: True, {"num_output_tokens": lambda n: n + 1}),

    "another block cached": (BlocksCached, lambda e: True, {"blocks": lambda b: [x ^ 1 for x in b]}),
    "a token too late": (StepFinished, lambda e: True, {"wasted": lambda w: [*w, 7]}),
}  # fmt: skip


def changed(frames: Frames, name: str) -> tuple[int, int]:
    """Change one event; where it stands."""
    kind, wanted, values = CHANGES[name]
    at = place(frames, kind, wanted)
    event: Any = frames[at[0]][at[1]]
    for field, value in values.items():
        setattr(event, field, value(getattr(event, field)))
    return at


@pytest.mark.parametrize("name", CHANGES)
def test_an_altered_decision_is_found_at_its_place(journal: Path, name: str) -> None:
    frames = frames_of(journal)
    at = changed(frames, name)
    found = replay(record_frames("run", frames)).divergence
    assert found is not None and found.index == index_of(frames, at)
    assert found.expected is frames[at[0]][at[1]]
    (field,) = CHANGES[name][2]
    assert any(line.startswith(f"{field}: ") for line in found.details)
    step = getattr(found.expected, "step", None)
    assert step is None or found.step == step


def test_an_event_left_out_is_found_at_its_place(journal: Path) -> None:
    frames = frames_of(journal)
    steps = {id(e) for frame in frames if any(isinstance(e, StepPlanned) for e in frame) for e in frame}
    at = place(frames, WaitReasonChanged, lambda e: id(e) in steps)  # a step of nothing else need not have been
    index, missing = index_of(frames, at), frames[at[0]].pop(at[1])
    found = replay(record_frames("run", frames)).divergence
    assert found is not None and (found.index, found.got is not None) == (index, True)
    assert isinstance(found.got, WaitReasonChanged) and found.got.seq == missing.seq  # type: ignore[union-attr]


def test_two_events_in_another_order_are_found(journal: Path) -> None:
    frames = frames_of(journal)
    at = place(frames, BlocksAllocated)
    frame = frames[at[0]]
    frame[at[1] - 1], frame[at[1]] = frame[at[1]], frame[at[1] - 1]
    found = replay(record_frames("run", frames)).divergence
    assert found is not None and found.index == index_of(frames, (at[0], at[1] - 1))


def test_an_engine_that_decides_otherwise_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random_run(tmp_path, 5, policy="fcfs")
    recording = read_recording(tmp_path)
    first = next(i for i, e in enumerate(recording.events) if isinstance(e, SequencePreempted))
    from nanolens.engine.scheduler import Scheduler

    def first_of_order(self: Scheduler, seq: Any) -> bool:
        if self.residency.vacate(1, self.step, reversed(self.waiting)):
            return True
        self._preempt(self.running[0], seq, "no_blocks")
        return self.running[:1] != [] and seq in self.running

    monkeypatch.setattr(Scheduler, "_make_room", first_of_order)
    found = replay(recording).divergence
    assert found is not None and found.index == first and found.state is not None
    assert found.state.running and found.details[0].startswith("seq: ")


def test_a_replay_leaves_no_log(journal: Path, caplog: pytest.LogCaptureFixture) -> None:
    frames = frames_of(journal)
    changed(frames, "another block")
    caplog.set_level("DEBUG")
    replay(record_frames("run", frames))
    assert not [record for record in caplog.records if record.name == "nanolens.engine"]


# The report


def lines_of(frames: Frames, width: int = 100) -> list[str]:
    recording = record_frames("run", frames)
    return report(recording, replay(recording), width)


def test_the_report_of_a_run_that_comes_out_the_same(journal: Path) -> None:
    recording = read_recording(journal)
    result: Result = replay(recording)
    (line,) = report(recording, result, 200)
    assert line.startswith(f"run run: all {len(recording.events):,} decisions came out the same: {result.steps} steps")


@pytest.mark.parametrize("width", [80, 120])
def test_the_report_of_a_divergence_names_place_values_and_queues(journal: Path, width: int) -> None:
    frames = frames_of(journal)
    at = changed(frames, "another block")
    lines = lines_of(frames, width)
    step = frames[at[0]][at[1]].step  # type: ignore[union-attr]
    count = len(record_frames("run", frames).events)
    assert " ".join(lines[:2]).startswith(
        f"run run: decision {index_of(frames, at) + 1:,} of {count:,} came out otherwise, in step {step}"
    )
    text = "\n".join(lines)
    parts = "  recorded: seq ", "  now:      seq ", "  differs:  new: [", "before it", "queues now: ", "  running: "
    for part in parts:
        assert part in text
    assert "policy=priority" in text and max(map(len, lines)) <= width


# The command


def test_the_command_says_that_all_is_the_same(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(journal)]) == 0
    assert "decisions came out the same" in capsys.readouterr().out


def test_the_command_finds_an_altered_journal(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frames = frames_of(journal)
    at = changed(frames, "another victim")
    write_journal(tmp_path / "altered", frames)
    assert main(["replay", str(tmp_path / "altered"), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["divergence"]["index"] == index_of(frames, at) == told["same"]
    assert told["divergence"]["expected"]["event"] == "sequence.preempted"
    assert main(["replay", str(tmp_path / "altered")]) == 1
    assert "came out otherwise" in capsys.readouterr().out


def test_nonsense_is_refused_in_one_line(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    engine = recorded_engine(tmp_path / "late")
    engine.add([1] * 6)
    engine.run()
    engine.close()
    frames = frames_of(tmp_path / "late")
    write_journal(tmp_path / "beginning gone", [[e for e in frame if e.__class__.__name__ != "EngineStarted"]
                                                for frame in frames[1:]])  # fmt: skip
    strange = frames_of(journal)
    strange[0][0].config["policy"] = "lottery"  # type: ignore[union-attr]
    write_journal(tmp_path / "strange", strange)
    for arguments, words in (
        (["nowhere"], "no such file"),
        ([str(tmp_path / "empty")], "holds no journal"),
        ([str(journal), "--run", "another"], "another"),
        ([str(tmp_path / "beginning gone")], "its beginning is no longer on disk"),
        ([str(tmp_path / "strange")], "policy='lottery'"),
    ):
        assert main(["replay", *arguments]) == 2
        printed = capsys.readouterr()
        assert words in printed.err and printed.err.count("\n") == 1 and not printed.out, printed.err


def test_a_torn_journal_is_replayed_up_to_where_it_is_whole(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_journal(tmp_path / "torn", frames_of(journal))
    (segment,) = [path for path in (tmp_path / "torn").iterdir() if path.stat().st_size > 1000]
    segment.write_bytes(segment.read_bytes()[:-7])
    assert main(["replay", str(tmp_path / "torn")]) == 0
    assert "unfinished frame" in capsys.readouterr().out


def test_a_pause_of_the_engine_is_a_command_and_no_decision(journal: Path) -> None:
    frames = frames_of(journal)
    at = place(frames, EnginePaused, lambda e: e.cause == "operator")
    frames[at[0]][at[1]].cause = "someone"  # type: ignore[union-attr]
    found = replay(record_frames("run", frames)).divergence
    assert found is None or found.index > index_of(frames, at)


@pytest.mark.parametrize("wanted", [[], ["--json"]], ids=["text", "json"])
def test_a_reader_that_goes_early_hides_no_divergence(
    journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: list[str]
) -> None:
    frames = frames_of(journal)
    changed(frames, "another block")
    write_journal(tmp_path, frames)

    class LeftByItsReader(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("nanolens.inspector.trace_cli.silence_output", lambda: None)
    monkeypatch.setattr(sys, "stdout", LeftByItsReader())
    assert main(["replay", str(tmp_path), *wanted]) == 1


@pytest.mark.parametrize("num_blocks", [(1 << 21) + 1, (1 << 31) - 1])
def test_a_pool_that_no_memory_holds_is_refused(journal: Path, num_blocks: int) -> None:
    frames = frames_of(journal)
    started: Any = frames[0][0]
    started.num_blocks = num_blocks
    with pytest.raises(JournalError, match="a replay has room for 2,097,152 blocks"):
        replay(record_frames("run", frames))


def test_nothing_is_allocated_for_a_pool_that_no_device_has(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frames = frames_of(journal)
    started: Any = frames[0][0]
    started.num_blocks = (1 << 31) - 1
    write_journal(tmp_path, frames)
    assert main(["explain", str(tmp_path)]) == 2
    assert "a pool of 2,147,483,647 blocks: must be at most 16,777,216" in capsys.readouterr().err
