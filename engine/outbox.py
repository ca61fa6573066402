"""Sends what it is given over a connection, in order, from a thread of its own. Knows bytes only."""

from __future__ import annotations

import threading
from multiprocessing.connection import Connection
from queue import SimpleQueue


class Outbox:
    """An unbounded queue before the writing end of a connection: a reader that is slow or stopped holds nobody up.

    Once the other end is gone everything is dropped; whoever reads from the connection notices that it is.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="nanolens-outbox", daemon=True)
        self._thread.start()

    def put(self, message: bytes) -> None:
        """Send a message. Never waits; any thread."""
        self._queue.put(message)

    def close(self, timeout: float | None = None) -> bool:
        """Send what was put so far, and no more; whether that was done within `timeout` seconds."""
        self._queue.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while (message := self._queue.get()) is not None:
                self._connection.send_bytes(message)
        except OSError:
            while self._queue.get() is not None:
                pass
