"""The front of a fleet without Ray, for tests: /version and /debug/fleet of its own, /replicas/ID/... passed on."""

from __future__ import annotations

import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import unquote

from serve import Server

DEADLINE_S = 30.0


class FakeFront:
    """Listens on a free port until the block ends.

    Attributes:
        replicas: that there are, by id; a test adds and removes them.
        trouble: of a replica, by id, in words.
        key: an API key that is asked for; "" for none.
        url: where it listens.
    """

    def __init__(self, replicas: dict[str, Server], key: str = "") -> None:
        self.replicas, self.key = replicas, key
        self.trouble: dict[str, str] = {}
        front = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                front._answer(self)

            do_POST = do_GET

            def log_message(self, *arguments: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> FakeFront:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Listen no more."""
        self._http.shutdown()
        self._http.server_close()

    def _answer(self, ask: BaseHTTPRequestHandler) -> None:
        if self.key and ask.headers.get("Authorization") != f"Bearer {self.key}":
            _send(ask, 401, {"error": {"message": "an API key is needed"}})
        elif ask.path == "/version":
            _send(ask, 200, {"version": "0", "model": "test", "replicas": list(self.replicas)})
        elif ask.path == "/debug/fleet":
            _send(ask, 200, self._fleet())
        elif ask.path.startswith("/replicas/"):
            name, _, rest = ask.path.removeprefix("/replicas/").partition("/")
            server = self.replicas.get(unquote(name))
            if server is None:
                _send(ask, 404, {"error": {"message": f"there is no replica {name!r} now", "code": "replica_gone"}})
            else:
                _pass_on(ask, server, f"/{rest}")
        else:
            _send(ask, 404, {"error": {"message": "of one replica"}})

    def _fleet(self) -> dict[str, Any]:
        replicas = [
            {"id": name, "url": f"/replicas/{name}", "run": f"run of {name}", "waiting": 0, "running": 0,
             "free_blocks": 256, "num_blocks": 256, "queue_age_s": 0.0, "trouble": self.trouble.get(name, ""),
             "queried_tokens": 0, "hit_tokens": 0}
            for name in list(self.replicas)
        ]  # fmt: skip
        routed = [{"replica": name, "reason": "prefix", "count": 1} for name in list(self.replicas)]
        return {"version": 1, "replicas": replicas, "routed": routed}


def _send(ask: BaseHTTPRequestHandler, status: int, answer: object) -> None:
    body = json.dumps(answer).encode()
    ask.send_response(status)
    ask.send_header("Content-Length", str(len(body)))
    ask.end_headers()
    ask.wfile.write(body)


def _pass_on(ask: BaseHTTPRequestHandler, server: Server, path: str) -> None:
    body = ask.rfile.read(int(ask.headers.get("Content-Length") or 0))
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    headers = {name: value for name, value in ask.headers.items() if name.lower() not in ("host", "connection")}
    try:
        connection.request(ask.command, path, body or None, headers)
        answer = connection.getresponse()
        ask.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "date", "server"):
                ask.send_header(name, value)
        ask.end_headers()
        while chunk := answer.read1(1 << 16):
            ask.wfile.write(chunk)
            ask.wfile.flush()
    except OSError:
        ask.close_connection = True
    finally:
        connection.close()
