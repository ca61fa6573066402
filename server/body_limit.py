"""A limit on what a request's body may weigh, whether it says so or not. An ASGI layer around the routes."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError


class BodyLimit:
    """Middleware: a body of more than `max_bytes` is answered by 413, as soon as that is known."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        said = Headers(scope=scope).get("content-length", "")
        if said.isascii() and said.isdigit() and (len(said) > 18 or int(said) > self._max_bytes):
            error = ApiError(413, self._words(), code="body_too_large")
            await error.response()(scope, receive, send)
            return
        size = 0

        async def receive_counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._max_bytes:
                raise HTTPException(413, self._words())
            return message

        await self._app(scope, receive_counted, send)

    def _words(self) -> str:
        return f"the body is too large: at most {self._max_bytes} bytes are taken"
