"""Command-line flags for every engine setting, made from EngineConfig itself. Knows argparse and the dataclass."""

from __future__ import annotations

import argparse
import dataclasses
import re
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ..engine.config import EngineConfig


def add_engine_flags(parser: argparse.ArgumentParser, leave_out: frozenset[str] = frozenset()) -> None:
    """Add a flag for each field of EngineConfig; a flag that is not given is not in the parsed namespace.

    Args:
        parser: gets a group of its own for them.
        leave_out: fields that the command sets in its own way.
    """
    group = parser.add_argument_group("engine settings", "every setting of EngineConfig")
    about, hints = attribute_docs(EngineConfig), get_type_hints(EngineConfig)
    for field in dataclasses.fields(EngineConfig):
        if field.name in leave_out:
            continue
        flag, kind = "--" + field.name.replace("_", "-"), _plain(hints[field.name])
        options: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS}
        default = "" if field.default is None else f" (default: {field.default})"
        options["help"] = (about.get(field.name, "") + default).replace("%", "%%")
        if kind is bool:
            options["action"] = argparse.BooleanOptionalAction
        elif get_origin(kind) is Literal:
            options["choices"] = get_args(kind)
        else:
            options |= {"type": kind, "metavar": {int: "N", float: "X"}.get(kind, "TEXT")}
        group.add_argument(flag, **options)


def engine_options(namespace: argparse.Namespace) -> dict[str, Any]:
    """The engine settings that were given."""
    names = {field.name for field in dataclasses.fields(EngineConfig)} - {"model"}
    return {name: value for name, value in vars(namespace).items() if name in names}


def attribute_docs(cls: type) -> dict[str, str]:
    """What a class's docstring says of each attribute, one line each; empty where docstrings are stripped."""
    found: dict[str, str] = {}
    name = ""
    for line in (cls.__doc__ or "").partition("Attributes:")[2].splitlines():
        entry = re.match(r"\s+(\w+): (.+)", line)
        if entry:
            name = entry[1]
            found[name] = entry[2]
        elif name and line.strip():
            found[name] += " " + line.strip()
    return found


def _plain(hint: Any) -> Any:
    """`int` of `int | None`: leaving a flag out says None."""
    if get_origin(hint) is Literal:
        return hint
    kinds = [each for each in get_args(hint) if each is not type(None)]
    return kinds[0] if kinds else hint
