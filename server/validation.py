"""What is wrong with a JSON body: pydantic's list of errors as one field and one sentence. Knows no route."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InvalidRequest

_WORDS = {
    "missing": "is required",
    "extra_forbidden": "is no parameter of this endpoint; leave it out, or check its spelling",
    "string_type": "must be a string",
    "string_unicode": "must be valid Unicode, without lone surrogates",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "is too large a number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "field_too_long": "is too long: of a long body, only the prompt may be long",
}
# Words that take a limit out of the error's context.
_LIMITS = {
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
    "literal_error": "must be {expected}",
    "too_long": "must have at most {max_length} items",
    "too_short": "must have at least {min_length} items",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
}
_OBJECTS = frozenset({"stream_options"})  # fields whose own fields are params; elsewhere the place is in the message
_SHOWS_NO_VALUE = frozenset(
    {"missing", "extra_forbidden", "too_long", "string_too_long", "string_unicode", "field_too_long"}
)
MAX_NAME = 100  # characters of a param; an unknown field's name is the client's
MAX_NAMED = 3  # further fields that are named


def describe_invalid(errors: Sequence[Any]) -> tuple[str | None, str]:
    """The field at fault and what is wrong with it, of the first of pydantic's errors."""
    error: Mapping[str, Any] = errors[0] if errors else {"type": "", "msg": "the body can't be read", "loc": ()}
    kind, context = error["type"], error.get("ctx") or {}
    cause = context.get("error")
    if isinstance(cause, InvalidRequest):
        return cause.field, str(cause)
    if kind == "json_invalid":
        return None, f"the body is no JSON: {cause}"
    param = name_of(error["loc"])
    if param is None:
        return None, "the body must be a JSON object, sent as application/json"
    words = _WORDS.get(kind)
    if kind in _LIMITS:
        words = _LIMITS[kind].format(**context)
    words = words or error["msg"]
    given = "" if kind in _SHOWS_NO_VALUE else f"={shown(error.get('input'))}"
    top = param.partition("[")[0].partition(".")[0]
    return param if top in _OBJECTS else top, f"{param}{given}: {words}{_further(errors)}"


def _further(errors: Sequence[Any]) -> str:
    """Other unknown fields, the first few."""
    names = [name_of(each["loc"]) for each in errors[1 : 1 + MAX_NAMED] if each["type"] == "extra_forbidden"]
    return f" (and {', '.join(filter(None, names))})" if names else ""


def name_of(location: Sequence[int | str]) -> str | None:
    """A place in a body as its param is written: `messages[0].content`; None for the body itself.

    It is cut to MAX_NAME characters: what does not exist is named as its client did, and goes into the journal.
    """
    parts = location[1:] if location and location[0] in ("body", "path", "query", "header") else location
    name = ""
    for part in parts:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    if len(name) > MAX_NAME:
        name = name[: MAX_NAME - 1] + "…"
    return name.encode(errors="backslashreplace").decode() or None


def shown(value: object) -> str:
    """A value for a message, short and encodable; an int of thousands of digits has no text in Python."""
    try:
        text = reprlib.repr(value)
    except ValueError:
        text = f"<{type(value).__name__}>"
    return text.encode(errors="backslashreplace").decode()
