"""Filters over rows: what they hold of, and what is refused in which words."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from nanolens.errors import InspectError
from nanolens.inspector.filters import MAX_LENGTH, Field, RowFilter, parse_filter


class Item(NamedTuple):
    request: str
    state: str = "RUNNING"
    blocks: int = 0
    age: int | None = None
    hits: float | None = None


FIELDS: dict[str, Field[Item]] = {
    "state": Field("text", lambda item: item.state, ("WAITING", "RUNNING")),
    "request": Field("text", lambda item: item.request),
    "blocks": Field("number", lambda item: item.blocks),
    "age": Field("duration", lambda item: item.age),
    "hits": Field("percentage", lambda item: item.hits),
}
ITEMS = [
    Item("chat-1", "WAITING", 0, 5_000_000),
    Item("chat-2", "RUNNING", 12, 2_500_000_000, 37.5),
    Item("Batch 3", "RUNNING", 64, None, 80.0),
]


def names(text: str) -> list[str]:
    found = parse_filter(text, FIELDS, lambda item: item.request)
    return [item.request for item in ITEMS if found.matches(item)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["chat-1", "chat-2", "Batch 3"]),
        ("  ", ["chat-1", "chat-2", "Batch 3"]),
        ("state:waiting", ["chat-1"]),
        ("state:WAIT", ["chat-1"]),
        ("state=running", ["chat-2", "Batch 3"]),
        ("state!=running", ["chat-1"]),
        ("STATE:run blocks>12", ["Batch 3"]),
        ("blocks>=12", ["chat-2", "Batch 3"]),
        ("blocks<12", ["chat-1"]),
        ("blocks<=12", ["chat-1", "chat-2"]),
        ("blocks:12", ["chat-2"]),
        ("blocks=1_2", ["chat-2"]),
        ("blocks!=12", ["chat-1", "Batch 3"]),
        ("blocks>0.5", ["chat-2", "Batch 3"]),
        ("age>1s", ["chat-2"]),
        ("age<10ms", ["chat-1"]),
        ("age:5000us", ["chat-1"]),
        ("age>0", ["chat-1", "chat-2"]),
        ("hits<50", ["chat-2"]),
        ("hits>=80%", ["Batch 3"]),
        ("!age>1s", ["chat-1", "Batch 3"]),
        ("chat", ["chat-1", "chat-2"]),
        ("!chat", ["Batch 3"]),
        ("CHAT 2", ["chat-2"]),
        ('"batch 3"', ["Batch 3"]),
        ('request:"batch 3"', ["Batch 3"]),
        ('request="h 3"', []),
        ("!", []),
    ],
)
def test_a_filter_holds_of(text: str, expected: list[str]) -> None:
    assert names(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("stat:waiting", "there is no field stat: it is one of state, request, blocks, age, hits; did you mean state?"),
        ("zzz=1", "there is no field zzz: it is one of state, request, blocks, age, hits"),
        ("state:waitng", "state:waitng: state is one of waiting, running; did you mean state:waiting?"),
        ("state=wait", "state=wait: state is one of waiting, running; did you mean state=waiting?"),
        ("state:", "state:: give a value, such as state:waiting"),
        ('request:""', "request:: give a value, such as request:text"),
        ("state>running", "state>running: state is a text: use state:running, state=running or state!=running"),
        ("blocks>many", "blocks>many: blocks is a number, such as blocks>10"),
        ("blocks>10ms", "blocks>10ms: blocks is a number without a unit, such as blocks>10"),
        ("hits>9s", "hits>9s: hits is a percentage without another unit, such as hits>9"),
        ("age>2", "age>2: give a unit: 2ms, 2s or 2m"),
        ("age>2h", "age>2h: give a unit: 2ms, 2s or 2m"),
        ("age>soon", "age>soon: age is a duration, such as age>250ms"),
        ('"open', 'the filter has a " without its counterpart'),
        ("x" * (MAX_LENGTH + 1), f"the filter has {MAX_LENGTH + 1} characters: at most {MAX_LENGTH}"),
    ],
)
def test_a_wrong_filter_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(InspectError) as refused:
        names(text)
    assert str(refused.value) == words


def test_a_filter_that_is_wrong_leaves_the_one_before() -> None:
    held = RowFilter(FIELDS, lambda item: item.request)
    assert (held.text, held.kept(ITEMS)) == ("", ITEMS)
    assert held.take(" state:waiting ") == "" and held.kept(ITEMS) == ITEMS[:1]
    assert "there is no field stat" in held.take("stat:running")
    assert (held.text, held.kept(ITEMS)) == ("state:waiting", ITEMS[:1])
    assert held.take("") == "" and held.kept(ITEMS) == ITEMS
