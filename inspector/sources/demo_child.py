"""The process behind `nano-inspect --demo`: a server, its clients, and their end when standard input ends.

Knows the server's command line and its HTTP, nothing of the engine.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from .demo import READY

MODEL = "dummy:llama-tiny"
# A pool that holds about half of what ten sequences grow to, so that some wait and some lose their place.
OPTIONS = {
    "num-blocks": "256", "block-size": "16", "max-num-seqs": "10", "max-model-len": "1536", "max-prefill-chunk": "64",
    "policy": "priority", "preemption": "auto", "host-blocks": "96", "journal-cap": "256MiB", "drain-seconds": "0",
    "log-level": "warning", "served-model-name": "demo", "device": "cpu", "seed": "0",
}  # fmt: skip
CLIENTS = 15
START_S, STOP_S = 120.0, 8.0
PREFIXES = (96, 160, 240)  # tokens that requests share
_OWN = ("NANOLENS_STATE_DIR",)
_PR_SET_PDEATHSIG = 1


def main(port: int) -> int:
    """Serve on a port until standard input ends; 1: the server did not start."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    directory = Path(tempfile.mkdtemp(prefix="nanolens-demo-"))
    server = None
    try:
        with (directory / "log").open("wb") as log:
            server = _start(port, directory, log.fileno())
        if not _wait_ready(port, server):
            print((directory / "log").read_text(errors="replace")[-1000:], flush=True)
            return 1
        print(READY, flush=True)
        sys.stdout.close()
        os.close(1)
        for number in range(CLIENTS):
            client = Client(port, number)
            threading.Thread(target=client.run, name=f"client {number}", daemon=True).start()
        while sys.stdin.buffer.read(1) and server.poll() is None:
            pass
        return 0
    finally:
        if server is not None:
            _end(server)
        shutil.rmtree(directory, ignore_errors=True)


class Client:
    """One who keeps asking: shared prefixes, priorities, siblings, and requests that pause and go on."""

    def __init__(self, port: int, number: int) -> None:
        self._port = port
        self._random = random.Random(number)

    def run(self) -> None:
        """Ask until the process ends."""
        while True:
            try:
                self._ask_once()
            except (OSError, http.client.HTTPException, ValueError, KeyError):
                time.sleep(0.5)  # the server is paused, or ends

    def _ask_once(self) -> None:
        rng = self._random
        pauses = rng.random() < 0.2
        body: dict[str, Any] = {
            "model": "demo", "prompt": self._prompt(), "max_tokens": rng.randint(100, 900), "temperature": 1.0,
            "ignore_eos": True, "priority": rng.choice((0, 0, 0, 1, 1, -1)), "n": rng.choice((1, 1, 1, 1, 1, 2)),
        }  # fmt: skip
        if pauses:
            body |= {"on_stop": "pause", "max_tokens": rng.randint(50, 200), "n": 1}
        answer = self._post("/v1/completions", body)
        if pauses and answer["choices"][0]["finish_reason"] == "pause":
            time.sleep(rng.uniform(1, 4))
            name = answer["id"]
            self._post(f"/v1/requests/{name}/resume", {"append": " and", "max_tokens": rng.randint(50, 200)})
            self._post(f"/v1/requests/{name}/finish", {})
        time.sleep(rng.uniform(0.0, 0.5))

    def _prompt(self) -> list[int]:
        kind = self._random.randrange(len(PREFIXES) + 1)
        shared = random.Random(kind)
        size = PREFIXES[kind] if kind < len(PREFIXES) else 0
        prefix = [shared.randrange(256) for _ in range(size)]
        return prefix + [self._random.randrange(256) for _ in range(self._random.randint(4, 80))]

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise ValueError(f"{path}: {answer.status}")
        return dict(json.loads(data))


def _start(port: int, directory: Path, log: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "nanolens.server.cli", MODEL, "--host", "127.0.0.1", "--port", str(port)]
    command += [f"--{name}={value}" for name, value in OPTIONS.items()]
    command += ["--journal", str(directory / "journal"), "--no-metrics"]
    environment = {name: value for name, value in os.environ.items() if name in _OWN or not name.startswith("NANOLENS")}
    environment.setdefault("OMP_NUM_THREADS", "1")
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, preexec_fn=_end_with_parent
    )  # fmt: skip


def _end_with_parent() -> None:
    """Have the system end this process when its parent is killed; where it can't, the parent's end is all there is."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait_ready(port: int, server: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + START_S
    while server.poll() is None and time.monotonic() < deadline:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/ready")
            if connection.getresponse().status == 200:
                return True
        except (OSError, http.client.HTTPException):
            time.sleep(0.05)
        finally:
            connection.close()
    return False


def _end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(STOP_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
