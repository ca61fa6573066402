"""A small server under load, as a source: started with the inspector and gone with it, however that ends."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys

from ...errors import InspectError
from .server_source import ServerSource

CHILD_MODULE = "nanolens.inspector.sources.demo_child"
READY = "ready"
END_S = 15.0


class DemoSource(ServerSource):
    """A nano-serve on a tiny model without weights, and clients that keep it busy.

    A child process runs both. It ends when its input does, so that nothing outlives the inspector, not even a killed
    one.
    """

    def __init__(self) -> None:
        self._place = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        # Bound and not listening, it keeps the port from others until the server, which reuses it, is there.
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._place.bind(("127.0.0.1", 0))
        self._port = self._place.getsockname()[1]
        self._child: subprocess.Popen[str] | None = None
        super().__init__(f"http://127.0.0.1:{self._port}")
        self.title = "demo"

    @property
    def child_pid(self) -> int | None:
        """The child process; None before the start."""
        return self._child.pid if self._child is not None else None

    def start(self) -> None:
        """Start the server and its clients, and attach to it: some seconds.

        Raises:
            InspectError: it does not start; with what it said.
        """
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", CHILD_MODULE, str(self._port)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace",
            start_new_session=True,  # a Ctrl-C in the terminal is the inspector's
        )  # fmt: skip
        said = self._child.stdout.read() if self._child.stdout is not None else ""  # it closes its output once it is up
        self._place.close()
        if said.strip() != READY:
            self.close()
            raise InspectError(f"the demo's server did not start: {said.strip() or 'it said nothing'}")
        super().start()

    def close(self) -> None:
        """End the server and its clients. May be called again."""
        super().close()
        self._place.close()
        child, self._child = self._child, None
        if child is None:
            return
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            child.wait(END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
