"""Which requests a statistic counts: not those whose end is lost, and first tokens of those that live."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from fake_engine import FakeEngine
from latency_checks import check_exact, latency_of
from nanolens.engine.sampling_params import SamplingParams
from nanolens.inspector.explain_view import explained_lines
from nanolens.inspector.explained import explain
from nanolens.inspector.latency_reading import LatencyReading
from nanolens.inspector.replay.simulate_figures import figures
from nanolens.inspector.trace_cli import main
from nanolens.inspector.trace_text import Paint
from nanolens.telemetry.event_json import event_as_dict
from nanolens.telemetry.events import BreakpointHit, EngineStarted, StepFinished
from nanolens.telemetry.latency import Latency
from nanolens.telemetry.latency_tracks import LatencyTracks
from nanolens.telemetry.verdict import verdict
from planted_causes import prompt, timed_engine
from planted_runs import MS, Planted, planted_events, write_events

Output = pytest.CaptureFixture[str]


def said(capsys: Output, *arguments: object) -> Any:
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def lost_end() -> Latency:
    """A request whose end lies in a gap, and one that lives on."""
    engine, _ = timed_engine()
    first = engine.add_request(prompt(16), SamplingParams(max_tokens=6, ignore_eos=True))
    other = engine.add_request(prompt(16, 1), SamplingParams(max_tokens=60, ignore_eos=True))
    for _ in range(3):
        engine.step()
    engine.core.flush()
    tracks = LatencyTracks()
    for event in engine.events:
        tracks.apply(event)
    tracks.lose()
    for _ in range(20):
        engine.step()
    engine.core.flush()
    assert {seq.request for seq in engine.snapshot().sequences} == {other} != {first}
    tracks.apply(engine.snapshot())
    tracks.finish()
    return Latency(tracks)


def test_a_request_whose_end_is_lost_has_not_ended_as_far_as_is_known() -> None:
    latency = lost_end()
    first, other = check_exact(latency)
    assert not first.ended and first.track.is_end_lost and not other.track.is_end_lost
    assert first.parts["unknown"] == other.parts["unknown"] > 0
    told = verdict(latency, first)
    assert told.headline.startswith("req-0, whose end the journal lost, took at most ")
    assert sum(piece.end_t - piece.begin_t for piece in told.evidence) == first.total_ns


@pytest.fixture(scope="module")
def congested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four requests that ended, and one that waited for long, has its first token, and lives."""
    events = planted_events([*[Planted(wait=5 * MS)] * 4, Planted(wait=500 * MS, outputs=9)])
    last = max(i for i, event in enumerate(events) if isinstance(event, StepFinished))
    return write_events(tmp_path_factory.mktemp("journal"), events[:last])


def test_top_by_ttft_counts_the_first_tokens_of_those_that_live(congested: Path, capsys: Output) -> None:
    by_ttft, by_e2e = said(capsys, "top", congested, "--by", "ttft"), said(capsys, "top", congested)
    assert (by_ttft["requests"], by_ttft["live"]) == (5, 0)
    assert (by_e2e["requests"], by_e2e["live"]) == (4, 1)
    slowest = said(capsys, "explain", congested, "--p99", "--by", "ttft")["requests"][0]
    assert (slowest["request"], slowest["total_ns"]) == ("req-4", by_ttft["p99"])
    assert by_ttft["named"][0]["request"] == "req-4"
    assert by_ttft["recompute"]["total_ns"] == by_e2e["recompute"]["total_ns"]


def test_compare_counts_them_too(congested: Path, capsys: Output) -> None:
    found = said(capsys, "compare", congested, congested, "--by", "ttft")
    assert (found["a"]["requests"], found["a"]["live"]) == (4, 1)
    slowest = said(capsys, "explain", congested, "--p99", "--by", "ttft")["requests"][0]["total_ns"]
    assert found["measures"]["ttft"]["p99"]["a_ns"] == slowest
    assert found["measures"]["e2e"]["p99"]["a_ns"] < 500 * MS


def several(sampling: SamplingParams) -> FakeEngine:
    engine, _ = timed_engine(max_num_seqs=2)
    engine.add_request(prompt(10), sampling)
    engine.run()
    return engine


def test_the_first_token_is_that_of_the_sibling_that_had_it_first(tmp_path: Path, capsys: Output) -> None:
    engine = several(SamplingParams(n=3, max_tokens=8, ignore_eos=True, temperature=1.0))
    latency = latency_of(engine.events)
    (b,) = check_exact(latency)
    firsts = sorted(track.first_token_t for track in b.siblings)
    assert b.track.first_token_t == firsts[-1] > firsts[0] == b.first.first_token_t
    assert b.ttft_ns == firsts[0] - b.begin_t
    journal = write_events(tmp_path / "j", engine.events)
    assert main(["export", str(journal), "--csv", str(tmp_path / "out.csv")]) == 0
    (row,) = csv.DictReader((tmp_path / "out.csv").open(newline=""))
    assert int(row["ttft_ns"]) == b.ttft_ns == sum(b.ttft_parts.values())
    gaps = sum(track.last_token_t - track.first_token_t for track in b.siblings)
    assert int(row["itl_ns"]) == round(gaps / (3 * 7))
    same = figures(latency.tracks, set())
    assert (round(same.ttft_p50 * 1e9), round(same.itl_p50 * 1e9)) == (b.ttft_ns, int(row["itl_ns"]))
    assert f"The first token of req-0 took {b.ttft_ns / 1e6:.1f} ms" in verdict(latency, b, "ttft").headline


def test_siblings_are_named_by_their_sequence_and_not_by_the_request() -> None:
    engine = several(SamplingParams(n=3, max_tokens=8, ignore_eos=True, temperature=1.0))
    latency = latency_of(engine.events)
    started = engine.events[0]
    assert isinstance(started, EngineStarted)
    reading = LatencyReading("j", "run", started, latency, ())
    (one,) = explain(reading, latency.breakdowns(), "e2e")
    lines = explained_lines(one, Paint(), 200)
    assert "waiting for the sibling that computed the prompt they share: seq 0." in " ".join(lines[:6])
    assert any(line.strip().startswith("100% seq 0: its sibling computed the prompt") for line in lines)
    assert any("its siblings had " in line for line in lines)
    assert not any("req-0 " in line for line in lines[4:])


def test_a_wait_that_a_pause_of_the_engine_cuts_stands_so_in_the_waterfall() -> None:
    engine, clock = timed_engine()
    engine.pause_engine("lunch")
    engine.add_request(prompt(8), SamplingParams(max_tokens=3, ignore_eos=True))
    clock.now += 50 * MS
    engine.continue_engine()
    engine.run()
    latency = latency_of(engine.events)
    (b,) = check_exact(latency)
    pieces = verdict(latency, b).evidence
    paused = sum(piece.end_t - piece.begin_t for piece in pieces if piece.words == "WAITING (engine_paused)")
    assert paused == b.parts["engine_paused"] >= 50 * MS


@pytest.mark.parametrize(("length", "advised"), [(20, ""), (240, "max_prefill_chunk=")])
def test_shorter_chunks_are_advised_only_where_they_would_be_shorter(length: int, advised: str) -> None:
    engine, _ = timed_engine()
    engine.add_request(prompt(8), SamplingParams(max_tokens=6, ignore_eos=True))
    engine.step()
    engine.step()
    engine.add_request(prompt(length, 1), SamplingParams(max_tokens=2, ignore_eos=True))
    engine.run()
    latency = latency_of(engine.events)
    told = verdict(latency, latency.breakdown(latency.tracks.requests["req-0"]))
    largest = max((count for track in latency.tracks.tracks.values() if track.request == "req-1"
                   for run in track.runs for _, _, count, _ in run.chunks))  # fmt: skip
    helps = " ".join(line for line in told.sentences if "max_prefill_chunk" in line)
    assert advised in helps and bool(helps) == bool(advised)
    if advised:
        assert f"max_prefill_chunk={largest // 2}" in helps


def test_the_name_of_an_event_is_not_overwritten_by_a_field() -> None:
    hit = event_as_dict(BreakpointHit(1, 2, 3, "on=status", "sequence.status", 4, "engine"))
    assert (hit["event"], hit["hit"]) == ("breakpoint.hit", "sequence.status")
