"""The benchmark of spans works on a journal in which everything happens."""

from __future__ import annotations

import pytest

from nanolens.benchmarks import span_speed
from nanolens.telemetry.events import BlocksAllocated, SequencePreempted
from span_checks import check_whole, named


def test_its_run_is_busy_and_whole() -> None:
    events = span_speed.busy_run(num_requests=24, num_seqs=6)
    spans = check_whole(events)
    assert any(isinstance(event, SequencePreempted) for event in events)
    assert any(event.cached for event in events if isinstance(event, BlocksAllocated))
    chunks = named(spans, "prefill")
    assert len(chunks) > len({chunk.parent.span_id for chunk in chunks})


def test_it_prints_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    span_speed.main(["--requests", "6", "--seqs", "2", "--repeats", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all("spans/s on one core" in line for line in lines)
