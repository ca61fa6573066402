"""A limit on how long a client may take no byte of its answer. An ASGI layer around the routes."""

from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger("nanolens.server")
_has_let_go: ContextVar[bool] = ContextVar("has_let_go", default=False)  # in the task of one connection


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a line of the web server's log tells more than that an answer which was given up is not whole."""
    return not (_has_let_go.get() and str(record.msg).startswith("ASGI callable returned without"))


class WriteLimit:
    """Lets go of a client that holds an answer up for `seconds`, so that its request gives its place back.

    A send waits while the connection's buffers are full, which is how a slow reader holds up its own stream alone. One
    that never reads would hold its place for ever.

    Args:
        app: the application; it sees a broken connection.
        seconds: for each piece of an answer.
    """

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app, self._seconds = app, seconds
        logging.getLogger("uvicorn.error").addFilter(_is_news)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        gave_up = False

        async def limited(message: Message) -> None:
            nonlocal gave_up
            try:
                async with asyncio.timeout(self._seconds):
                    await send(message)
            except TimeoutError:
                gave_up = True
                raise

        try:
            await self._app(scope, receive, limited)
        except Exception:
            if not gave_up:
                raise
        _has_let_go.set(gave_up)  # of this request: the next one on the connection may share the task's context
        if gave_up:
            logger.warning("%s: a client has taken nothing for %g s and is let go", scope["path"], self._seconds)
