"""SIGTERM under load, and the death of the engine's process: every client learns of it, and the journal stays whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import openai
import pytest
from openai import OpenAI

from nanolens.telemetry.audit import Audit
from nanolens.telemetry.events import EngineStopped
from nanolens.telemetry.reader import JournalReader
from serve import NAME, Server, completion
from sse_wire import WireStream, ends, parsed

NUM_CLIENTS = 12
TOLD_WITHIN_S = 2.0


class Client(threading.Thread):
    """One request in a thread.

    Attributes:
        began: set when the first event of the stream has come.
        outcome: how it ended: "end" (each choice had its finish reason), "error" (an error event or answer), or
            "cut" (the connection closed without a word).
        told: when, as time.monotonic.
    """

    def __init__(self, server: Server, number: int, max_tokens: int) -> None:
        super().__init__(daemon=True)
        self.server, self.streams = server, number % 3 != 2
        self.body = completion([number, 1, 2], max_tokens=max_tokens)
        self.began = threading.Event()
        self.outcome, self.told, self.detail = "", 0.0, ""

    def run(self) -> None:
        try:
            self.outcome = self._stream() if self.streams else self._plain()
        except Exception as error:
            self.outcome, self.detail = "cut", repr(error)
        self.told = time.monotonic()
        self.began.set()

    def _plain(self) -> str:
        answer = self.server.post("/v1/completions", self.body)
        if answer.status == 200:
            return "end" if answer.json["choices"][0]["finish_reason"] in ("length", "abort") else "cut"
        self.detail = answer.error["message"]
        return "error"

    def _stream(self) -> str:
        with WireStream(self.server.port, "/v1/completions", self.body | {"stream": True}) as stream:
            if stream.status != 200:
                self.detail = json.loads(stream.body())["error"]["message"]
                return "error"
            events = []
            for event in stream.events():
                self.began.set()
                events.append(event)
        chunks = parsed(events)
        if "error" in chunks[-1]:
            self.detail = chunks.pop()["error"]["message"]
            return "error" if ends(chunks) == {} else "cut"
        return "end" if ends(chunks)[0] in ("length", "abort") else "cut"


def start_clients(server: Server, max_tokens: int = 300) -> list[Client]:
    """Clients, of which one in three does not stream; returns when the engine has all of them."""
    clients = [Client(server, number, max_tokens) for number in range(NUM_CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        assert not client.streams or client.began.wait(60)
    arrived = "requests_arrived"
    server.wait_until(lambda: server.snapshot()["totals"][arrived] == NUM_CLIENTS, "busy")
    return clients


def outcomes(clients: list[Client]) -> list[tuple[str, str]]:
    for client in clients:
        client.join(60)
        assert not client.is_alive(), "a client hangs"
    return [(client.outcome, client.detail) for client in clients]


def check_journal(server: Server) -> None:
    """The journal reads back whole, adds up, and `nano-trace check` says so."""
    audit, reader = Audit(), JournalReader(server.journal)
    for frame in reader.frames():
        assert not frame.gap
        audit.apply_all(frame.events)
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "nanolens.inspector.trace_cli", "check", str(server.journal)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 0 and ": ok: " in ran.stdout, ran.stdout + ran.stderr


def test_sigterm_under_load_gives_every_client_an_end_or_an_error(tmp_path: Path) -> None:
    with Server(tmp_path, drain_seconds=0.2, num_blocks=1200) as server:
        clients = start_clients(server)
        server.process.send_signal(signal.SIGTERM)
        found = outcomes(clients)
        assert {outcome for outcome, _ in found} <= {"end", "error"}, found
        assert server.wait_gone() == 0, server.said
        assert isinstance(server.events()[-1], EngineStopped)
        check_journal(server)


def test_sigterm_lets_what_runs_finish_and_refuses_what_comes(tmp_path: Path) -> None:
    with Server(tmp_path, drain_seconds=60, num_blocks=1200) as server:
        clients = start_clients(server)
        server.process.send_signal(signal.SIGTERM)
        server.wait_until(lambda: _refused(server), "refusing")
        found = outcomes(clients)
        assert {outcome for outcome, _ in found} == {"end"}, found
        assert server.wait_gone() == 0, server.said
        check_journal(server)


def _refused(server: Server) -> bool:
    """Whether a new request is refused: by 503, or because nobody listens any more."""
    try:
        answer = server.post("/v1/completions", completion([1], max_tokens=1))
    except OSError:
        return True
    return answer.status == 503 and bool(answer.error["message"])


def test_a_killed_engine_is_an_error_to_every_client_within_two_seconds(tmp_path: Path) -> None:
    with Server(tmp_path, num_blocks=3200) as server:
        clients = start_clients(server, max_tokens=1000)
        os.kill(server.engine_pid, signal.SIGKILL)
        killed = time.monotonic()
        deadline = killed + TOLD_WITHIN_S
        for client in clients:
            client.join(max(0.0, deadline - time.monotonic()))
        late = [client for client in clients if client.is_alive()]
        assert not late, f"{len(late)} clients wait still"
        found = outcomes(clients)
        assert {outcome for outcome, _ in found} == {"error"}, found
        server.wait_until(lambda: server.get("/health").status == 503, "unhealthy")
        assert server.get("/ready").status == 503
        assert server.post("/v1/completions", completion([1])).status == 503
        check_journal(server)


def test_a_killed_server_takes_its_engine_along(tmp_path: Path) -> None:
    with Server(tmp_path, num_blocks=3200) as server:
        clients = start_clients(server, max_tokens=1000)
        os.kill(server.process.pid, signal.SIGKILL)
        found = outcomes(clients)
        assert {outcome for outcome, _ in found} == {"cut"}, found
        assert server.wait_gone() == -signal.SIGKILL
        check_journal(server)


def test_the_openai_client_raises_when_the_engine_dies(tmp_path: Path) -> None:
    with Server(tmp_path) as server, OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        stream = client.completions.create(model=NAME, prompt="a", max_tokens=900, temperature=0, stream=True)
        next(stream)
        os.kill(server.engine_pid, signal.SIGKILL)
        with pytest.raises(openai.APIError, match="engine"):
            list(stream)
        with pytest.raises(openai.InternalServerError) as caught:
            client.completions.create(model=NAME, prompt="a")
        assert caught.value.status_code == 503
