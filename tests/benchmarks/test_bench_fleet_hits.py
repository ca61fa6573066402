"""The share of tokens that a fleet finds is that of what was asked, by the fleet's own counts."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from nanolens.benchmarks import fleet_hits

REPLICAS = ("r0", "r1")


class Fleet(ThreadingHTTPServer):
    """Two replicas; of each prompt of ten tokens the front's choice finds eight, a named replica four."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.hit, self.queried = 100, 100  # from before
        self.paths: list[str] = []


class Handler(BaseHTTPRequestHandler):
    """Answers as a fleet does."""

    server: Fleet

    def do_GET(self) -> None:
        """The fleet, and its model."""
        counts = {"hit_tokens": self.server.hit, "queried_tokens": self.server.queried}
        other = {"id": REPLICAS[1], "hit_tokens": 0, "queried_tokens": 0}
        fleet = {"replicas": [{"id": REPLICAS[0], **counts}, other]}
        self._answer(fleet if self.path == "/debug/fleet" else {"model": "tiny"})

    def do_POST(self) -> None:
        """A completion."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert body["model"] == "tiny"
        with self.server.lock:
            self.server.paths.append(self.path)
            self.server.queried += 10
            self.server.hit += 4 if self.path.startswith("/replicas/") else 8
        self._answer({})

    def _answer(self, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setattr(fleet_hits, "SETTLE_S", 0.0)
    with Fleet() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_both_rates_are_told(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{fleet.server_address[1]}"
    assert fleet_hits.main([url, "--clients", "3", "--requests", "20"]) == 0
    routed, by_chance = capsys.readouterr().out.splitlines()
    assert routed.startswith("3 clients, routed: 0.800 ")
    assert by_chance.startswith("3 clients, by chance: 0.400 ")
    assert fleet.paths[:20] == ["/v1/completions"] * 20
    assert set(fleet.paths[20:]) == {f"/replicas/{name}/v1/completions" for name in REPLICAS}


def test_prompts_share_prefixes_and_nothing_else() -> None:
    found = fleet_hits.prompts(random.Random(1), 200, 5, 60)
    assert len({prompt[:60] for prompt in found}) == 5
    assert len({prompt[60:] for prompt in found}) == 200
