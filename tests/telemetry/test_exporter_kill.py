"""The exporter as a process: killed, told to end, its endpoint away. Nothing is lost, at most one batch comes twice."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from opentelemetry.sdk.trace import ReadableSpan

from journals import busy_engine
from nanolens.telemetry.cursor import CURSOR_SUFFIX, CursorFile
from nanolens.telemetry.reader import JournalReader
from nanolens.telemetry.spans import SpanBuilder
from otlp_receivers import OtlpServer, free_port, ids, wait_until

BATCH = 8


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("journal")
    engine = busy_engine(path)
    engine.close()
    return path


@pytest.fixture(scope="module")
def expected(journal: Path) -> list[ReadableSpan]:
    builder = SpanBuilder()
    for frame in JournalReader(journal).frames():
        builder.apply_all(frame.events)
    return builder.take()


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """`start(journal, "--otlp", url)` is `nano-trace export` as a process."""
    started: list[subprocess.Popen[str]] = []

    def begin(journal: Path, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-m", "nanolens.inspector.trace_cli", "export", str(journal), *arguments]
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def test_a_kill_loses_nothing_and_doubles_at_most_the_batch_that_was_under_way(
    journal: Path, expected: list[ReadableSpan], tmp_path: Path, start: Start
) -> None:
    rng = random.Random(3)
    arguments = ["--batch", str(BATCH), "--cursor", str(tmp_path / "cursor")]
    with OtlpServer() as server:
        take = server.take
        server.take = lambda body: (time.sleep(0.01), take(body))[1]  # type: ignore[method-assign]
        kills = 0
        for target in (60, 150, 280):
            process = start(journal, "--otlp", server.url, *arguments)
            wait_until(lambda target=target: len(server.spans) >= target)
            time.sleep(rng.uniform(0.0, 0.02))
            kills += process.poll() is None
            process.kill()
            process.communicate()
        process = start(journal, "--otlp", server.url, *arguments)
        _, told = process.communicate(timeout=60)
        assert process.returncode == 0, told
        assert kills == 3
        assert set(server.ids) == set(ids(expected))
        assert sum(server.ids.values()) - len(server.ids) <= kills * BATCH
        assert max(server.ids.values()) <= 1 + kills


def test_a_killed_export_into_a_file_leaves_no_copy_and_no_half_line(
    journal: Path, expected: list[ReadableSpan], tmp_path: Path, start: Start
) -> None:
    out = tmp_path / "spans.jsonl"
    arguments = ["--file", str(out), "--batch", str(BATCH)]
    for size in (5_000, 50_000):
        process = start(journal, *arguments)
        wait_until(lambda size=size, process=process: process.poll() is not None or (
            out.exists() and out.stat().st_size >= size))  # fmt: skip
        process.kill()
        process.communicate()
    cursor = CursorFile(Path(f"{out}{CURSOR_SUFFIX}")).load()
    if cursor is None or not cursor.ended:  # an export that was killed at its very end leaves nothing half done
        with out.open("ab") as file:
            file.write(b'{"resourceSpans":[{"half')  # as a kill in the middle of a write leaves it
    process = start(journal, *arguments)
    process.communicate(timeout=60)
    got = [
        span["spanId"]
        for line in out.read_text().splitlines()
        for resource in msgspec.json.decode(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
    assert sorted(got) == sorted(ids(expected))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_everything_sent_that_was_read(
    tmp_path: Path, number: signal.Signals, start: Start
) -> None:
    engine = busy_engine(tmp_path / "journal")
    try:
        with OtlpServer() as server:
            process = start(tmp_path / "journal", "--otlp", server.url, "--remote", "--batch", "100000")
            wait_until(lambda: server.spans)
            process.send_signal(number)
            _, told = process.communicate(timeout=60)
            assert process.returncode == 0, told
            builder = SpanBuilder()
            for frame in JournalReader(tmp_path / "journal").frames():
                builder.apply_all(frame.events)
            assert server.ids == ids(builder.take())
            assert list((tmp_path / "journal").glob("run.*.cursor"))
    finally:
        engine.close()


def test_told_to_end_while_the_endpoint_is_away_it_keeps_its_place_and_says_what_is_left(
    journal: Path, expected: list[ReadableSpan], tmp_path: Path, start: Start
) -> None:
    port, cursor = free_port(), str(tmp_path / "cursor")
    process = start(journal, "--otlp", f"http://127.0.0.1:{port}", "--drain", "0.2", "--cursor", cursor)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 1
    assert told.count("spans are kept") == 1
    assert f"{len(expected)} left for the next export" in told
    with OtlpServer(port) as server:
        process = start(journal, "--otlp", server.url, "--cursor", cursor)
        process.communicate(timeout=60)
        assert server.ids == ids(expected)


def test_while_the_endpoint_is_down_the_journal_is_read_on_and_afterwards_nothing_is_missing(
    tmp_path: Path, start: Start
) -> None:
    """The endpoint goes away in the middle of a run, the engine works on, and it comes back."""
    engine = busy_engine(tmp_path / "journal")
    with OtlpServer() as server:
        process = start(tmp_path / "journal", "--otlp", server.url, "--remote", "--drain", "60")
        lines: list[str] = []
        reading = threading.Thread(target=lambda: lines.extend(process.stderr or ()), daemon=True)
        reading.start()
        wait_until(lambda: server.spans)
        server.close()
        for i in range(10):
            engine.add([50 + i] * 6, max_tokens=12)
        engine.run()
        wait_until(lambda: any("spans are kept" in line for line in lines))
        server.open()
        engine.close()
        process.wait(60)
        reading.join()
        builder = SpanBuilder()
        for frame in JournalReader(tmp_path / "journal").frames():
            builder.apply_all(frame.events)
        assert set(server.ids) == set(ids(builder.take()))
        assert sum("spans are kept" in line for line in lines) == 1
        assert sum("back after" in line for line in lines) == 1
        assert process.returncode == 0
