"""`nano-inspect --web` in headless Chromium: the page shows a journal, takes keys, and notices the end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from npm_packages import installed
from screens import record

PACKAGES = ("playwright-core@1.65.1",)
SCRIPT = Path(__file__).with_name("browse.js")
PATIENCE_S = 30.0


@pytest.fixture
def chromium(lacks: Callable[[str], NoReturn]) -> str:
    return shutil.which("chromium") or shutil.which("chromium-browser") or lacks("chromium")


def test_a_browser_shows_the_sequences_takes_a_key_and_sees_the_end(
    require: Callable[[str], str], lacks: Callable[[str], NoReturn], chromium: str, tmp_path: Path
) -> None:
    node, packages = require("node"), installed(PACKAGES, require("npm"), lacks)
    pytest.importorskip("textual_serve")
    record(tmp_path / "journal")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = [sys.executable, "-P", "-m", "nanolens.inspector.inspect_cli"]
    command = [*program, str(tmp_path / "journal"), "--web", str(port)]
    with (tmp_path / "said").open("w") as said:
        server = subprocess.Popen(command, stdout=said, stderr=said, stdin=subprocess.DEVNULL)
    try:
        wait_for(port, server)
        picture = tmp_path / "page.png"
        done = subprocess.run(
            [node, str(SCRIPT), str(packages), chromium, f"http://127.0.0.1:{port}/", str(picture)],
            capture_output=True, text=True, timeout=180, env={**os.environ, "HOME": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr + (tmp_path / "said").read_text()
        seen = json.loads(done.stdout)
        assert "37 live sequences" in seen["first"] and "agent-16" in seen["first"]
        assert "shared" in seen["blocks"] and seen["closed"]
        assert seen["foreign"] == []  # nothing of another machine, and nothing that the page's policy forbids
        assert picture.stat().st_size > 20_000  # not an empty page
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
            raise


def wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert server.poll() is None and time.monotonic() < deadline, "nothing is served"
            time.sleep(0.05)
