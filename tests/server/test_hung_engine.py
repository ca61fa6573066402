"""An engine that hangs, or a client: requests end at their deadlines, control paths answer, SIGTERM ends it."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from serve import Answer, Server, completion
from sse_wire import parsed


@contextmanager
def hung(server: Server) -> Iterator[None]:
    """Stop the engine's process meanwhile; it may be killed in that time."""
    pid = server.engine_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass


def in_thread(server: Server, body: dict[str, Any], answers: list[Answer]) -> threading.Thread:
    thread = threading.Thread(target=lambda: answers.append(server.post("/v1/completions", body)), daemon=True)
    thread.start()
    return thread


def arrived(server: Server, count: int) -> bool:
    return bool(server.snapshot()["totals"]["requests_arrived"] == count)


def test_sigterm_gives_every_client_an_error_and_ends_with_a_failure(tmp_path: Path) -> None:
    with Server(tmp_path, num_blocks=3200, drain_seconds=0.5, stall_seconds=2) as server:
        answers: list[Answer] = []
        long = completion([1, 2], max_tokens=1000)
        threads = [in_thread(server, long, answers) for _ in range(3)]
        streams = [server.stream("/v1/completions", long) for _ in range(3)]
        for stream in streams:
            next(stream.events())
        server.wait_until(lambda: arrived(server, 6), "busy")
        with hung(server):
            server.process.send_signal(signal.SIGTERM)
            for stream in streams:
                events = list(stream.events())
                assert parsed(events)[-1]["error"]["code"] == "stopping"
                stream.__exit__(None, None, None)
            for thread in threads:
                thread.join(30)
            assert [(each.status, each.error["code"]) for each in answers] == [(503, "stopping")] * 3
            assert server.wait_gone() == 1
        assert "was killed" in server.said.splitlines()[-1] and "Traceback" not in server.said


def test_a_request_ends_at_its_own_deadline(tmp_path: Path) -> None:
    with Server(tmp_path, num_blocks=3200) as server:
        long = completion([1, 2], max_tokens=1000, timeout=0.5)
        with server.stream("/v1/completions", long) as stream:
            next(stream.events())
            with hung(server):
                assert parsed(list(stream.events()))[-1]["error"]["code"] == "timeout"
                plain = server.post("/v1/completions", long)  # the engine does not even take it
                assert (plain.status, plain.error["code"]) == (504, "timeout")
        server.wait_idle()  # once it goes on, the engine hears that they were left


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/debug/snapshot"), ("POST", "/debug/engine/pause"), ("GET", "/debug/breakpoints"),
        ("POST", "/debug/sequences/7/abort"),
    ],
)  # fmt: skip
def test_control_paths_answer_before_and_after_it_is_seen_to_hang(
    hung_server: Server, method: str, path: str
) -> None:
    for _ in range(2):
        answer = hung_server.request(method, path)
        assert (answer.status, answer.error["code"]) == (503, "engine_silent")


@pytest.fixture(scope="module")
def hung_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("hung"), stall_seconds=1) as server:
        with hung(server):
            yield server
        server.wait_until(lambda: server.get("/health").status == 200, "well again")


def test_sigterm_with_a_client_that_never_reads_closes_its_connection(tmp_path: Path) -> None:
    with Server(tmp_path, num_blocks=8000, max_num_seqs=64, drain_seconds=0.5) as server:
        body = completion([1, 2], max_tokens=1000, n=16, logprobs=5, stream=True)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", server.port))
            payload = json.dumps(body).encode()
            head = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
            client.sendall(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
            server.wait_until(lambda: arrived(server, 1), "taken")
            server.wait_idle()  # what waits for the reader is more than its connection holds
            server.process.send_signal(signal.SIGTERM)
            assert server.wait_gone() == 0
        assert "Traceback" not in server.said and "Cancel" not in server.said
