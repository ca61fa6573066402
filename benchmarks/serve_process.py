"""A nano-serve of one's own: started on a free port, ended in order. Knows its command line and its first lines."""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from ..errors import EngineDead

_URL = re.compile(r"OpenAI API\s+(http://\S+)/v1")
START_S, STOP_S = 600.0, 60.0


class ServerProcess:
    """A server that is ready, and gone at the end of the `with`.

    Args:
        model: as on the command line.
        options: settings by name.
        environment: variables beside this process's.

    Attributes:
        url: where it is.

    Raises:
        EngineDead: it did not start; with what it said.
    """

    def __init__(self, model: str, options: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, "-P", "-m", "nanolens.server.cli", model, "--host", "127.0.0.1", "--port", "0"]
        command += [text for name, value in options.items() if value is not None for text in _flag(name, value)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=os.environ | dict(environment or {}),
            text=True,
            errors="replace",
        )
        self._said: list[str] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="nano-serve's output", daemon=True)
        self._reader.start()
        try:
            self.url = self._wait_ready()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Of the process that holds HTTP."""
        return self._process.pid

    def close(self) -> None:
        """Tell it to end, and wait; kill it when it does not. May be called again."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._reader.join(STOP_S)
        if self._process.stderr is not None:
            self._process.stderr.close()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        for line in self._process.stderr or ():
            self._said.append(line)
            self._lines.put(line)
        self._lines.put(None)

    def _wait_ready(self) -> str:
        url, deadline = "", time.monotonic() + START_S
        while time.monotonic() < deadline:
            try:
                line = self._lines.get(timeout=1.0)
            except queue.Empty:
                continue
            if line is None:
                break
            found = _URL.search(line)
            url = found[1] if found else url
            if "ready after" in line and url:
                return url
        raise EngineDead(f"nano-serve did not start: {''.join(self._said)[-2000:].strip() or 'it said nothing'}")


def _flag(name: str, value: object) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", str(value)]
