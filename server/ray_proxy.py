"""What is around Ray's HTTP proxy, in its process: answers that it has to give without a front are in our form, too.

Ray calls `middlewares` there. Imports as little as it can: the proxy starts before the replicas do.
"""

from __future__ import annotations

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError
from .sse import DONE, event

# Of these Ray decodes the value, and answers 500 where it can't.
_READ = frozenset(
    {
        b"x-request-id", b"x-session-id", b"serve-multiplexed-model-id", b"serve_multiplexed_model_id",
        b"x-request-timeout-seconds", b"x-request-disconnect-disabled",
    }
)  # fmt: skip


def middlewares() -> list[Middleware]:
    """What Ray puts around its proxy."""
    return [Middleware(Edge)]


class Edge:
    """Middleware: takes headers away that the proxy can't read, and ends in an error what it leaves without an answer.

    Args:
        app: the proxy.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = [(name, value) for name, value in scope["headers"] if name not in _READ or value.isascii()]
        answer = _Answer(send)
        try:
            await self._app({**scope, "headers": headers}, receive, answer.take)
        except Exception:
            if not answer.can_fail:
                raise
        if answer.can_fail:
            await answer.fail()


class _Answer:
    """What the proxy sends, without its own words for the front's death."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._has_begun = self._is_stream = self._has_ended = False

    @property
    def can_fail(self) -> bool:
        """Whether it has no end yet, and an error can be one."""
        return not self._has_ended and (self._is_stream or not self._has_begun)

    async def take(self, message: Message) -> None:
        """Pass a message on."""
        if message["type"] == "http.response.start":
            kind = next((value for name, value in message["headers"] if name.lower() == b"content-type"), b"")
            if message["status"] >= 500 and kind.startswith(b"text/plain"):  # which none of ours is
                await self.fail()
                return
            self._has_begun, self._is_stream = True, kind.startswith(b"text/event-stream")
        elif self._has_ended:
            return
        elif message["type"] == "http.response.body":
            self._has_ended = not message.get("more_body", False)
        await self._send(message)

    async def fail(self) -> None:
        """End it with an error: an event of a stream, or the whole answer."""
        error = ApiError(503, "the front of the fleet is gone, and another one starts; send the request again",
                         code="front_died", headers={"Retry-After": "2"})  # fmt: skip
        self._has_ended = True
        if self._has_begun:
            await self._send({"type": "http.response.body", "body": event(error.body()) + DONE, "more_body": False})
            return
        response = error.response()
        await self._send(
            {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
        )
        await self._send({"type": "http.response.body", "body": bytes(response.body), "more_body": False})
