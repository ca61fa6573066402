"""One HTTP request that came as a value, answered by an application of this process: its messages, as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.types import ASGIApp, Message, Scope

from .fleet_messages import ROUTE, HttpCall

MAX_WAITING = 64  # messages that the application may be ahead of who reads them


async def answer(app: ASGIApp, call: HttpCall) -> AsyncIterator[list[Message]]:
    """The messages of an answer, those that wait together. Leaving it early is the client going away.

    Raises:
        Exception: whatever the application raises.
    """
    waiting: asyncio.Queue[Message | None] = asyncio.Queue(MAX_WAITING)
    gone = asyncio.Event()
    has_body = True

    async def receive() -> Message:
        nonlocal has_body
        if has_body:
            has_body = False
            return {"type": "http.request", "body": call.body, "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def run() -> None:
        try:
            await app(scope_of(call), receive, waiting.put)
        finally:
            if not gone.is_set():
                await waiting.put(None)

    task = asyncio.create_task(run())
    try:
        has_more = True
        while has_more:
            messages = [await waiting.get()]
            while not waiting.empty():
                messages.append(waiting.get_nowait())
            if messages[-1] is None:
                has_more = False
            if found := [message for message in messages if message is not None]:
                yield found
        await task
    finally:
        gone.set()
        if not task.done():
            await _drain(task, waiting)


async def _drain(task: asyncio.Task[None], waiting: asyncio.Queue[Message | None]) -> None:
    """Let the application notice that its client is gone, and end."""
    while not task.done():
        getter = asyncio.ensure_future(waiting.get())
        await asyncio.wait((task, getter), return_when=asyncio.FIRST_COMPLETED)
        getter.cancel()
    await asyncio.gather(task, return_exceptions=True)


def scope_of(call: HttpCall) -> Scope:
    """The scope of a call, as a server would make it."""
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": call.method,
        "scheme": call.scheme,
        "path": call.path,
        "raw_path": call.path.encode("utf-8"),
        "query_string": call.query,
        "root_path": "",
        "headers": list(call.headers),
        "client": call.client,
        "server": call.server,
        "state": {ROUTE: call.route_record()},
    }


def call_of(scope: Scope, body: bytes) -> HttpCall:
    """A request as a value."""
    client, server = scope.get("client"), scope.get("server")
    return HttpCall(
        method=scope["method"], path=scope["path"], query=scope.get("query_string", b""),
        headers=[(bytes(name).lower(), bytes(value)) for name, value in scope["headers"]], body=body,
        client=None if client is None else (client[0], client[1]),
        server=None if server is None else (server[0], server[1]), scheme=scope.get("scheme", "http"),
    )  # fmt: skip
