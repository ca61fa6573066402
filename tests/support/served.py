"""The server's application in this process, over a real AsyncEngine on the tiny Llama; asked without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx

from nanolens.engine.async_engine import AsyncEngine
from nanolens.models.dummy import ByteTokenizer
from nanolens.server.app import create_app
from nanolens.server.state import ServerState

T = TypeVar("T")
TINY = "dummy:llama-tiny"
VOCAB_SIZE = 264
ALWAYS_A = {"temperature": 0, "logit_bias": {"65": 100}}  # the model says "A" and nothing else
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


class Served:
    """One application and its engine, in an event loop that turns while something is asked.

    Attributes:
        engine: its engine.
        state: what its routes share.
        runner: of the event loop.
    """

    def __init__(self, runner: asyncio.Runner, engine: AsyncEngine, **of_state: Any) -> None:
        self.runner, self.engine = runner, engine
        self.state = ServerState(engine, ByteTokenizer(VOCAB_SIZE), ("tiny", "other-name"), **of_state)
        transport = httpx.ASGITransport(create_app(self.state), raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://test")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something in the event loop."""
        return self.runner.run(asyncio.wait_for(work, 60))

    def get(self, path: str) -> httpx.Response:
        return self.run(self.client.get(path))

    def post(self, path: str, headers: dict[str, str] | None = None, **body: Any) -> httpx.Response:
        """Ask with a JSON body; `model` is filled in."""
        return self.run(self.client.post(path, json={"model": "tiny"} | body, headers=headers))

    def send(self, path: str, content: str | bytes, kind: str = "application/json") -> httpx.Response:
        """Ask with a body as it is."""
        return self.run(self.client.post(path, content=content, headers={"content-type": kind}))

    def complete(self, prompt: Any = "hello", **body: Any) -> dict[str, Any]:
        """The answer to a completion request that works."""
        return answer_of(self.post(COMPLETIONS, prompt=prompt, **body))

    def chat(self, text: str = "hello", **body: Any) -> dict[str, Any]:
        """The answer to a chat request that works."""
        return answer_of(self.post(CHAT, messages=[{"role": "user", "content": text}], **body))

    def chunks(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The chunks of a stream that works, up to its [DONE]."""
        response = self.post(path, stream=True, **body)
        assert response.status_code == 200, response.text
        return events_of(response)

    def is_idle(self) -> bool:
        """Whether nothing lives in the engine, every block is free, and the server remembers no name."""
        now = self.run(self.engine.snapshot())
        is_empty = not now.sequences and len(now.free_blocks) == now.started.num_blocks
        return is_empty and not self.state.names and not self.state.replies


def answer_of(response: httpx.Response) -> dict[str, Any]:
    """The body of a success."""
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream that ends with [DONE]."""
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = response.text.split("\n\n")
    assert lines[-1] == "" and lines[-2] == "data: [DONE]"
    assert all(line.startswith("data: ") and "\n" not in line for line in lines[:-1])
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def error_of(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error of an answer with this status."""
    assert response.status_code == status, response.text
    body = response.json()
    assert list(body) == ["error"] and set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


def texts_of(chunks: list[dict[str, Any]]) -> dict[int, str]:
    """The texts of a stream of either form, by index."""
    found: dict[int, str] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        piece = choice["text"] if "text" in choice else choice["delta"].get("content", "")
        found[choice["index"]] = found.get(choice["index"], "") + piece
    return found


@contextmanager
def serving(engine: AsyncEngine | None = None, **of_state: Any) -> Iterator[Served]:
    """A server for as long as the block lasts: 256 blocks of 4 tokens, audited, if no engine is given."""
    engine = engine or AsyncEngine(
        TINY, num_blocks=256, block_size=4, device="cpu", dtype="float32", audit=True, seed=0
    )
    with asyncio.Runner() as runner:
        runner.run(engine.__aenter__())
        try:
            yield Served(runner, engine, **of_state)
        finally:
            runner.run(engine.close())
