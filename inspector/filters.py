"""A filter for rows, as typed: `state:waiting blocks>10 reason:no_blocks chat`. Knows nothing of what the rows are.

Terms are FIELD OP VALUE, all of which must hold; `!` before one turns it round. OP is `:` (texts: contains; numbers:
equals), `=`, `!=`, `<`, `<=`, `>`, `>=`. A word without OP must stand in the row's words, whatever their case.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, NoReturn, TypeVar

from ..errors import InspectError

Row = TypeVar("Row")
Kind = Literal["number", "percentage", "duration", "text"]

MAX_LENGTH = 500  # characters of a filter
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq, "!=": operator.ne,
}  # fmt: skip
_UNITS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000}
_PIECE = re.compile(r'\s*((?:"[^"]*"|[^\s"])+)')
_TERM = re.compile(r"([A-Za-z_]+)(!=|<=|>=|=|<|>|:)(.*)", re.DOTALL)
_NUMBER = re.compile(r"(-?[0-9][0-9_]*(?:\.[0-9]+)?)([A-Za-zµ%]*)", re.ASCII)


@dataclass(frozen=True)
class Field(Generic[Row]):
    """Something of a row that a term can be about.

    Attributes:
        kind: number; percentage (typed with or without its %); duration (nanoseconds, typed with a unit); text.
        value: of a row; None meets no term but one with `!` or `!=`.
        values: all that a text may be, where they are few: others are refused.
    """

    kind: Kind
    value: Callable[[Row], Any]
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Filter(Generic[Row]):
    """A checked filter.

    Attributes:
        text: as typed, without space around it.
        checks: what must hold of a row.
    """

    text: str
    checks: tuple[Callable[[Row], bool], ...]

    def matches(self, row: Row) -> bool:
        """Whether a row meets all terms."""
        return all(check(row) for check in self.checks)


def parse_filter(text: str, fields: Mapping[str, Field[Row]], words: Callable[[Row], str]) -> Filter[Row]:
    """Check a filter.

    Args:
        text: as typed; "" holds of every row.
        fields: what terms can be about, by lower-case name.
        words: in which a bare word is looked for.

    Raises:
        InspectError: it names an unknown field (the nearest is offered), or a value that its field can't have.
    """
    if len(text) > MAX_LENGTH:
        raise InspectError(f"the filter has {len(text)} characters: at most {MAX_LENGTH}")
    if text.count('"') % 2:
        raise InspectError('the filter has a " without its counterpart')
    pieces = _PIECE.findall(text)
    return Filter(text.strip(), tuple(_check(piece, fields, words) for piece in pieces))


class RowFilter(Generic[Row]):
    """The filter of a view, until another one is typed; at first every row meets it.

    Args:
        fields: what terms can be about, by lower-case name.
        words: in which a bare word is looked for.
    """

    def __init__(self, fields: Mapping[str, Field[Row]], words: Callable[[Row], str]) -> None:
        self._fields, self._words = fields, words
        self._filter: Filter[Row] = Filter("", ())

    @property
    def text(self) -> str:
        """As typed, without space around it; "" where every row meets it."""
        return self._filter.text

    def take(self, text: str) -> str:
        """Hold another one. What is wrong with it, in words, or ""; where something is, the one before stays."""
        try:
            self._filter = parse_filter(text, self._fields, self._words)
        except InspectError as error:
            return str(error)
        return ""

    def kept(self, rows: Iterable[Row]) -> list[Row]:
        """The rows that meet it, in their order."""
        return [row for row in rows if self._filter.matches(row)] if self._filter.checks else list(rows)


def _check(piece: str, fields: Mapping[str, Field[Row]], words: Callable[[Row], str]) -> Callable[[Row], bool]:
    if piece.startswith("!") and len(piece) > 1:
        check = _check(piece[1:], fields, words)
        return lambda row: not check(row)
    term = _TERM.fullmatch(piece)
    if term is None:
        word = _unquoted(piece).lower()
        return lambda row: word in words(row).lower()
    name, op, value = term[1].lower(), term[2], _unquoted(term[3])
    field = fields.get(name)
    if field is None:
        _refuse_field(name, fields)
    if not value:
        raise InspectError(f"{name}{op}: give a value, such as {name}{op}{_example(field)}")
    return _text_check(name, op, value, field) if field.kind == "text" else _number_check(name, op, value, field)


def _text_check(name: str, op: str, text: str, field: Field[Row]) -> Callable[[Row], bool]:
    value_of, wanted = field.value, text.lower()
    if op not in (":", "=", "!="):
        raise InspectError(f"{name}{op}{text}: {name} is a text: use {name}:{text}, {name}={text} or {name}!={text}")
    known = [value.lower() for value in field.values]
    if known and not any(wanted in value if op == ":" else wanted == value for value in known):
        near = difflib.get_close_matches(wanted, known, 1, 0.5)
        meant = f"; did you mean {name}{op}{near[0]}?" if near else ""
        raise InspectError(f"{name}{op}{text}: {name} is one of {', '.join(known)}{meant}")
    if op == ":":
        return lambda row: wanted in (value_of(row) or "").lower()
    equal = op == "="
    return lambda row: ((value_of(row) or "").lower() == wanted) is equal


def _number_check(name: str, op: str, text: str, field: Field[Row]) -> Callable[[Row], bool]:
    number = _number(name, op, text, field.kind)
    compare, value_of = _COMPARE["=" if op == ":" else op], field.value
    if op == "!=":
        return lambda row: bool(value_of(row) != number)

    def check(row: Row) -> bool:
        value = value_of(row)
        return value is not None and compare(value, number)

    return check


def _number(name: str, op: str, text: str, kind: Kind) -> float:
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise InspectError(f"{name}{op}{text}: {name} is a {kind}, such as {name}{op}{_EXAMPLES[kind]}")
    number, unit = float(found[1]), found[2]
    if kind == "percentage" and unit in ("", "%"):
        return number
    if kind in ("number", "percentage"):
        if unit:
            unit = "a unit" if kind == "number" else "another unit"
            raise InspectError(f"{name}{op}{text}: {name} is a {kind} without {unit}, such as {name}{op}{found[1]}")
        return number
    if unit not in _UNITS and (unit or number):
        raise InspectError(f"{name}{op}{text}: give a unit: {found[1]}ms, {found[1]}s or {found[1]}m")
    return number * _UNITS.get(unit, 1)


_EXAMPLES: dict[Kind, str] = {"number": "10", "percentage": "50", "duration": "250ms", "text": "text"}


def _example(field: Field[Row]) -> str:
    return field.values[0].lower() if field.values else _EXAMPLES[field.kind]


def _unquoted(text: str) -> str:
    return text.replace('"', "")


def _refuse_field(name: str, fields: Mapping[str, Field[Row]]) -> NoReturn:
    near = difflib.get_close_matches(name, fields, 1, 0.5)
    meant = f"; did you mean {near[0]}?" if near else ""
    raise InspectError(f"there is no field {name}: it is one of {', '.join(fields)}{meant}")
