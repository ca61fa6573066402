"""What an inspector costs the server that it looks at: its step times alone, and beside inspectors, good and bad.

Every measurement of a case has one of the server alone just before it; `nothing` is such a pair without a case, and
shows what the machine itself does. Step times are those of the journal: from the reading of one step to that of the
next, of decode steps.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import pty
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.parse import urlsplit

from ..telemetry.events import StepFinished, StepPlanned
from ..telemetry.reader import JournalReader
from .serve_process import ServerProcess
from .stats import Distribution, median

SETTLE_S = 3.0  # after an inspector was started, until it shows the engine
Window = tuple[int, int]  # clock nanoseconds
Case = Callable[[str], AbstractContextManager[None]]


def main(argv: list[str] | None = None) -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="inspect_attached", description=__doc__)
    parser.add_argument("--model", default="dummy:llama-tiny")
    parser.add_argument("--device", default=None)
    parser.add_argument("--clients", type=int, default=8, help="that ask one after the other [8]")
    parser.add_argument("--seconds", type=float, default=4.0, help="of one measurement [4]")
    parser.add_argument("--rounds", type=int, default=3, help="of all cases [3]")
    options = parser.parse_args(argv)
    windows: dict[str, list[tuple[Window, Window]]] = {name: [] for name in CASES}
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "journal"
        settings = {
            "num_blocks": 2048, "max_num_seqs": options.clients, "journal": journal, "metrics": False,
            "device": options.device,
        }  # fmt: skip
        with ServerProcess(options.model, settings) as server, load(server.url, options.clients):
            time.sleep(SETTLE_S)
            for number in range(options.rounds):
                names = list(CASES)
                for name in names[number % len(names) :] + names[: number % len(names)]:
                    alone = measured(options.seconds)
                    with CASES[name](server.url):
                        beside = measured(options.seconds)
                    windows[name].append((alone, beside))
        report(windows, step_times(journal))
    return 0


def measured(seconds: float) -> Window:
    """Let time pass."""
    begin = time.monotonic_ns()
    time.sleep(seconds)
    return begin, time.monotonic_ns()


def report(windows: dict[str, list[tuple[Window, Window]]], steps: list[tuple[int, int]]) -> None:
    """The table."""
    print(f"{os.cpu_count()} CPUs, {len(steps)} decode steps; milliseconds from one step's end to the next")
    heads = f"{'beside the server':18} {'alone p50':>9} {'p50':>7} {'alone p99':>9} {'p99':>7}"
    print(heads + "  p50 beside / alone: median, and each pair")
    for name, pairs in windows.items():
        alone = Distribution.of([ms for pair in pairs for ms in within(steps, pair[0])])
        beside = Distribution.of([ms for pair in pairs for ms in within(steps, pair[1])])
        if alone.p50 is None or beside.p50 is None:
            print(f"{name:18} no decode step was measured")
            continue
        ratios = [median(within(steps, b)) / median(within(steps, a)) for a, b in pairs]
        each = " ".join(f"{ratio:.3f}" for ratio in ratios)
        figures = f"{alone.p50:9.3f} {beside.p50:7.3f} {alone.p99:9.3f} {beside.p99:7.3f}"
        print(f"{name:18} {figures}  {median(ratios):.3f}: {each}")


def within(steps: list[tuple[int, int]], window: Window) -> list[float]:
    """Milliseconds of the steps that ended in a window."""
    return [interval / 1e6 for t, interval in steps if window[0] <= t < window[1]]


def step_times(journal: Path) -> list[tuple[int, int]]:
    """(end, interval since the end before) of each decode step, in nanoseconds."""
    kinds: dict[int, str] = {}
    found: list[tuple[int, int]] = []
    before, last_step = 0, -1
    for frame in JournalReader(journal).frames():
        for event in frame.events:
            if isinstance(event, StepPlanned):
                kinds[event.step] = event.kind
            elif isinstance(event, StepFinished):
                if kinds.pop(event.step, "") == "decode" and event.step == last_step + 1:
                    found.append((event.t, event.t - before))
                before, last_step = event.t, event.step
    return found


# Cases: each takes the server's URL, and is there while the block lasts.


@contextlib.contextmanager
def nothing(url: str) -> Iterator[None]:
    """No inspector: what the machine itself changes from one measurement to the next."""
    yield


@contextlib.contextmanager
def attached(url: str) -> Iterator[None]:
    """nano-inspect in a terminal, live."""
    with inspector(url):
        yield


@contextlib.contextmanager
def suspended(url: str) -> Iterator[None]:
    """nano-inspect, stopped by SIGSTOP with its connection open."""
    with inspector(url) as pid:
        os.kill(pid, signal.SIGSTOP)
        yield


@contextlib.contextmanager
def killed(url: str) -> Iterator[None]:
    """nano-inspect, killed by SIGKILL."""
    with inspector(url) as pid:
        os.kill(pid, signal.SIGKILL)
        yield


@contextlib.contextmanager
def slow_reader(url: str) -> Iterator[None]:
    """Four readers of the journal from its start that take a kilobyte a second each."""
    stop = threading.Event()
    place = urlsplit(url)

    def read() -> None:
        with socket.create_connection((place.hostname, place.port)) as connection:
            connection.sendall(f"GET /debug/journal?from=start HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
            while not stop.wait(1.0):
                connection.recv(1024)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    time.sleep(SETTLE_S)
    try:
        yield
    finally:
        stop.set()
        for reader in readers:
            reader.join()


CASES: dict[str, Case] = {
    "nothing": nothing, "attached": attached, "suspended": suspended, "killed": killed, "slow readers": slow_reader,
}  # fmt: skip


@contextlib.contextmanager
def inspector(url: str) -> Iterator[int]:
    """nano-inspect at a server, in a terminal of 160x50 that somebody reads; its process."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-P", "-m", "nanolens.inspector.inspect_cli", url]
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "160", "LINES": "50"}
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    painted = [0]

    def drain() -> None:
        with contextlib.suppress(OSError):
            while data := os.read(ours, 1 << 16):
                painted[0] += len(data)

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    try:
        time.sleep(SETTLE_S)
        if process.poll() is not None or not painted[0]:
            raise SystemExit(f"nano-inspect did not start (exit code {process.poll()})")
        yield process.pid
    finally:
        process.kill()
        process.wait()
        reader.join(5.0)
        os.close(ours)


@contextlib.contextmanager
def load(url: str, clients: int) -> Iterator[None]:
    """So many clients, each with a request at any time."""
    stop = threading.Event()
    place = urlsplit(url)

    def ask(number: int) -> None:
        rng = random.Random(number)
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection(str(place.hostname), place.port)
            model = _model(connection)
            while not stop.is_set():
                body = {"model": model, "prompt": [rng.randrange(256) for _ in range(32)], "max_tokens": 400,
                        "ignore_eos": True}  # fmt: skip
                connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
                connection.getresponse().read()

    threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


def _model(connection: http.client.HTTPConnection) -> str:
    connection.request("GET", "/version")
    return str(json.loads(connection.getresponse().read())["model"])


if __name__ == "__main__":
    sys.exit(main())
