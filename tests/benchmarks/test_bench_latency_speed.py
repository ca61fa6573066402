"""The benchmark of the latency model runs, and divides every request exactly."""

from __future__ import annotations

import re

import pytest

from nanolens.benchmarks import latency_speed


def test_a_journal_is_recorded_and_analysed_in_a_process_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    latency_speed.main(["--events", "2000", "--seqs", "4"])
    told = re.search(r"([\d,]+) events, ([\d,]+) steps, (\d+) requests, 0 of them inexact", capfd.readouterr().out)
    assert told is not None and int(told[1].replace(",", "")) >= 2000 and int(told[3]) > 10
