"""The exporter that runs beside an engine: a process that tails its journal, and ends after it.

Knows how to start it, what it answers, and how long to wait for its end; what it does is telemetry's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from typing import IO

from ..errors import EngineDead, InvalidConfig
from ..telemetry.exporter_order import DRAIN_S, ORDER_MODULE, Order, Ready
from .config import EngineConfig

READY_S = 60.0  # for its modules to load, on a machine that is busy
END_S = DRAIN_S + 5.0
_SAYS_WHY = (0, 1, 2)  # exit codes with which it has said itself what was lost, or that nothing was

logger = logging.getLogger("nanolens.engine")

# The package may have been found along a path that only this process knows.
_PROGRAM = "import runpy, sys; sys.path[:] = {path!r}; runpy.run_module({module!r}, None, '__main__', True)"


class Exporting:
    """An exporter process for one run.

    Args:
        config: settings with `metrics_port` or `otlp`.
        run_id: the run that is about to begin.

    Attributes:
        config: the settings, with the directory of the journal that it tails.
        metrics_port: where the metrics are; None before `wait_ready`, and without metrics.
    """

    def __init__(self, config: EngineConfig, run_id: str) -> None:
        self._temporary = tempfile.mkdtemp(prefix="nanolens-journal-") if config.journal is None else None
        journal = os.path.abspath(config.journal or self._temporary or "")
        self.config = dataclasses.replace(config, journal=config.journal or journal)
        self.metrics_port: int | None = None
        self._order = Order(journal, run_id, os.getpid(), config.otlp, config.metrics_port, self._temporary is not None)
        path = [entry or os.getcwd() for entry in sys.path]
        program = _PROGRAM.format(path=path, module=ORDER_MODULE)
        self._process = subprocess.Popen(
            [sys.executable, "-c", program, self._order.encode()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,  # so that a Ctrl-C in the terminal does not reach it
        )

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def wait_ready(self) -> None:
        """Wait until it serves metrics and follows the journal.

        Raises:
            InvalidConfig: a setting that it can't work with, such as a port that is taken.
            EngineDead: it did not start.
        """
        answers = self._process.stdout
        ready = Ready.decode(_read_line(answers, READY_S)) if answers is not None else None
        if ready is None:
            self.abandon()
            raise EngineDead(f"the exporter's process did not start ({self._state()}); its messages are on stderr")
        if ready.error:
            self.abandon()
            raise InvalidConfig(ready.error)
        self.metrics_port = ready.metrics_port

    def finish(self) -> None:
        """After the engine's last event: wait until it has sent what is left, and end it where that takes too long.

        One that was killed meanwhile is told of. In a process that was forked off the engine's, nothing is done.
        """
        if os.getpid() != self._order.parent:
            return
        try:
            if self._process.wait(END_S) not in _SAYS_WHY:
                logger.warning(self._loss())
        except subprocess.TimeoutExpired:
            logger.warning("the exporter did not end within %.0f s; it is killed", END_S)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """End it at once."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _loss(self) -> str:
        """What it means that the process has ended early."""
        order, code = self._order, self._process.returncode
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        if order.temporary:
            left = "the spans and metrics that it had not sent or served by then are lost"
        elif order.otlp is None:
            left = "no metrics were served from then on"
        else:
            again = shlex.join(["nano-trace", "export", order.journal, "--run", order.run, "--otlp", order.otlp])
            left = f"what it had not sent is in the journal: {again} sends it"
        return f"the exporter (process {self.pid}) was ended {how} before the engine was closed; {left}"

    def _state(self) -> str:
        code = self._process.returncode
        return "it gave no answer" if code is None or code < 0 else f"exit code {code}"


def _read_line(stream: IO[bytes], timeout_s: float) -> bytes:
    """What comes up to the end of a line, of the stream or of the time."""
    deadline, line = time.monotonic() + timeout_s, b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([stream], [], [], max(0.0, deadline - time.monotonic()))
        chunk = os.read(stream.fileno(), 65536) if ready else b""
        if not chunk:
            break
        line += chunk
    return line


def start_exporting(config: EngineConfig, run_id: str) -> Exporting | None:
    """An exporter for a run that is about to begin, or None where the settings ask for none."""
    return Exporting(config, run_id) if config.exports else None
