"""Errors as HTTP answers, in OpenAI's shape, and what each exception of ours means there. Knows no route."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from ..errors import EngineDead, InvalidRequest, NanolensError, NotPaused, PromptTooLong, RequestFailed, UnknownRequest

_HTTP_CODES = {400: "invalid_value", 404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}

logger = logging.getLogger("nanolens.server")


class ApiError(Exception):
    """An answer that is an error.

    Args:
        status: HTTP status.
        message: what was given, what is allowed, what to do.
        kind: OpenAI's `type`; None takes the one of the status.
        param: the field at fault.
        code: a name that programs can tell errors apart by.
        headers: more headers of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str | None = None,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.kind = kind or ("server_error" if status >= 500 else "invalid_request_error")
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The JSON object that says it."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """The answer."""
        return json_response(self.body(), self.status, self.headers)


class JsonBytes(Response):
    """An answer whose JSON is encoded already."""

    media_type = "application/json"


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer in JSON; only finite numbers and whole Unicode may be in it."""
    return JsonBytes(msgspec.json.encode(value), status_code=status, headers=dict(headers or {}))


def as_api_error(error: Exception, renamed: Mapping[str, str] | None = None) -> ApiError:
    """What an exception of the engine means to an HTTP client.

    Args:
        error: the exception.
        renamed: the endpoint's names of the engine's fields, where they differ.
    """
    match error:
        case ApiError():
            return error
        case InvalidRequest():
            param = (renamed or {}).get(error.field, error.field)
            code = "context_length_exceeded" if isinstance(error, PromptTooLong) else "invalid_value"
            return ApiError(400, str(error), param=param or None, code=code)
        case UnknownRequest():
            return ApiError(404, str(error), param="request_id", code="request_not_found")
        case NotPaused():
            return ApiError(409, str(error), param="request_id", code="request_not_paused")
        case EngineDead():
            return ApiError(503, f"the engine has stopped: {error}", code="engine_dead")
        case RequestFailed():
            return ApiError(500, f"the request failed: {error}", code="request_failed")
        case NanolensError():
            return ApiError(500, str(error), code="engine_error")
    logger.error("an unexpected error", exc_info=error)
    return ApiError(500, "an unexpected error; the server's log has it", code="internal_error")


async def _answer(request: Request, error: Exception) -> Response:
    return as_api_error(error).response()


async def _answer_http(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        return as_api_error(error).response()
    message = str(error.detail)
    if error.status_code == 404:
        message = f"{request.method} {request.url.path}: there is no such endpoint"
    if error.status_code == 405:
        message = f"{request.method} {request.url.path}: this endpoint takes other methods"
    if error.status_code == 400:  # the framework's word for a body that no JSON parser takes
        message = "the body can't be read: send JSON in UTF-8, not compressed, without deep nesting and giant numbers"
    code = _HTTP_CODES.get(error.status_code)
    return ApiError(error.status_code, message, code=code, headers=error.headers).response()


def install(app: FastAPI) -> None:
    """Have every error of an application answered in this shape."""
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(ApiError, _answer)
    app.add_exception_handler(NanolensError, _answer)
    app.add_exception_handler(Exception, _answer)
