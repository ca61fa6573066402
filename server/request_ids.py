"""X-Request-Id, in and out, on every answer, and the id that a request that generates goes by.

Knows no route but what an id of its requests begins with.
"""

from __future__ import annotations

import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-request-id"
USED = "x-nanolens-request-id"  # what a request that generates goes by, which may be a new id
_VALID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")  # safe in a header, a path and the journal
_PREFIXES = {"/v1/completions": "cmpl", "/v1/chat/completions": "chatcmpl"}
_KEY, _USED_KEY = "nanolens.request_id", "nanolens.used_request_id"


def request_id_of(scope: Scope) -> str:
    """The id of an HTTP request: its client's, if that can be used, or a new one."""
    found = scope.get(_KEY)
    if not isinstance(found, str):
        given = Headers(scope=scope).get(HEADER)
        found = given if given is not None and _VALID.fullmatch(given) else new_id(scope["path"])
        scope[_KEY] = found
    return found


def new_id(path: str) -> str:
    """A new id for a request of this path."""
    return f"{_PREFIXES.get(path, 'req')}-{secrets.token_hex(12)}"


def goes_by(scope: Scope, name: str) -> None:
    """The answer to a request is to say by which id it goes, if a header can: a path may name anything."""
    if name.isascii() and name.isprintable():
        scope[_USED_KEY] = name


class RequestIds:
    """Middleware: puts the id of each request on its answer, and the one that it goes by where that is known."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = request_id_of(scope)

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                headers.setdefault(HEADER, name)
                if used := scope.get(_USED_KEY):
                    headers.setdefault(USED, used)
            await send(message)

        await self._app(scope, receive, send_named)
