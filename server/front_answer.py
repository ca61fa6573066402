"""The answer of a fleet's front as Ray's HTTP proxy takes it: an application, whose head names the request."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError
from .request_ids import HEADER, USED

_NAME, _USED = HEADER.encode(), USED.encode()


class FrontAnswer(Response):
    """An application as the answer to a request that it has not seen."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(None)
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the application answer. Ray's proxy puts the id that came, or its own, on every answer itself."""

        async def send_unnamed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": _named(message["headers"])}
            await send(message)

        await self._app(scope, receive, send_unnamed)


def known_error(error: Exception) -> Exception:
    """An exception as one that has an answer of its own."""
    if isinstance(error, HTTPException):
        code = "body_too_large" if error.status_code == 413 else None
        return ApiError(error.status_code, str(error.detail), code=code)
    return error


def _named(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers with the id that a request goes by under one name: as its replica has it, else as the front has."""
    found = dict(headers)
    name = found.get(_USED) or found.get(_NAME)
    others = [(key, value) for key, value in headers if key not in (_NAME, _USED)]
    return others if name is None else [*others, (_USED, name)]
