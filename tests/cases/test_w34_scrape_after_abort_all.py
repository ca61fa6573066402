"""W34: gauges stay at the old value once everything is aborted; the counter of aborted requests stays 0.

The scrape's side: over HTTP, of metrics that are fed from the journal's file alone.
"""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from fake_engine import Clock, FakeEngine
from metric_runs import Key, key, samples
from nanolens.telemetry.journal import JournalWriter
from nanolens.telemetry.metrics import Metrics
from nanolens.telemetry.metrics_server import serve_metrics
from nanolens.telemetry.reader import JournalReader
from nanolens.telemetry.recorder import Recorder


def scrape(metrics: Metrics) -> dict[Key, float]:
    with serve_metrics(metrics, 0) as server, urllib.request.urlopen(server.url, timeout=20) as answer:
        return samples(answer.read())


def scrape_of_journal(journal: Path) -> dict[Key, float]:
    metrics = Metrics()
    for frame in JournalReader(journal).frames():
        metrics.apply_all(frame.events)
    return scrape(metrics)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_scrape_after_all_was_aborted_shows_an_empty_engine_without_another_step(
    tmp_path: Path, overlap: bool
) -> None:
    clock = Clock()
    recorder = Recorder(JournalWriter(tmp_path, "run", clock=clock), clock)
    engine = FakeEngine(recorder=recorder, max_num_seqs=4, overlap=overlap)
    names = [engine.add(range(number * 20, number * 20 + 9), 50) for number in range(8)]
    engine.step()
    engine.step()
    before = scrape_of_journal(tmp_path)
    assert before[key("sequences", status="RUNNING")] == before[key("sequences", status="WAITING")] == 4
    assert before[key("kv_blocks", state="used")] > 0
    steps = before[key("steps_total", kind="decode")] + before[key("steps_total", kind="prefill")]

    for name in names:
        engine.abort(name)
    after = scrape_of_journal(tmp_path)
    assert after[key("engine_up")] == 1
    for status in ("RUNNING", "WAITING", "PAUSED"):
        assert after[key("sequences", status=status)] == 0
    assert sum(number for (name, _), number in after.items() if name == "nanolens_waiting_sequences") == 0
    assert after[key("oldest_wait_seconds")] == 0
    assert after[key("kv_blocks", state="used")] == after[key("kv_token_fill_ratio")] == 0
    assert after[key("kv_blocks", state="free")] + after[key("kv_blocks", state="cached")] == 64
    assert after[key("requests_total", finish_reason="abort")] == 8
    assert after[key("steps_total", kind="decode")] + after[key("steps_total", kind="prefill")] == steps
    engine.core.close()
