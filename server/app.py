"""The FastAPI application: which routes there are, and what every answer has in common. Starts nothing."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError

from .. import __version__
from ..errors import PromptTooLong
from . import chat, completions, errors, requests, tokens
from .body_limit import BodyLimit
from .protocol_requests import ChatCompletionRequest, CompletionRequest
from .request_ids import RequestIds, request_id_of
from .serving import refuse, traceparent_of
from .state import ServerState, state_of
from .validation import describe_invalid

_ABOUT = """OpenAI's API for completions and chat completions, and extensions of it.

A field that is unknown, of the wrong type or out of range is refused with status 400, and `param` names it."""
_GENERATING = (completions.PATH, chat.PATH)  # their refusals are requests, which the journal holds


def create_app(state: ServerState) -> FastAPI:
    """The application of a server whose engine is started."""
    app = _Described(title="nanolens", version=__version__, description=_ABOUT, redirect_slashes=False)
    app.state.server = state
    errors.install(app)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_middleware(BodyLimit, max_bytes=state.limits.max_body_bytes)
    app.add_middleware(RequestIds)  # the outermost
    for router in (completions.router, chat.router, requests.router, tokens.router):
        app.include_router(router)
    return app


class _Described(FastAPI):
    """One whose description names the models that it serves, and no status 422: bodies are refused by 400."""

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI description."""
        if self.openapi_schema is None:
            found = super().openapi()
            for operation in (each for path in found["paths"].values() for each in path.values()):
                operation["responses"].pop("422", None)
            schemas = found["components"]["schemas"]
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            for body in (CompletionRequest, ChatCompletionRequest):
                schemas[body.__name__]["properties"]["model"]["enum"] = list(self.state.server.model_names)
        return self.openapi_schema or {}


async def _answer_invalid(request: Request, error: Exception) -> Response:
    """The answer to a body that can't be read as what it should be."""
    if not isinstance(error, RequestValidationError):
        return errors.as_api_error(error).response()
    param, message = describe_invalid(error.errors())
    cause = next((each.get("ctx", {}).get("error") for each in error.errors()[:1]), None)
    code = "context_length_exceeded" if isinstance(cause, PromptTooLong) else "invalid_value"
    found = errors.ApiError(400, message, param=param, code=code)
    if request.url.path in _GENERATING and request.method == "POST":
        refuse(state_of(request), request_id_of(request.scope), found, traceparent_of(request))
    return found.response()
