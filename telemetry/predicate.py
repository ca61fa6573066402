"""A small language to pick events by: `on=blocks.allocated free<10`, `on=status to=PAUSED`, `seq=17`; see `parse`.

Knows the vocabulary of the journal, and nothing of who asks.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ..errors import InvalidRequest
from .event_fields import BY_TAG, FIELDS, NO_NAMES, STATUS_ALIASES, STATUSES, Names, named_sequences, tag_of
from .events import AnyEvent, StatusChanged

MAX_LENGTH = 1000  # characters of a predicate
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_Getter = Callable[[Any], Any]
_Check = Callable[[Any], bool]
_TERM = re.compile(r'([a-z_]+)(!=|<=|>=|=|<|>)("(?:[^"\\]|\\["\\])*"|[^\s"=<>]+)(?!\S)')
_BARE = re.compile(r'[^\s"=<>]+')
_NUMBER = re.compile(r"-?[0-9]+(_[0-9]+)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Term:
    """One condition. A VALUE that is a whole number is still a text where the field is one."""

    name: str
    op: str
    value: str

    def __str__(self) -> str:
        if _BARE.fullmatch(self.value):
            return f"{self.name}{self.op}{self.value}"
        escaped = self.value.replace("\\", "\\\\").replace('"', '\\"')
        return f'{self.name}{self.op}"{escaped}"'

    @property
    def number(self) -> int | None:
        """The value as a whole number, if it is one."""
        return int(self.value) if _NUMBER.fullmatch(self.value) else None


@dataclass(frozen=True, slots=True)
class _Plan:
    """What has to hold of the events of one class."""

    checks: tuple[_Check, ...]
    own_request: bool  # has a field `request`
    seqs: Callable[[Any], Iterable[int]] | None  # the sequences that it names
    subject: tuple[tuple[bool, Callable[[Any, Any], bool], Any], ...]  # (is on `seq`, comparison, value)


@dataclass(frozen=True, slots=True)
class Predicate:
    """A checked predicate.

    Attributes:
        text: the predicate with whole tags, `on` first and no term twice; parsing it gives an equal predicate.
        events: the classes of the events that it may hold for.
    """

    text: str
    events: frozenset[type] = field(compare=False)
    _plans: dict[type, _Plan] = field(compare=False, repr=False)

    def matches(self, event: AnyEvent, names: Names = NO_NAMES) -> bool:
        """Whether it holds for an event.

        Args:
            event: any.
            names: sequence id -> request id, as `RequestNames` keeps them; only terms on `request` look there.
        """
        plan = self._plans.get(event.__class__)
        if plan is None:
            return False
        for check in plan.checks:
            if not check(event):
                return False
        return not plan.subject or bool(_subjects(plan, event, names))

    def sequences(self, event: AnyEvent, names: Names = NO_NAMES) -> list[int]:
        """Of the sequences that a matching event names, those that meet the terms on `seq` and `request`."""
        plan = self._plans.get(event.__class__)
        if plan is None or plan.seqs is None:
            return []
        return list(dict.fromkeys(_subjects(plan, event, names)))


def parse(text: str) -> Predicate:
    """Read a predicate and check all of it.

    A predicate is terms NAME OP VALUE, joined by spaces, that must all hold; OP is one of = != < <= > >=.

    - `on` is an event's tag, or what stands after its last dot where no other tag ends so (`preempted`, `status`).
    - Any other NAME is a field of an event; an event without it never matches. `from` and `to` are the statuses of
      sequence.status. Texts and flags (true, false) know = and != alone, numbers all OPs. What has a length is compared
      by its length, and a field that holds nothing as "" or 0.
    - `seq` and `request` are about the sequences that an event names: its own `seq`, or those in `seqs`, in the chunks
      and the idle of step.planned, and in `wasted`; neither a step's decodes nor `by`. At least one of them has to meet
      all terms on `seq` and `request`. Where the event doesn't hold the request itself, `names` tells it.
    - VALUE stands in double quotes where it is empty or holds a space, a quote, =, < or >; in quotes, a backslash
      stands before a quote and a backslash.

    Args:
        text: at most MAX_LENGTH characters.

    Raises:
        InvalidRequest: with field `predicate`: what is wrong, what there is instead.
    """
    terms = list(dict.fromkeys(_terms(_plain(text))))
    events = _events_on([term for term in terms if term.name == "on"])
    fields = [term for term in terms if term.name != "on"]
    fitting = [_fitting(term, events) for term in fields]
    left = [kind for kind in events if all(kind in each for each in fitting)]
    if not left:
        _refuse(f"{' '.join(map(str, fields))}: no event has all of these fields; give fewer terms, or another on=TAG")
    canonical = dict.fromkeys(_canonical(term, left) for term in terms)
    ordered = sorted(canonical, key=lambda term: term.name != "on")  # stable
    plans = {kind: _plan(kind, fields) for kind in left}
    return Predicate(" ".join(map(str, ordered)), frozenset(left), plans)


def _plain(text: object) -> str:
    """A text that a journal can hold."""
    if not isinstance(text, str):
        _refuse(f"must be a text such as on=preempted, not {type(text).__name__}")
    if len(text) > MAX_LENGTH:
        _refuse(f"has {len(text)} characters: must be at most {MAX_LENGTH}")
    if any("\ud800" <= char <= "\udfff" for char in text):
        _refuse("holds a lone surrogate: send Unicode")
    return str.__str__(text)


def _terms(text: str) -> Iterable[Term]:
    rest = text.strip()
    if not rest:
        _refuse("is empty: give at least one term NAME OP VALUE, such as on=preempted or free<10")
    while rest:
        found = _TERM.match(rest)
        if found is None:
            word = rest.split(maxsplit=1)[0]
            _refuse(
                f"{word!r} is no term: a term is NAME OP VALUE without spaces, OP one of {' '.join(OPERATORS)}, and "
                'VALUE in double quotes where it is empty or holds a space, a quote, =, < or >, such as reason=""'
            )
        name, op, value = found.groups()
        if value[0] == '"':
            value = re.sub(r'\\(["\\])', r"\1", value[1:-1])
        yield Term(name, op, value)
        rest = rest[found.end() :].lstrip()


def _events_on(terms: list[Term]) -> list[type]:
    """The classes that all terms on `on` leave."""
    left = list(BY_TAG.values())
    for term in terms:
        if term.op not in ("=", "!="):
            _refuse(f"{term}: the name of an event has no order; use = or !=")
        named = BY_TAG[_tag(term.value)]
        left = [kind for kind in left if (kind is named) == (term.op == "=")]
    if not left:
        _refuse(f"{' '.join(map(str, terms))}: no event is left; on says which one event is meant")
    return left


def _tag(name: str) -> str:
    """The whole tag of an event that is named by it or by its last part."""
    if name in BY_TAG:
        return name
    endings: dict[str, list[str]] = {}
    for tag in BY_TAG:
        endings.setdefault(tag.rpartition(".")[2], []).append(tag)
    ending = endings.get(name, [])
    if len(ending) == 1:
        return ending[0]
    if ending:
        _refuse(f"on={name}: that may be {', '.join(ending)}; give the whole name")
    known = {tag: [tag] for tag in BY_TAG} | endings
    close = dict.fromkeys(tag for each in difflib.get_close_matches(name, known, 3) for tag in known[each])
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(BY_TAG)}"
    _refuse(f"{Term('on', '=', name)}: no such event; {hint}")


def _fitting(term: Term, events: list[type]) -> list[type]:
    """Those of the events that have the term's field, in a type that it can be compared with."""
    having = {kind: FIELDS[kind][term.name] for kind in events if term.name in FIELDS[kind]}
    if not having:
        there = sorted({name for kind in events for name in FIELDS[kind]})
        whose = f"{tag_of(events[0])} has" if len(events) == 1 else "the events that are meant have"
        close = difflib.get_close_matches(term.name, there, 1)
        hint = f"did you mean {close[0]}? " if close else ""
        _refuse(f"{term}: {whose} no field {term.name}; {hint}There are {', '.join(there)}")
    problems = {kind: _problem(term, having[kind]) for kind in having}
    fitting = [kind for kind, problem in problems.items() if problem is None]
    if not fitting:
        _refuse(f"{term}: {' or '.join(dict.fromkeys(filter(None, problems.values())))}")
    return fitting


def _problem(term: Term, kind: str) -> str | None:
    """Why a term can't be compared with a field of some kind; None where it can."""
    name, ordered = term.name, term.op not in ("=", "!=")
    if kind in ("number", "length") or (kind == "subject" and name == "seq"):
        what = f"{name} is compared by its length" if kind == "length" else f"{name} is a number"
        return None if term.number is not None else f"{what}; give a whole number"
    if ordered:
        what = "a flag" if kind == "flag" else "a text"
        return f"{name} is {what}, which has no order; use = or !="
    if kind == "flag":
        return None if term.value in ("true", "false") else f"{name} is a flag; give true or false"
    if kind == "status" and term.value not in ("", *STATUSES):
        close = difflib.get_close_matches(term.value.upper(), STATUSES, 1)
        hint = f"did you mean {close[0]}? " if close else ""
        return f'{name} is a status; {hint}There are {", ".join(STATUSES)}, and "" before the first'
    return None


def _canonical(term: Term, events: list[type]) -> Term:
    """The one way to write a term, given the events that the whole predicate may hold for."""
    if term.name == "on":
        return Term("on", term.op, _tag(term.value))
    name, value = term.name, term.value
    if events == [StatusChanged]:
        name = {"old": "from", "new": "to"}.get(name, name)
    if term.name == "seq" or all(FIELDS[kind][term.name] in ("number", "length") for kind in events):
        value = str(term.number)
    return Term(name, term.op, value)


def _plan(kind: type, terms: list[Term]) -> _Plan:
    """The checks of the events of one class."""
    checks, subject = [], []
    for term in terms:
        compare = OPERATORS[term.op]
        if term.name in ("seq", "request"):
            is_seq = term.name == "seq"
            subject.append((is_seq, compare, term.number if is_seq else term.value))
        else:
            checks.append(_check(STATUS_ALIASES.get(term.name, term.name), FIELDS[kind][term.name], compare, term))
    return _Plan(tuple(checks), "request" in kind.__struct_fields__, named_sequences(kind), tuple(subject))  # type: ignore[attr-defined]


def _check(name: str, kind: str, compare: Callable[[Any, Any], bool], term: Term) -> _Check:
    """Whether an event's field stands so to the value."""
    get: _Getter = operator.attrgetter(name)
    if kind == "number":
        number = term.number
        return lambda event: compare(get(event), number)
    if kind == "length":
        length = term.number
        return lambda event: compare(len(get(event) or ()), length)
    if kind == "flag":
        flag = term.value == "true"
        return lambda event: compare(get(event), flag)
    text = term.value
    return lambda event: compare(get(event) or "", text)


def _subjects(plan: _Plan, event: Any, names: Names) -> list[int]:
    """The sequences that meet the terms on `seq` and `request`; [-1] for a request that names none and meets them."""
    own = event.request if plan.own_request else ""
    found = []
    for seq in (-1,) if plan.seqs is None else plan.seqs(event):
        for is_seq, compare, value in plan.subject:
            if not compare(seq if is_seq else own or names.get(seq, ""), value):
                break
        else:
            found.append(seq)
    return found


def _refuse(message: str) -> NoReturn:
    raise InvalidRequest("predicate", f"predicate: {message}")
