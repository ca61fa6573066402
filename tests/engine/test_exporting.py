"""`LLM(metrics_port=, otlp=)`: an exporter beside a real engine, from its start to its end, whatever end that is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nanolens.engine.async_engine import AsyncEngine
from nanolens.engine.config import EngineConfig
from nanolens.engine.exporting import Exporting
from nanolens.engine.sampling_params import SamplingParams
from nanolens.errors import InvalidConfig, InvalidRequest
from nanolens.telemetry.events import AnyEvent, Keyframe, StepPlanned
from nanolens.telemetry.reader import JournalReader
from nanolens.telemetry.spans import SpanBuilder
from otlp_receivers import OtlpServer, free_port, ids, wait_until
from real_engine import TINY, tiny_llm

GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
PROMPTS = [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 9], [7] * 20]
PARENT = Path(__file__).parents[1] / "support" / "exporting_parent.py"


@pytest.fixture
def server() -> Iterator[OtlpServer]:
    with OtlpServer() as opened:
        yield opened


def scrape(port: int) -> dict[str, float]:
    """Samples of a metrics page."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def events_of(journal: Path) -> list[AnyEvent]:
    return [event for frame in JournalReader(journal).frames() for event in frame.events]


def spans_of(journal: Path) -> Any:
    builder = SpanBuilder()
    builder.apply_all(events_of(journal))
    return ids(builder.take())


def test_metrics_are_served_and_spans_arrive_and_the_process_goes_with_the_engine(
    server: OtlpServer, tmp_path: Path
) -> None:
    llm = tiny_llm(journal=str(tmp_path), metrics_port=0, otlp=server.url)
    assert llm.engine.exporting is not None
    pid, port = llm.engine.exporting.pid, llm.metrics_port
    assert port
    llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    with pytest.raises(InvalidRequest):
        llm.engine.add_request([], GREEDY)
    wait_until(lambda: scrape(port).get('nanolens_requests_total{finish_reason="length"}') == 3)
    wait_until(lambda: scrape(port)['nanolens_spans_total{outcome="exported"}'] > 0)
    page = scrape(port)
    assert page["nanolens_generated_tokens_total"] == 36
    assert page["nanolens_engine_up"] == 1
    llm.close()
    assert not is_alive(pid)
    assert llm.metrics_port is None
    with pytest.raises(OSError, match="refused"):
        scrape(port)
    assert server.ids == spans_of(tmp_path)
    refused = [span for span in server.spans if span.status.code == 2]
    assert len(refused) == 1
    assert refused[0].end_time_unix_nano > 0


def test_without_a_journal_one_is_kept_while_the_engine_lives(server: OtlpServer) -> None:
    llm = tiny_llm(otlp=server.url)
    journal = Path(llm.engine.core.config.journal or "")
    assert journal.is_dir()
    assert llm.config.journal is None
    assert llm.metrics_port is None
    llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    llm.close()
    assert not journal.exists()
    roots = [span for span in server.spans if not span.parent_span_id]
    assert len(roots) == 3


def test_an_endpoint_that_is_down_changes_nothing_for_the_engine(server: OtlpServer, tmp_path: Path) -> None:
    outputs, kinds, steps = [], [], []
    for name, url in (("up", server.url), ("down", f"http://127.0.0.1:{free_port()}"), ("off", None)):
        journal = tmp_path / name
        llm = tiny_llm(journal=str(journal), otlp=url, num_blocks=12, max_num_seqs=3)
        outputs.append([out.outputs[0].token_ids for out in llm.generate(PROMPTS * 3, GREEDY, use_tqdm=False)])
        llm.close()
        events = events_of(journal)
        kinds.append([event.__class__ for event in events if not isinstance(event, Keyframe)])
        steps.append(sum(isinstance(event, StepPlanned) for event in events))
    assert outputs[0] == outputs[1] == outputs[2]
    assert kinds[0] == kinds[1] == kinds[2]
    assert steps[0] == steps[1] == steps[2] > 12


def test_what_could_not_be_sent_before_the_end_is_sent_by_the_next_export(tmp_path: Path) -> None:
    from nanolens.inspector.trace_cli import main as nano_trace

    port = free_port()
    llm = tiny_llm(journal=str(tmp_path), otlp=f"http://127.0.0.1:{port}")
    llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    llm.close()
    with OtlpServer(port) as server:
        assert nano_trace(["export", str(tmp_path), "--otlp", server.url]) == 0
        assert server.ids == spans_of(tmp_path)


def test_a_port_that_is_taken_is_told_before_the_engine_is_there(server: OtlpServer) -> None:
    with pytest.raises(InvalidConfig, match=f"metrics_port={server.port}"):
        tiny_llm(metrics_port=server.port)


def test_without_recording_there_is_nothing_to_export() -> None:
    for options in ({"metrics_port": 0}, {"otlp": "http://127.0.0.1:1"}):
        with pytest.raises(InvalidConfig, match="must be None with recording=False"):
            EngineConfig(recording=False, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["collector:4318", "ftp://x", "http://u:p@x", 1, ""])
def test_an_endpoint_that_is_no_url_is_refused(value: object) -> None:
    with pytest.raises(InvalidConfig, match=r"^otlp="):
        EngineConfig(otlp=value)  # type: ignore[arg-type]


def test_an_exporter_whose_run_never_begins_is_ended(tmp_path: Path) -> None:
    exporting = Exporting(EngineConfig(journal=str(tmp_path), metrics_port=0), "run")
    exporting.wait_ready()
    assert is_alive(exporting.pid)
    exporting.abandon()
    assert not is_alive(exporting.pid)


@pytest.mark.parametrize("end", ["killed", "interrupted", "returns", "leaves"])
def test_it_outlives_no_parent_and_sends_what_that_one_left(server: OtlpServer, tmp_path: Path, end: str) -> None:
    """Its parent is killed, ends by a signal, returns without a close, or leaves by os._exit."""
    command = [sys.executable, "-P", str(PARENT), str(tmp_path), server.url, end]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    try:
        if end == "killed":
            process.kill()
        elif end == "interrupted":
            process.send_signal(signal.SIGINT)
        process.wait(60)
        wait_until(lambda: not is_alive(pid))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()
        process.stdout.close()
    roots = [span for span in server.spans if not span.parent_span_id]
    assert len(roots) == 2
    failed = [root for root in roots if root.status.code == 2]
    assert len(failed) == 1  # the one that was open; the other had ended
    assert all(count == 1 for count in server.ids.values())


def test_an_async_engine_takes_them_too(server: OtlpServer, tmp_path: Path) -> None:
    port = free_port()

    async def run() -> None:
        options: dict[str, Any] = {"num_blocks": 64, "block_size": 4, "device": "cpu", "journal": str(tmp_path)}
        async with AsyncEngine(TINY, metrics_port=port, otlp=server.url, **options) as engine:
            output = await engine.complete(PROMPTS[0], GREEDY)
            assert len(output.outputs[0].token_ids) == 12
            for _ in range(500):
                if scrape(port).get('nanolens_requests_total{finish_reason="length"}') == 1:
                    break
                await asyncio.sleep(0.02)
            else:
                raise AssertionError("the metrics never told of the request")

    asyncio.run(run())
    assert server.ids == spans_of(tmp_path)
    with pytest.raises(OSError, match="refused"):
        scrape(port)


def test_an_exporter_that_is_killed_is_told_of_when_the_engine_is_closed(
    server: OtlpServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from nanolens.inspector.trace_cli import main as nano_trace

    llm = tiny_llm(journal=str(tmp_path), otlp=server.url)
    assert llm.engine.exporting is not None
    os.kill(llm.engine.exporting.pid, signal.SIGKILL)
    llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    llm.close()
    (told,) = [record.getMessage() for record in caplog.records if "exporter" in record.getMessage()]
    assert "ended by signal 9 before the engine was closed" in told
    command = told.partition("nano-trace ")[2].removesuffix(" sends it").split()
    assert nano_trace(command) == 0
    assert server.ids == spans_of(tmp_path)


def test_an_exporter_that_is_killed_beside_a_temporary_journal_is_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    llm = tiny_llm(metrics_port=0)
    assert llm.engine.exporting is not None
    os.kill(llm.engine.exporting.pid, signal.SIGKILL)
    llm.close()
    (told,) = [record.getMessage() for record in caplog.records if "exporter" in record.getMessage()]
    assert "ended by signal 9" in told and "are lost" in told


def test_an_exporter_that_ends_in_order_is_not_told_of(server: OtlpServer, caplog: pytest.LogCaptureFixture) -> None:
    llm = tiny_llm(metrics_port=0, otlp=server.url)
    llm.close()
    assert not [record for record in caplog.records if "exporter" in record.getMessage()]


def test_a_killed_engine_is_seen_by_scrapes_and_a_next_one_gets_its_port(server: OtlpServer, tmp_path: Path) -> None:
    port = free_port()

    async def run() -> None:
        options: dict[str, Any] = {"num_blocks": 64, "block_size": 4, "device": "cpu", "journal": str(tmp_path)}
        engine = await AsyncEngine.start(TINY, metrics_port=port, otlp=server.url, **options)
        await engine.complete(PROMPTS[0], GREEDY)
        os.kill(engine.pid, signal.SIGKILL)
        await engine.close()

    asyncio.run(run())
    wait_until(lambda: scrape(port)["nanolens_engine_up"] == 0)
    wait_until(lambda: server.ids == spans_of(tmp_path))
    wait_until(lambda: next_one(port))
    with pytest.raises(OSError, match="refused"):
        scrape(port)


def next_one(port: int) -> bool:
    """Whether an engine could be started and closed with its metrics at a port."""
    try:
        llm = tiny_llm(metrics_port=port)
    except InvalidConfig:  # the one before does not linger yet
        return False
    llm.close()
    return True
