"""What is around Ray's HTTP proxy, in its process: answers that it has to give without a front are in our form, too.

Ray calls `middlewares` there. Imports as little as it can: the proxy starts before the replicas do.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import HTTP_PROTOCOLS, WS_PROTOCOLS

from .errors import ApiError
from .sse import DONE, event

# By these a client could give Ray's proxy orders; a "_" in one counts as a "-" there.
_ORDERS = frozenset(
    {
        b"x-session-id", b"serve-multiplexed-model-id", b"x-request-timeout-seconds", b"x-request-disconnect-disabled",
    }
)  # fmt: skip
_NAME = b"x-request-id"  # which the proxy decodes
_NO_LIMIT = (b"x-request-timeout-seconds", b"0")  # as an answer that it cuts looks like one of a front that is gone
_RAYS = ("/-/healthz", "/-/routes")  # paths that the proxy answers for itself

logger = logging.getLogger("ray.serve")  # the proxy's log


def middlewares() -> list[Middleware]:
    """What Ray puts around its proxy. Called in its process, before it listens: it is to read HTTP as one server does.

    Ray leaves the choice to uvicorn, which takes what is installed: a parser that sends chunks to HTTP/1.0, WebSockets.
    """
    HTTP_PROTOCOLS["auto"], WS_PROTOCOLS["auto"] = HTTP_PROTOCOLS["h11"], None
    return [Middleware(Edge)]


class Edge:
    """Middleware: keeps clients' orders to the proxy from it, and ends in an error what it leaves without an answer.

    Args:
        app: the proxy.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http" or scope["path"] in _RAYS:
            await self._app(scope, receive, send)
            return
        answer, error = _Answer(send), _gone()
        try:
            await self._app({**scope, "headers": _heeded(scope["headers"])}, receive, answer.take)
        except Exception:
            if not answer.can_fail:
                raise
            logger.exception("an error of the proxy")
            error = ApiError(500, "an error of Ray's proxy; its log has it", code="proxy_error")
        if answer.can_fail:
            await answer.fail(error)


def _heeded(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers as the proxy may see them."""
    kept = [(name, value) for name, value in headers if name.replace(b"_", b"-") not in _ORDERS]
    return [(name, value) for name, value in kept if name != _NAME or value.isascii()] + [_NO_LIMIT]


def _gone() -> ApiError:
    """The front has died."""
    return ApiError(503, "the front of the fleet is gone, and another one starts; send the request again",
                    code="front_died", headers={"Retry-After": "2"})  # fmt: skip


def _refused(status: int) -> ApiError:
    """The proxy does not pass a request on."""
    return ApiError(status, "Ray's proxy did not have this request answered; send it again later",
                    code="proxy_refused", headers={"Retry-After": "2"})  # fmt: skip


class _Answer:
    """What the proxy sends, without its own words for what went wrong."""

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
            status = message["status"]
            if (status in (408, 429) or status >= 500) and kind.startswith(b"text/plain"):  # which none of ours is
                await self.fail(_gone() if status == 500 else _refused(status))
                return
            self._has_begun, self._is_stream = True, kind.startswith(b"text/event-stream")
        elif self._has_ended:
            return
        elif message["type"] == "http.response.body":
            self._has_ended = not message.get("more_body", False)
        await self._send(message)

    async def fail(self, error: ApiError) -> None:
        """End it with an error: an event of a stream, or the whole answer."""
        self._has_ended = True
        if self._has_begun:
            await self._send({"type": "http.response.body", "body": event(error.body()) + DONE, "more_body": False})
            return
        response = error.response()
        await self._send(
            {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
        )
        await self._send({"type": "http.response.body", "body": bytes(response.body), "more_body": False})
