"""Settings as flags, environment variables and entries of a file, all read off the dataclasses that hold them.

Knows names, types and help texts; what a value means is the dataclasses' own.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ..errors import InvalidConfig

ENV_PREFIX = "NANOLENS_"
# Variables that are no option's: the key of block hashes, the file with settings, the registry of what runs, shared
# data, and tests.
_OTHERS = ("BLOCK_KEY", "CONFIG", "STATE_DIR", "SHARED", "HYPOTHESIS", "TEST_SERVER")
OTHER_VARIABLES = frozenset(ENV_PREFIX + name for name in _OTHERS)
_SIZE = re.compile(r"(\d+)\s*(?:([KMGT])(?:i?B)?|B)?", re.IGNORECASE)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Option:
    """One setting.

    Attributes:
        name: as the dataclass has it.
        kind: the type of its value, of its items where `many`.
        choices: the texts that are allowed; empty: any.
        optional: whether it can be None, written "none".
        many: whether it is a list, separated by commas outside of a file.
        is_size: whether it is a number of bytes, which may have a unit.
        default: what it is where nobody sets it.
        help: one sentence or two.
    """

    name: str
    kind: type
    choices: tuple[str, ...]
    optional: bool
    many: bool
    is_size: bool
    default: object
    help: str

    @property
    def flag(self) -> str:
        """On a command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """In the environment."""
        return ENV_PREFIX + self.name.upper()

    def parse(self, text: str) -> Any:
        """The value of a text.

        Raises:
            InvalidConfig: it is none of this option's, with what is.
        """
        if self.optional and text.lower() == "none":
            return None
        if self.many:
            return tuple(item.strip() for item in text.split(",") if item.strip())
        if self.choices and text not in self.choices:
            raise InvalidConfig(f"{self.name}={text[:100]!r}: must be one of {', '.join(self.choices)}")
        if self.kind is bool:
            if text.lower() not in (*_TRUE, *_FALSE):
                raise InvalidConfig(f"{self.name}={text[:100]!r}: must be true or false")
            return text.lower() in _TRUE
        if self.is_size:
            return parse_size(self.name, text)
        try:
            return self.kind(text)
        except ValueError:
            needed = "a whole number" if self.kind is int else "a number"
            raise InvalidConfig(f"{self.name}={text[:100]!r}: must be {needed}") from None


def parse_size(name: str, text: str) -> int:
    """Bytes of a text such as 1048576, 64MiB or 2G.

    Raises:
        InvalidConfig: it is no size.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise InvalidConfig(f"{name}={text[:100]!r}: must be a number of bytes, such as 1048576, 64MiB or 2G")
    return int(found[1]) * _UNITS[(found[2] or "").upper()]


def options_of(settings: type, sizes: Iterable[str] = (), leave_out: Iterable[str] = ()) -> list[Option]:
    """The options that a dataclass holds; each is described in its docstring's Attributes.

    Args:
        settings: a dataclass.
        sizes: names of those that count bytes.
        leave_out: names of fields that are no options.
    """
    hints, texts = get_type_hints(settings), attribute_texts(settings)
    found = []
    for entry in dataclasses.fields(settings):
        if entry.name in leave_out:
            continue
        hint = hints[entry.name]
        kinds = [part for part in get_args(hint) if part is not NoneType] if NoneType in get_args(hint) else [hint]
        many = get_origin(kinds[0]) is tuple
        choices = get_args(kinds[0]) if get_origin(kinds[0]) is Literal else ()
        found.append(
            Option(
                entry.name, str if many or choices else kinds[0], choices, NoneType in get_args(hint), many,
                entry.name in sizes, entry.default, texts.get(entry.name, ""),
            )
        )  # fmt: skip
    return found


def attribute_texts(settings: type) -> dict[str, str]:
    """What a class's docstring says about each of its attributes."""
    _, _, section = inspect.cleandoc(settings.__doc__ or "").partition("Attributes:\n")
    texts: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        if not line.startswith("    "):
            break
        found = re.match(r"    (\w+): (.*)", line)
        if found is not None:
            name = found[1]
            texts[name] = found[2]
        elif name:
            texts[name] += " " + line.strip()
    return texts


def from_environment(options: Iterable[Option], environment: Mapping[str, str]) -> dict[str, Any]:
    """What the environment sets. An empty variable sets nothing.

    Raises:
        InvalidConfig: naming the variable, which no option has or whose value is none of its option's.
    """
    options = list(options)
    known = OTHER_VARIABLES.union(option.variable for option in options)
    for name in sorted(environment):
        if name.startswith(ENV_PREFIX) and environment[name] and name not in known:
            names = [each.removeprefix(ENV_PREFIX) for each in known]
            close = difflib.get_close_matches(name.removeprefix(ENV_PREFIX).upper(), names, 1)
            hint = f"did you mean {ENV_PREFIX}{close[0]}?" if close else "`nano-serve --help` lists them; unset it"
            raise InvalidConfig(f"{name[:100]}: there is no such setting; {hint}")
    values = {}
    for option in options:
        text = environment.get(option.variable, "")
        if text:
            try:
                values[option.name] = option.parse(text)
            except InvalidConfig as error:
                raise InvalidConfig(f"{option.variable}: {error}") from None
    return values


def from_file(options: Iterable[Option], path: str) -> dict[str, Any]:
    """What a file sets: TOML, or JSON where its name ends so. Names are written with - or _.

    Raises:
        InvalidConfig: it can't be read, or an entry is none of the options or of the wrong type.
    """
    known = {option.name: option for option in options}
    values = {}
    for key, value in _read(Path(path)).items():
        name = key.replace("-", "_")
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else "`nano-serve --help` lists them"
            raise InvalidConfig(f"{path}: there is no setting {key[:100]!r}; {hint}")
        try:
            values[name] = _of_file(known[name], value)
        except InvalidConfig as error:
            raise InvalidConfig(f"{path}: {error}") from None
    return values


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise InvalidConfig(f"{path}: can't be read ({error.strerror})") from error
    except ValueError as error:
        raise InvalidConfig(f"{path}: is no {'JSON' if path.suffix == '.json' else 'TOML'} ({error})") from error
    if not isinstance(found, dict):
        raise InvalidConfig(f"{path}: must hold an object, a value for each setting")
    return found


def _of_file(option: Option, value: object) -> Any:
    """A value that a file gives in its own types."""
    if value is None or (isinstance(value, str) and not option.many):
        return option.parse("none" if value is None else value)
    if option.many:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise InvalidConfig(f"{option.name}: must be a text or a list of texts")
        return tuple(items)
    fits = isinstance(value, bool) if option.kind is bool else isinstance(value, int | float)
    if not fits or isinstance(value, bool) is not (option.kind is bool):
        raise InvalidConfig(f"{option.name}={str(value)[:100]}: must be of the type {option.kind.__name__}")
    if option.kind is int and isinstance(value, float):
        raise InvalidConfig(f"{option.name}={value}: must be a whole number")
    return option.kind(value)
