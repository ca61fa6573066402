"""One definition of a quantile: what every command and benchmark means by p50 and p99."""

from __future__ import annotations

import json
import math
import random
import re
from pathlib import Path

import numpy as np
import pytest

import nanolens
from nanolens.benchmarks.stats import Distribution
from nanolens.inspector.explained import ranked
from nanolens.inspector.latency_reading import read_latency
from nanolens.inspector.replay.simulate_figures import figures
from nanolens.inspector.trace_cli import main
from nanolens.telemetry.quantile import quantile, rank
from planted_causes import prompt, written
from timed_engine import timed_engine


def test_a_quantile_is_a_value_that_occurred() -> None:
    values = np.array([4.0, 1.0, 3.0, 2.0])
    assert [quantile(values, q) for q in (0.0, 0.25, 0.5, 0.51, 0.99, 1.0)] == [1.0, 1.0, 2.0, 3.0, 4.0, 4.0]
    assert math.isnan(quantile([], 0.5))


def test_at_least_q_of_all_do_not_exceed_it_and_fewer_stay_below() -> None:
    rng = random.Random(1)
    for count in range(1, 120):
        values = [rng.randrange(30) for _ in range(count)]
        for per_cent in (1, 10, 50, 90, 99):
            found = quantile(values, per_cent / 100)
            assert 100 * sum(value <= found for value in values) >= per_cent * count
            assert 100 * sum(value < found for value in values) < per_cent * count


def test_ranks_are_not_moved_by_how_fractions_are_stored() -> None:
    assert [rank(100, per_cent / 100) for per_cent in range(1, 101)] == list(range(1, 101))


def test_all_commands_tell_the_same_percentiles_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine, _ = timed_engine(num_blocks=128)
    for length in (8, 30, 60, 90, 120, 17):  # an even count: where definitions differ
        engine.add(prompt(length, length), 4 + length // 6)
    engine.run()
    journal = written(engine, tmp_path)

    def told(*arguments: str) -> dict[str, object]:
        assert main([arguments[0], str(journal), *arguments[1:], "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert isinstance(found, dict)
        return found

    latency = read_latency(journal).latency
    times = [breakdown.total_ns for breakdown in latency.breakdowns()]
    top, replayed = told("top"), figures(latency.tracks)
    measured = Distribution.of([float(time) for time in times])
    assert top["p50"] == replayed.e2e_p50 * 1e9 == measured.p50 == sorted(times)[2]
    assert top["p99"] == replayed.e2e_p99 * 1e9 == measured.p99 == max(times)
    (slow,) = told("explain", "--p99")["requests"]  # type: ignore[misc]
    assert slow["total_ns"] == top["p99"] == times[ranked(dict(enumerate(times)), 1, True)[0]]


def test_nothing_has_a_definition_of_its_own() -> None:
    root = Path(nanolens.__file__).parent
    own = re.compile(r"np\.(quantile|percentile|nanquantile|nanpercentile)\(|statistics\.quantiles")
    modules = [path for folder in ("telemetry", "inspector", "benchmarks") for path in (root / folder).rglob("*.py")]
    assert [path.name for path in modules if own.search(path.read_text(encoding="utf-8"))] == []
