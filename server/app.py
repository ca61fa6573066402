"""The FastAPI application: which routes there are, and what every answer has in common. Starts nothing."""

from __future__ import annotations

from fastapi import FastAPI

from .. import __version__
from . import chat, completions, errors, tokens
from .request_ids import RequestIds
from .state import ServerState


def create_app(state: ServerState) -> FastAPI:
    """The application of a server whose engine is started."""
    app = FastAPI(title="nanolens", version=__version__)
    app.state.server = state
    errors.install(app)
    app.add_middleware(RequestIds)
    for router in (completions.router, chat.router, tokens.router):
        app.include_router(router)
    return app
