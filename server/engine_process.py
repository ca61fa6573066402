"""The engine's process under `nano-serve`: it says what it is doing, and leaves signals to the server."""

from __future__ import annotations

import logging
import os
import signal
from multiprocessing.connection import Connection

from ..engine import core_process
from ..engine.async_engine import AsyncEngine

LOG_LEVEL = "NANOLENS_LOG_LEVEL"  # the server's own variable, which this process inherits
LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def main(connection: Connection) -> None:
    """Run the engine for the server at the other end of the pipe.

    SIGTERM, which a service manager sends to every process of a service, is the server's to handle: requests that run
    may finish. When the server is gone the engine ends all the same.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    start_logging(os.environ.get(LOG_LEVEL, "info"))
    core_process.main(connection)


def start_logging(level: str) -> None:
    """Have this package's messages written to stderr, from a level on; of others, warnings."""
    logging.basicConfig(format=LOG_FORMAT, level=logging.WARNING)
    logging.getLogger("nanolens").setLevel(level.upper())


class ServedEngine(AsyncEngine):
    """An AsyncEngine whose process is `main` above."""

    _main = staticmethod(main)
