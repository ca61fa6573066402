"""X-Request-Id, in and out, on every answer. Knows no route."""

from __future__ import annotations

import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-request-id"
_VALID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")  # safe in a header, a path and the journal
_KEY = "nanolens.request_id"


def given_id(scope: Scope) -> str | None:
    """The id that the client gave, if it is one that can be used."""
    found: str | None = scope.get(_KEY)
    return found


class RequestIds:
    """Middleware: notes the client's id, and puts it, or a new one, on the answer unless that has one already."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER)
        scope[_KEY] = given if given is not None and _VALID.fullmatch(given) else None

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                if HEADER not in headers:
                    headers[HEADER] = scope[_KEY] or f"req-{secrets.token_hex(12)}"
                    message["headers"] = headers.raw
            await send(message)

        await self._app(scope, receive, send_named)
