"""Serves /metrics over HTTP, in the format that the scraper asks for. Knows nothing of what the metrics mean."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import urlsplit

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE_OPENMETRICS

from ..errors import InvalidConfig

logger = logging.getLogger(__name__)

PATH = "/metrics"
CLIENT_TIMEOUT_S = 10.0  # for a whole scrape, from its connection on
CLOSE_S = 1.0  # for the answers that are under way when the server is closed


class Renders(Protocol):
    """What is served: `Metrics`."""

    def render(self, openmetrics: bool = False) -> bytes:
        """A scrape."""


class MetricsServer:
    """A server in threads of its own, from its construction until `close`.

    Attributes:
        host: the address that it listens on.
        port: its port.
        url: where to scrape.
    """

    def __init__(self, metrics: Renders, port: int, host: str) -> None:
        handler = type("Handler", (_Handler,), {"metrics": metrics})
        try:
            self._server = _Server((host, port), handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InvalidConfig(
                f"metrics_port={port}: can't listen on {host}:{port} ({reason}); give a free port, or 0 to take any"
            ) from error
        self.host, self.port = str(self._server.server_address[0]), self._server.server_port
        shown = f"[{self.host}]" if ":" in self.host else self.host
        self.url = f"http://{shown}:{self.port}{PATH}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and give the port back; a second call does nothing.

        Scrapes under way are answered, within a second; who has not asked yet gets nothing.
        """
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._server.end_clients(CLOSE_S)

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def serve_metrics(metrics: Renders, port: int, host: str = "127.0.0.1") -> MetricsServer:
    """Serve metrics until `close`.

    Args:
        metrics: what to render.
        port: 0 takes any free one; the server says which.
        host: the address to listen on; the default can be reached from this machine alone.

    Raises:
        InvalidConfig: the address can't be listened on.
    """
    return MetricsServer(metrics, port, host)


def wants_openmetrics(accept: str) -> bool:
    """Whether an Accept header prefers OpenMetrics 1.0 to the classic text format (RFC 9110, section 12.5.1)."""
    best = {True: 0.0, False: 0.0}
    for item in accept.split(","):
        kind, *parameters = (part.strip().lower() for part in item.split(";"))
        given = dict(parameter.partition("=")[::2] for parameter in parameters)
        quality = _quality(given.get("q", "1"))
        if kind == "application/openmetrics-text":
            if given.get("version", "1.0.0").strip('"') in ("1.0.0", "0.0.1"):
                best[True] = max(best[True], quality)
        elif kind in ("text/plain", "text/*", "*/*"):
            best[False] = max(best[False], quality)
    return best[True] > 0 and best[True] >= best[False]


def _quality(text: str) -> float:
    try:
        return min(1.0, max(0.0, float(text)))
    except ValueError:
        return 0.0


class _Server(ThreadingHTTPServer):
    """A thread for each connection, which is cut off when it takes too long."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._clients: dict[threading.Thread, tuple[socket.socket, float]] = {}  # with its deadline
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread that is known."""
        work = threading.Thread(target=self.process_request_thread, args=(request, client_address), daemon=True)
        self._clients[work] = (request, time.monotonic() + CLIENT_TIMEOUT_S)
        work.start()

    def service_actions(self) -> None:
        """Many times a second: cut off clients that take too long."""
        now = time.monotonic()
        for work, (client, deadline) in list(self._clients.items()):
            if not work.is_alive():
                del self._clients[work]
            elif now >= deadline:
                _cut(client, socket.SHUT_RDWR)

    def end_clients(self, seconds: float) -> None:
        """After the end of serving: read no more, and let answers go out for so long."""
        for client, _ in self._clients.values():
            _cut(client, socket.SHUT_RD)
        deadline = time.monotonic() + seconds
        for work, (client, _) in self._clients.items():
            work.join(max(0.0, deadline - time.monotonic()))
            if work.is_alive():
                _cut(client, socket.SHUT_RDWR)
        self._clients.clear()

    def handle_error(self, request: object, client_address: object) -> None:
        """A scraper that went away is its own affair."""
        logger.debug("a scrape from %s failed", client_address, exc_info=True)


def _cut(client: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):  # it has gone by itself
        client.shutdown(how)


class _Handler(BaseHTTPRequestHandler):
    metrics: Renders
    timeout = CLIENT_TIMEOUT_S
    server_version = "nanolens"
    sys_version = ""

    def do_GET(self) -> None:
        """A scrape."""
        if urlsplit(self.path).path != PATH:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", f"metrics are at {PATH}\n".encode())
            return
        openmetrics = wants_openmetrics(", ".join(self.headers.get_all("Accept", [])))
        try:
            body = self.metrics.render(openmetrics=openmetrics)
        except Exception:
            logger.exception("the metrics can't be rendered")
            text = b"the metrics can't be rendered; the exporter's log says why\n"
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", text)
            return
        self._answer(HTTPStatus.OK, CONTENT_TYPE_OPENMETRICS if openmetrics else CONTENT_TYPE_PLAIN_0_0_4, body)

    do_HEAD = do_GET

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Vary", "Accept")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not news."""
