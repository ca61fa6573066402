"""A time for a whole exchange over a connection, however its bytes come. Knows no protocol but HTTP's connections."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import ssl
import threading
from types import TracebackType


class Deadline:
    """Within the block, an exchange that takes too long is cut off: its reads and writes end at once.

    Args:
        seconds: from entering the block.

    Raises:
        TimeoutError: on leaving the block when it had been cut off, in the place of whatever came of that.
    """

    def __init__(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._cut)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None  # a copy, that TLS can't take away
        self._is_over = False

    def watch(self, sock: socket.socket) -> None:
        """Cut this one off.

        Raises:
            TimeoutError: it is too late already.
        """
        with self._lock:
            if self._is_over:
                raise TimeoutError("no answer in time")
            self._socket = socket.socket(fileno=os.dup(sock.fileno()))

    def _cut(self) -> None:
        with self._lock:
            self._is_over = True
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Deadline:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._lock:
            if self._socket is not None:
                self._socket.close()
            if self._is_over and (error is None or isinstance(error, Exception)):
                raise TimeoutError("no answer in time") from error
            self._is_over = True  # a timer that fires after all finds nothing to cut
            self._socket = None


def connect(
    host: str, port: int, tls: ssl.SSLContext | None, deadline: Deadline, timeout_s: float
) -> http.client.HTTPConnection:
    """An open connection, watched from before TLS's handshake.

    Args:
        host: name or address.
        port: of it.
        tls: for an encrypted one.
        deadline: that cuts it off.
        timeout_s: for each read.

    Raises:
        OSError: it can't be had.
    """
    sock = socket.create_connection((host, port), timeout_s)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        deadline.watch(sock)
        if tls is None:
            connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
        else:
            sock = tls.wrap_socket(sock, server_hostname=host)
            connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=tls)
    except BaseException:
        sock.close()
        raise
    connection.sock = sock
    return connection
