"""A small server with OpenAI's API that says what a test tells it to, in an event loop of its own thread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

Body = dict[str, Any]
Script = Callable[[Body], AsyncIterator[bytes]]  # a request's body to the bytes of the response, as they are written
DONE = b"data: [DONE]\n\n"


def event(body: Body) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def chunk(payload: bytes) -> bytes:
    """Of a chunked body."""
    return f"{len(payload):x}\r\n".encode() + payload + b"\r\n"


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def whole(status: int, body: object, content_type: str = "application/json") -> bytes:
    """A response with a length."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} Status\r\nContent-Type: {content_type}\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def refusal(status: int, message: str) -> bytes:
    return whole(status, {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}})


def piece(name: str, text: str, finish: str | None = None) -> bytes:
    return event({"id": name, "choices": [{"index": 0, "text": text, "finish_reason": finish}]})


def usage(name: str, prompt: int, output: int) -> bytes:
    return event({"id": name, "choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output}})


def answer_text(body: Body, token: int) -> str:
    """What the well-behaved script says: a text of its prompt alone."""
    prompt = body.get("prompt") or body["messages"][0]["content"]
    return chr(97 + (sum(prompt if isinstance(prompt, list) else prompt.encode()) + 7 * token) % 26)


async def good(body: Body, pause_s: float = 0.0) -> AsyncIterator[bytes]:
    """A token an event, at the pace given; refuses what has no proper prompt or an unknown model."""
    prompt = body.get("prompt", body.get("messages"))
    if not isinstance(prompt, list) or not prompt or body.get("model") != "fake":
        yield refusal(400, "prompt: must be token ids")
        return
    known_wrong = {"max_tokens": (-1, "many"), "temperature": (-1.0,), "top_p": (7,), "n": (0,), "stream": ("perhaps",)}
    if prompt[0] in (-1, 1 << 40) or any(body.get(name) in values for name, values in known_wrong.items()):
        yield refusal(400, "out of range")
        return
    name, count = f"cmpl-{next(_names)}", body["max_tokens"]
    yield STREAM_HEAD
    for token in range(count):
        await asyncio.sleep(pause_s)
        yield chunk(piece(name, answer_text(body, token), "length" if token == count - 1 else None))
    yield chunk(usage(name, len(prompt), count) + DONE) + END


def _numbers() -> Iterator[int]:
    number = 0
    while True:
        number += 1
        yield number


_names = _numbers()


class FakeOpenAI:
    """The server.

    Attributes:
        port: where it listens.
        gets: path -> response, of GET requests.
        requests: bodies that came.
        heads: their heads.
        left: requests whose client went away before the end.
    """

    def __init__(self, script: Script = good) -> None:
        self.port = 0
        self.gets: dict[str, bytes] = {
            "/v1/models": whole(200, {"data": [{"id": "fake", "object": "model"}]}),
            "/health": whole(200, {}),
        }
        self.requests: list[Body | None] = []
        self.heads: list[bytes] = []
        self.left = 0
        self._script = script

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            method, path = head.decode().split(" ")[:2]
            if method == "GET":
                writer.write(self.gets.get(path, whole(404, {})))
                await writer.drain()
                return
            length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
            try:
                body = json.loads(await reader.readexactly(length))
            except ValueError:
                body = None
            self.requests.append(body)
            if not isinstance(body, dict):
                writer.write(refusal(400, "no JSON object"))
                return
            async for data in self._script(body):
                writer.write(data)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left += 1
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@contextmanager
def serving(script: Script = good) -> Iterator[FakeOpenAI]:
    """A running server, in a thread; gone afterwards."""
    fake, loop, ready = FakeOpenAI(script), asyncio.new_event_loop(), threading.Event()
    stop = asyncio.Event()

    async def main() -> None:
        server = await asyncio.start_server(fake.handle, "127.0.0.1", 0)
        fake.port = server.sockets[0].getsockname()[1]
        ready.set()
        await stop.wait()
        server.close()

    def work() -> None:
        loop.run_until_complete(main())
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(10)
    try:
        yield fake
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
