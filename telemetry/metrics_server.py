"""Serves /metrics over HTTP, in the format that the scraper asks for. Knows nothing of what the metrics mean."""

from __future__ import annotations

import logging
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Protocol
from urllib.parse import urlsplit

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE_OPENMETRICS

from ..errors import InvalidConfig

logger = logging.getLogger(__name__)

PATH = "/metrics"
CLIENT_TIMEOUT_S = 10.0


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
        """Stop listening and give the port back; a second call does nothing. Scrapes under way are answered."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

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
    daemon_threads = False  # so that closing waits for answers under way; a client that stalls is cut off
    allow_reuse_address = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A scraper that went away is its own affair."""
        logger.debug("a scrape from %s failed", client_address, exc_info=True)


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
