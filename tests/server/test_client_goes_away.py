"""A client that closes its connection ends its requests, under uvicorn, whatever it was waiting for."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from fake_core import FakeAsyncEngine
from nanolens.engine import commands
from nanolens.engine.async_engine import AsyncEngine
from nanolens.engine.messages import Abandon, decode_command, encode_command
from nanolens.models.dummy import ByteTokenizer
from nanolens.server.app import create_app
from nanolens.server.state import ServerState
from nanolens.telemetry.events import Keyframe, Mark, RequestFinished, StepPlanned
from nanolens.telemetry.reader import JournalReader

LONG = {"model": "fake", "max_tokens": 200, "n": 2, "ignore_eos": True}


@asynccontextmanager
async def listening(engine: AsyncEngine) -> AsyncIterator[tuple[ServerState, str]]:
    """An application at a free port of the loopback."""
    state = ServerState(engine, ByteTokenizer(264), ("fake",))
    config = uvicorn.Config(create_app(state), lifespan="off", log_level="warning")
    server = uvicorn.Server(config)
    server.capture_signals = lambda: _nothing()  # type: ignore[method-assign, assignment]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        serving = asyncio.create_task(server.serve([listener]))
        while not server.started:
            await asyncio.sleep(0.01)
        try:
            yield state, f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


class _nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


async def leave_after_two_chunks(url: str, body: dict[str, Any]) -> None:
    async with httpx.AsyncClient() as client, client.stream("POST", f"{url}/v1/completions", json=body) as response:
        assert response.status_code == 200, await response.aread()
        lines = response.aiter_lines()
        for _ in range(4):
            await anext(lines)


async def leave_while_waiting(url: str, body: dict[str, Any]) -> None:
    async with httpx.AsyncClient() as client:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.post(f"{url}/v1/completions", json=body), 0.3)


async def settle(state: ServerState) -> tuple[int, Keyframe]:
    """Wait until the server has forgotten the call: steps of the engine since the client left, and what it holds."""
    engine = state.engine
    before = (await engine.snapshot()).step
    for _ in range(200):
        now = await engine.snapshot()
        if not now.sequences and not state.names:
            return now.step - before, now
        await asyncio.sleep(0.005)
    raise AssertionError(f"still there: {now.sequences} {state.names}")


@pytest.mark.parametrize("prompt", [[1, 2, 3], [[1, 2], [3, 4], [5, 6]]])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("logprobs", [None, 2])
def test_a_client_that_leaves_aborts_all_its_requests_within_two_steps(
    stream: bool, prompt: Any, logprobs: int | None
) -> None:
    async def main() -> None:
        async with FakeAsyncEngine("fake:0.03") as engine, listening(engine) as (state, url):
            # The fake model speaks no text: a stream begins with the echo, and with log-probabilities it is idle.
            body = LONG | {"prompt": prompt, "stream": stream, "logprobs": logprobs, "echo": True}
            leave = leave_after_two_chunks if stream and logprobs is None else leave_while_waiting
            await leave(url, body)
            steps, now = await settle(state)
            assert steps <= 2
            assert len(now.free_blocks) == now.started.num_blocks and not now.waiting and not state.replies

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("attempt", range(3))
def test_steps_of_a_real_model_after_the_server_saw_the_close_are_two_at_most(tmp_path: Path, attempt: int) -> None:
    async def main() -> int:
        options = {"num_blocks": 1200, "block_size": 4, "device": "cpu", "journal": str(tmp_path)}
        async with AsyncEngine("dummy:llama-tiny", **options) as engine, listening(engine) as (state, url):
            mark_aborts(engine)
            await leave_after_two_chunks(url, LONG | {"prompt": [1, 2, 3], "max_tokens": 2000, "stream": True})
            await settle(state)
        events = [event for frame in JournalReader(tmp_path).frames() for event in frame.events]
        sent = next(place for place, event in enumerate(events) if isinstance(event, Mark))
        ended = next(place for place, event in enumerate(events) if isinstance(event, RequestFinished))
        assert events[ended].finish_reason == "abort" and sum(isinstance(each, StepPlanned) for each in events[:sent])
        return sum(isinstance(event, StepPlanned) for event in events[sent:])  # of the only request, until its end

    assert asyncio.run(asyncio.wait_for(main(), 60)) <= 2


def mark_aborts(engine: AsyncEngine) -> None:
    """Have the journal hold a mark in front of each abort of a request that was left, sent in the same breath."""
    link = engine._running()._link
    send = link.send

    def send_both(data: bytes) -> None:
        if isinstance(decode_command(data)[1], Abandon):
            send(encode_command(0, commands.Mark("the server has seen the close", "test")))
        send(data)

    link.send = send_both  # type: ignore[method-assign]


def test_a_client_that_leaves_what_an_operator_holds_aborts_it() -> None:
    async def main() -> None:
        async with FakeAsyncEngine("fake:0.02") as engine, listening(engine) as (state, url):
            body = LONG | {"prompt": [1, 2, 3], "n": 1}
            leaving = asyncio.create_task(leave_while_waiting(url, body))
            await asyncio.sleep(0.15)
            (name,) = state.names
            assert await engine.pause(name)
            await leaving
            _, now = await settle(state)
            assert not now.sequences

    asyncio.run(asyncio.wait_for(main(), 60))
