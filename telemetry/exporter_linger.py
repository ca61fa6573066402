"""The time after an engine's death in which its metrics are still served, and how a successor gets the port before.

An exporter that lingers listens at an abstract Unix socket that is named after its port. Whoever connects there ends
the lingering; the connection is open until the port is free. Knows nothing of what is served.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time

LEAVE_S = 5.0  # for one that is asked to leave
_LOOK_S = 0.1


class Lingering:
    """Waits, until it is told or asked to end; keeps who asked waiting until `close`.

    Args:
        port: that of the metrics.
    """

    def __init__(self, port: int) -> None:
        self._asked: list[socket.socket] = []
        self._listener: socket.socket | None = None
        if sys.platform == "linux":  # elsewhere there are no abstract sockets, and nobody asks
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                listener.bind(_name(port))
                listener.listen()
                listener.settimeout(_LOOK_S)
                self._listener = listener
            except OSError:
                listener.close()

    def wait(self, seconds: float, told: threading.Event) -> None:
        """Wait for so long, or until `told`, or until a successor asks for the port."""
        deadline = time.monotonic() + seconds
        while not told.is_set() and not self._asked and time.monotonic() < deadline:
            if self._listener is None:
                told.wait(_LOOK_S)
                continue
            with contextlib.suppress(TimeoutError):
                self._asked.append(self._listener.accept()[0])

    def close(self) -> None:
        """Let those who asked go on: the port is free."""
        for each in (*self._asked, *([self._listener] if self._listener is not None else [])):
            each.close()


def ask_to_leave(port: int) -> bool:
    """Ask an exporter that lingers at a port to give it up, and wait until it has: whether there was one."""
    if sys.platform != "linux":
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(LEAVE_S)
        try:
            asking.connect(_name(port))
        except OSError:
            return False
        with contextlib.suppress(OSError):
            asking.recv(1)
        return True


def _name(port: int) -> str:
    return f"\0nanolens-exporter-lingers-{port}"
