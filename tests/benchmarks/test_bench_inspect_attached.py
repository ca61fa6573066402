"""The benchmark of an inspector's cost: which steps it counts, and when. The run itself is for people to start."""

from __future__ import annotations

from pathlib import Path

import pytest

from journals import started
from nanolens.benchmarks.inspect_attached import CASES, report, step_times, within
from nanolens.telemetry.events import AnyEvent, StepFinished, StepPlanned
from nanolens.telemetry.journal import JournalWriter

MS = 1_000_000


def steps(kinds: list[str]) -> list[AnyEvent]:
    """Steps of these kinds, each a millisecond longer than the one before."""
    found: list[AnyEvent] = []
    t = 0
    for step, kind in enumerate(kinds, 1):
        t += step * MS
        found += [StepPlanned(t, step, kind, [], 1, [], 0, 1, 8), StepFinished(t, step, 1, 1, 1, 1, 1, 1, [])]
    return found


def test_decode_steps_are_timed_from_the_end_of_the_one_before(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, "run")
    writer.append([started(), *steps(["decode", "mixed", "decode", "decode"])])
    writer.close()
    assert step_times(tmp_path) == [(6 * MS, 3 * MS), (10 * MS, 4 * MS)]  # of the first one the begin is not known


def test_a_window_has_the_steps_that_ended_in_it() -> None:
    assert within([(1, MS), (2, 2 * MS), (3, 3 * MS)], (2, 3)) == [2.0]


def test_each_case_has_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    timed = [(at, MS if at < 10 else 2 * MS) for at in range(20)]
    report({name: [((0, 10), (10, 20))] for name in CASES}, timed)
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line[:18].strip() for line in lines] == list(CASES)
    assert all("2.000: 2.000" in line for line in lines)


