"""`nano-serve` as a process of its own, for tests: started on a free port, asked over HTTP, ended by its pid."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from metric_runs import Key, samples
from nanolens.telemetry.events import EngineStarted, Keyframe
from nanolens.telemetry.reader import JournalReader
from otlp_receivers import free_port
from sse_wire import WireStream

TINY = "dummy:llama-tiny"
NAME = "test"  # of the model, as requests name it
VOCAB_SIZE = 264
DEADLINE_S = 30.0
BIG = {"max_tokens": 900, "n": 4, "logprobs": 20, "temperature": 1.0}  # some megabytes, more than sockets hold
_MARK = "NANOLENS_TEST_SERVER"  # in the environment of the server, and so of everything that it starts


@dataclass(frozen=True)
class Answer:
    """What came back; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error, in OpenAI's shape."""
        error: dict[str, Any] = self.json["error"]
        assert {"message", "type", "param", "code"} <= error.keys(), error
        return error


class Server:
    """A server that is ready. A context manager: at its end the process gets SIGTERM, and nothing of it may be left.

    Args:
        directory: where its journal and its log go.
        model: as on the command line.
        environment: added to this process's.
        flags: settings by name, as `num_blocks=64`; True is a flag without a value. Blocks of 4 tokens, 256 of them,
            audited, if not told otherwise.
    """

    deadline_s = DEADLINE_S  # for what is waited for

    def __init__(
        self, directory: Path, model: str = TINY, environment: Mapping[str, str] | None = None, **flags: Any
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.journal = directory / "journal"
        self.log = directory / "serve.log"
        self._mark = uuid.uuid4().hex
        defaults = {
            "served_model_name": NAME, "num_blocks": 256, "block_size": 4, "device": "cpu", "audit": True, "seed": 0,
        }  # fmt: skip
        command = [sys.executable, "-P", "-m", "nanolens.server.cli", model, "--host", "127.0.0.1"]
        for name, value in (defaults | {"port": self.port, "journal": self.journal} | flags).items():
            flag = "--" + name.replace("_", "-")
            command += [flag] if value is True else [flag, str(value)]
        own = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", _MARK: self._mark, "PYTHONUNBUFFERED": "1"}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env=os.environ | own | dict(environment or {}), start_new_session=True,
            )  # fmt: skip
        try:
            self.wait_until(lambda: self.get("/ready").status == 200, "ready")
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.process.poll() is None:
                self.process.terminate()
                self.process.wait(self.deadline_s)
            if error is None:
                self.wait_gone()
        finally:
            self.kill()

    @property
    def said(self) -> str:
        """What it has printed."""
        return self.log.read_text(errors="replace")

    @property
    def engine_pid(self) -> int:
        """The process of the engine, as its journal names it."""
        for frame in JournalReader(self.journal).frames():
            for event in frame.events:
                if isinstance(event, EngineStarted | Keyframe):
                    return event.pid if isinstance(event, EngineStarted) else event.started.pid
        raise AssertionError("the journal names no process")

    def pids(self) -> list[int]:
        """Live processes of this server, itself included."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError, IndexError):
                    state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                    if state != "Z" and f"{_MARK}={self._mark}".encode() in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
        return found

    def kill(self) -> None:
        """End what there still is of it, at once."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def wait_gone(self) -> int:
        """Wait until it has ended, with everything that it started: its exit code."""
        code = self.process.wait(self.deadline_s)
        deadline = time.monotonic() + 5.0
        while self.pids() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not self.pids(), f"processes left behind: {self.pids()}\n{self.said}"
        return code

    def wait_until(self, what: Callable[[], object], meaning: str) -> None:
        """Poll until something holds, for as long as the server lives."""
        deadline = time.monotonic() + self.deadline_s
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if what():
                    return
            assert self.process.poll() is None, f"the server ended with {self.process.returncode}\n{self.said}"
            assert time.monotonic() < deadline, f"not {meaning} in time\n{self.said}"
            time.sleep(0.02)

    def request(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request on a connection of its own; a body is sent as JSON, bytes as they are."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        own = dict(headers or {})
        payload = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        if payload is not None:
            own = {"Content-Type": "application/json"} | own
        try:
            connection.request(method, path, payload, own)
            answer = connection.getresponse()
            named = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, named, answer.read())
        finally:
            connection.close()

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self.request("GET", path, headers=headers)

    def post(self, path: str, body: object, headers: Mapping[str, str] | None = None) -> Answer:
        return self.request("POST", path, body, headers)

    def stream(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> WireStream:
        """A request that streams, read from the socket."""
        return WireStream(self.port, path, {**body, "stream": True}, headers)

    def complete(self, prompt: object, **fields: Any) -> dict[str, Any]:
        """A completion that works, greedy if not told otherwise."""
        answer = self.post("/v1/completions", completion(prompt, **fields))
        assert answer.status == 200, answer.body
        whole: dict[str, Any] = answer.json
        return whole

    def snapshot(self) -> dict[str, Any]:
        """GET /debug/snapshot."""
        answer = self.get("/debug/snapshot")
        assert answer.status == 200, answer.body
        found: dict[str, Any] = answer.json
        return found

    def is_idle(self) -> bool:
        """Whether nothing lives in the engine."""
        return not self.snapshot()["sequences"]

    def abort_all(self) -> None:
        """End every request that lives."""
        for request in {sequence["request"] for sequence in self.snapshot()["sequences"]}:
            self.post(f"/debug/sequences/{request}/abort", {})

    def wait_idle(self) -> None:
        """Wait until nothing lives in the engine any more."""
        self.wait_until(self.is_idle, "idle")

    def metrics(self) -> dict[Key, float]:
        """A scrape: value by name and labels."""
        answer = self.get("/metrics")
        assert answer.status == 200, answer.body
        return samples(answer.body)

    def events(self) -> list[Any]:
        """What the journal holds by now."""
        return [event for frame in JournalReader(self.journal).frames() for event in frame.events]


def completion(prompt: object, **fields: Any) -> dict[str, Any]:
    """The body of a completion: greedy, to its full length, if not told otherwise."""
    return {"model": NAME, "prompt": prompt, "temperature": 0, "max_tokens": 16, "ignore_eos": True} | fields


def reader_that_does_not_read(server: Server, name: str) -> socket.socket:
    """A connection that has sent a request and takes as little of its answer as the system lets it."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", server.port))
    body = json.dumps(completion([1, 2, 3], stream=True, **BIG)).encode()
    headers = {"Host": "localhost", "Content-Type": "application/json", "X-Request-Id": name}
    headers["Content-Length"] = str(len(body))
    head = "".join(f"{key}: {value}\r\n" for key, value in headers.items())
    connection.sendall(f"POST /v1/completions HTTP/1.1\r\n{head}\r\n".encode() + body)
    return connection
