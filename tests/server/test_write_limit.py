"""Readers that are slow or never read: whom they hold up, how that is recorded, and when they are let go."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nanolens.server.write_limit import WriteLimit
from nanolens.telemetry.events import RequestFinished, StreamStalled
from serve import Server, completion, reader_that_does_not_read


def run_limited(app: Any, seconds: float, send: Any) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    asyncio.run(WriteLimit(app, seconds)({"type": "http", "path": "/x"}, receive, send))


async def never(message: Any) -> None:
    await asyncio.sleep(60)


def test_an_application_sees_a_broken_connection_when_nothing_is_taken() -> None:
    seen: list[BaseException] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await send({"type": "http.response.start", "status": 200})
        except OSError as error:
            seen.append(error)
            raise

    run_limited(app, 0.01, never)
    assert len(seen) == 1


def test_an_error_of_the_application_is_its_own() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        run_limited(app, 10, never)


def test_a_reader_that_is_slow_holds_up_nobody_else_and_is_recorded(tmp_path: Path) -> None:
    with Server(tmp_path, num_blocks=2000, max_num_seqs=8) as server:
        with reader_that_does_not_read(server, "slow-1") as slow:
            server.wait_until(lambda: server.snapshot()["totals"]["generated_tokens"] > 2000, "generating")
            assert server.complete([5], max_tokens=50)["usage"]["completion_tokens"] == 50
            server.wait_until(lambda: not server.snapshot()["sequences"], "done without its reader")
            end = b""
            while b"data: [DONE]" not in end:
                end = end[-20:] + slow.recv(1 << 20)
        server.wait_until(lambda: b"_stream_stalls_total 0.0" not in server.get("/metrics").body, "told")
        server.wait_until(lambda: any(isinstance(e, StreamStalled) for e in server.events()), "noted")
        stalled = next(event for event in server.events() if isinstance(event, StreamStalled))
        assert stalled.request == "slow-1" and stalled.stalled_ns > 0 and stalled.pieces > 0


def test_a_reader_that_never_reads_is_let_go_and_gives_its_place_back(tmp_path: Path) -> None:
    with Server(tmp_path, num_blocks=2000, max_num_seqs=1, max_queue=0, write_timeout_s=1) as server:
        with reader_that_does_not_read(server, "gone-1"):
            server.wait_until(lambda: server.snapshot()["totals"]["requests_arrived"] == 1, "arrived")
            assert server.post("/v1/completions", completion([1])).status == 429
            server.wait_until(lambda: server.post("/v1/completions", completion([1])).status == 200, "free")
        assert "is let go" in server.said and "ERROR" not in server.said and "ASGI callable" not in server.said
        server.wait_until(lambda: b"_stream_stalls_total 0.0" not in server.get("/metrics").body, "told")
        assert next(event.request for event in server.events() if isinstance(event, RequestFinished)) == "gone-1"
