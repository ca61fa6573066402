"""Events as plain values that JSON can hold, with their names. Knows no file and no event in particular."""

from __future__ import annotations

import msgspec

from .events import AnyEvent


def event_as_dict(event: AnyEvent) -> dict[str, object]:
    """An event's fields by name; `event` holds its tag, bytes are hexadecimal.

    What a field named `event` holds, the tag of another event, is under `hit`.
    """
    fields = _fields(event)
    if "event" in fields:
        fields["hit"] = fields.pop("event")
    return {"event": event.__struct_config__.tag} | fields


def _fields(struct: msgspec.Struct) -> dict[str, object]:
    return {name: _plain(getattr(struct, name)) for name in struct.__struct_fields__}


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, msgspec.Struct):
        return _fields(value)
    if isinstance(value, list) and value and isinstance(value[0], msgspec.Struct):
        return [_fields(item) for item in value]
    return value
