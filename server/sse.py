"""Server-sent events: a stream of JSON chunks to a client that may be slow or go away. Knows no request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .calls import until_gone

DONE = b"data: [DONE]\n\n"
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
_encode = msgspec.json.Encoder().encode


def event(value: Mapping[str, Any]) -> bytes:
    """One event: JSON has no line ends in it, so that one `data` line holds it."""
    return b"data: " + _encode(value) + b"\n\n"


class EventStream(Response):
    """An answer whose body is a stream of events, sent as they come.

    What is sent waits for the client (the server's flow control), so that a slow one holds up `events` and nobody else.

    Args:
        events: encoded ones.
        close: called once, when the stream has ended, or the client is gone.
        on_sent: told after each event, sent or not, how many seconds the client made it wait.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        close: Callable[[], Awaitable[None]],
        on_sent: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        super().__init__(None, headers=_HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._close = close
        self._on_sent = on_sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it all, or until the client is gone."""
        writer = asyncio.ensure_future(self._write(send))
        watcher = asyncio.ensure_future(until_gone(receive))
        try:
            await asyncio.wait((writer, watcher), return_when=asyncio.FIRST_COMPLETED)
            if writer.done():
                writer.result()
        except OSError:
            pass  # the connection broke while something was sent
        finally:
            writer.cancel()
            watcher.cancel()
            await asyncio.gather(writer, watcher, return_exceptions=True)
            await self._close()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for data in self._events:
            began = time.monotonic()
            try:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            finally:  # of a client that is let go, or leaves, too
                self._on_sent(time.monotonic() - began)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
