"""Routes that read large JSON bodies in a thread, so that the streams of others go on meanwhile. Knows no endpoint."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_type_hints

import msgspec
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from ..errors import InvalidRequest, PromptTooLong
from .state import state_of

LONG_BODY = 16 << 10  # bytes; a shorter one takes the event loop a few milliseconds, whatever is in it
LONG_FIELD = 64 << 10  # bytes of JSON that a field may have if it is none of those that hold a prompt
MAX_ERRORS = 4  # unknown fields that are told of
MANY = 1 << 62
LISTS = frozenset({"prompt", "append"})  # whose lists of token ids have to fit the model's context
PROMPTS = frozenset({"prompt", "messages", "append", "tokens"})

_threads = ThreadPoolExecutor(2, "nanolens-body")  # bounded: their work holds the interpreter's lock by turns
_split = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class BodyRoute(APIRoute):
    """A route whose body, if it is long, is parsed and checked in a thread. What it says of a body stays the same."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of one request."""
        handle = super().get_route_handler()
        hints = get_type_hints(self.endpoint).values()
        model = next((hint for hint in hints if isinstance(hint, type) and issubclass(hint, BaseModel)), None)
        if model is None:
            return handle

        async def read_and_handle(request: Request) -> Response:
            body = await request.body()
            if len(body) <= LONG_BODY or not _is_json(request.headers.get("content-type", "")):
                return await handle(request)
            state = state_of(request)
            most = state.engine.started.max_model_len, state.limits.max_prompts
            work = asyncio.get_running_loop().run_in_executor(_threads, read_long, model, body, *most)
            return await handle(_ReadRequest(request, await work))

        return read_and_handle


class _ReadRequest(Request):
    """A request whose body was read and checked."""

    def __init__(self, request: Request, value: BaseModel) -> None:
        super().__init__(request.scope, request.receive)
        self._value = value

    async def body(self) -> bytes:
        """Not empty: what the framework looks at before it asks for the value."""
        return b"{}"

    async def json(self) -> Any:
        """The value; pydantic takes an instance of its model as it is."""
        return self._value


def read_long(model: type[BaseModel], body: bytes, max_tokens: int = MANY, max_prompts: int = MANY) -> BaseModel:
    """What a body of any size says. Fields that can't be meant are refused before they are made into objects.

    Args:
        model: of the body.
        body: JSON.
        max_tokens: token ids that one prompt can have.
        max_prompts: prompts that there can be.

    Raises:
        RequestValidationError: it is no JSON, or not of this form.
    """
    try:
        parts: Mapping[str, bytes] = _split(body)
    except msgspec.ValidationError:
        raise _invalid("model_attributes_type", ()) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid("json_invalid", (), str(error)[:200]) from None
    unknown = parts.keys() - model.model_fields.keys()
    if unknown:
        first = [name for name in parts if name in unknown][:MAX_ERRORS]
        raise RequestValidationError([_error("extra_forbidden", (name,)) for name in first])
    for name, part in parts.items():
        if name not in PROMPTS and len(bytes(part)) > LONG_FIELD:
            raise _invalid("field_too_long", (name,))
    try:
        for name in LISTS & parts.keys():
            part = bytes(parts[name])
            if part.startswith(b"[") and b'"' not in part:
                lists = part.count(b"[") - 1
                _check_prompts(name, lists, max_prompts)
                _check_tokens(name, 0 if lists else part.count(b",") + 1, max_tokens)
        values = {name: json.loads(bytes(part)) for name, part in parts.items()}
        for name in LISTS & parts.keys():
            value = values[name]
            if isinstance(value, list) and value and isinstance(value[0], str | list):
                _check_prompts(name, len(value), max_prompts)
            for each in value if isinstance(value, list) else ():
                if isinstance(each, list):
                    _check_tokens(name, len(each), max_tokens)
        return model.model_validate(values)
    except InvalidRequest as error:
        raise _invalid("value_error", (error.field,), error) from None
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_url=False)) from None
    except (ValueError, RecursionError) as error:
        raise _invalid("json_invalid", (), str(error)[:200]) from None


def _check_prompts(name: str, count: int, most: int) -> None:
    if count > most:
        raise InvalidRequest(name, f"{name}: {count} prompts; must be at most {most}")


def _check_tokens(name: str, count: int, most: int) -> None:
    if count > most:
        raise PromptTooLong(name, f"{name} has {count} tokens: more than max_model_len={most} holds")


def _invalid(kind: str, place: tuple[str, ...], cause: str | InvalidRequest = "") -> RequestValidationError:
    return RequestValidationError([_error(kind, place, cause)])


def _error(kind: str, place: tuple[str, ...], cause: str | InvalidRequest = "") -> dict[str, Any]:
    """An error as pydantic lists it."""
    return {"type": kind, "loc": ("body", *place), "msg": kind, "input": None, "ctx": {"error": cause}}


def _is_json(kind: str) -> bool:
    main = kind.partition(";")[0].strip().lower()
    return main == "application/json" or (main.startswith("application/") and main.endswith("+json"))
