"""`nano-bench exporter`, and pairs with an exporter, on little work: what they measure and that everything arrives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nanolens.benchmarks.cli import main as nano_bench
from nanolens.benchmarks.exporter_load import write_journal
from nanolens.inspector.trace_cli import main as nano_trace


def test_its_journal_adds_up_and_has_preemptions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_journal(tmp_path, 200)
    assert nano_trace(["check", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "200 requests" in told
    assert ", 0 preemptions" not in told


@pytest.mark.parametrize("metrics", ["on", "off"])
def test_it_exports_a_journal_and_counts_what_arrives(tmp_path: Path, metrics: str) -> None:
    figures = tmp_path / "figures.json"
    arguments = ["--num-requests", "40", "--runs", "1", "--metrics", metrics]
    assert nano_bench(["exporter", *arguments, "--json", str(figures)]) == 0
    record = json.loads(figures.read_text())
    (run,) = record["runs"]
    assert run["spans"] == run["received"] > 400
    assert record["median_spans_per_s"] == pytest.approx(run["spans"] / run["elapsed_s"])


@pytest.mark.parametrize("arguments", [["--runs", "0"], ["--num-requests", "-1"], ["--json", "/no/such/place/file"]])
def test_flags_out_of_range_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        nano_bench(["exporter", *arguments])
    assert caught.value.code == 2


def test_a_pair_with_the_exporter_does_the_same_work_on_both_sides(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    model = ["--model", "dummy:llama-tiny", "--device", "cpu", "--num-blocks", "64"]
    work = ["--num-requests", "4", "--input-len", "4:8", "--output-len", "4:8", "--pairs", "1", "--json", str(figures)]
    assert nano_bench(["offline", *model, *work, "--recording", "pair", "--exporter"]) == 0
    record = json.loads(figures.read_text())
    assert record["exporter"]
    assert record["same_work"]
    assert record["pairs"][0]["on"]["work"] == record["pairs"][0]["off"]["work"]


@pytest.mark.parametrize("arguments", [["--exporter"], ["--recording", "pair", "--otlp", "http://127.0.0.1:1"]])
def test_an_exporter_belongs_to_pairs(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        nano_bench(["offline", "--model", "dummy:llama-tiny", "--device", "cpu", *arguments])
    assert "--recording pair" in capsys.readouterr().err
