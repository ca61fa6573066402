"""What callers give as names and token ids, brought to plain types or refused. Knows no engine."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence

from ..errors import InvalidRequest

Prompt = str | Sequence[int]
MAX_NAME = 256  # characters of a request id or a traceparent
MAX_ROUTE = 16  # entries


def as_name(field: str, value: object, max_chars: int = MAX_NAME) -> str:
    """A request id or traceparent as a plain string that a journal can hold.

    Raises:
        InvalidRequest: with that field: no string, too long, or a lone surrogate in it.
    """
    if not isinstance(value, str):
        raise InvalidRequest(field, f"{field}: must be a string, not {type(value).__name__}")
    if len(value) > max_chars:
        raise InvalidRequest(field, f"{field} has {len(value)} characters: must be at most {max_chars}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        message = f"{field} holds a lone surrogate at character {error.start}: send Unicode"
        raise InvalidRequest(field, message) from None
    return str.__str__(value)  # a subclass is no string to the journal


def as_route(route: object) -> dict[str, str | int]:
    """A router's decision in plain types, as a journal can hold it: names, and texts of their length or numbers.

    Raises:
        InvalidRequest: with the field `route`.
    """
    if not isinstance(route, Mapping) or len(route) > MAX_ROUTE:
        got = f"{len(route)} entries" if isinstance(route, Mapping) else type(route).__name__
        raise InvalidRequest("route", f"route: must be a mapping of at most {MAX_ROUTE} names, not {got}")
    found: dict[str, str | int] = {}
    for name, value in route.items():
        told = int(value) if isinstance(value, numbers.Integral) else as_name("route", value)
        if isinstance(told, int) and not -(1 << 63) <= told < 1 << 63:
            raise InvalidRequest("route", "route: a number in it must fit into 64 bits")
        found[as_name("route", name)] = told
    return found


def recordable(value: object) -> str | None:
    """A name as a refusal is recorded under it: escaped and cut if need be; None where it is no string."""
    return value[:MAX_NAME].encode(errors="backslashreplace").decode() if isinstance(value, str) else None


def as_token_ids(prompt: object, field: str = "prompt") -> list[int]:
    """The items of a sequence or an array, whole numbers as plain ints; others are left for the check of ids.

    Raises:
        InvalidRequest: with that field, naming the type of what is neither.
    """
    is_list = isinstance(prompt, Sequence) and not isinstance(prompt, str | bytes | bytearray | memoryview)
    is_array = hasattr(prompt, "dtype") and hasattr(prompt, "tolist")
    items: object = prompt if is_list else prompt.tolist() if is_array else None  # type: ignore[attr-defined]
    if not isinstance(items, Sequence) or isinstance(items, str):  # an array without dimensions holds no list
        kind = type(prompt).__name__
        raise InvalidRequest(field, f"{field}: must be a text or a list of token ids, not {kind}")
    token_ids = list(items)
    if all(type(item) is int for item in token_ids):
        return token_ids
    return [t if isinstance(t, bool) or not isinstance(t, numbers.Integral) else int(t) for t in token_ids]
