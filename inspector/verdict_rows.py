"""A verdict as rows and shares. Pure functions of a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .export import Table, Value
from .view import Judgement

NS_PER_S = 1e9


class BlamedRow(NamedTuple):
    """One that time was spent on.

    Attributes:
        part: as which, in words.
        request: whose; "" where it is no request's.
        seq: the sequence of it that weighs most; -1 where it is none.
        weight_ns: the time.
        of_life: its share of the sequence's whole time.
        words: what it did.
        step: in which it weighed most, or -1.
    """

    part: str
    request: str
    seq: int
    weight_ns: int
    of_life: float
    words: str
    step: int


def part_words(part: str) -> str:
    """A part's name as people read it."""
    return part.replace("_", " ")


def top_parts(verdict: Judgement, count: int) -> list[tuple[str, int]]:
    """The parts that took most, and all others as one: name, nanoseconds."""
    parts = sorted(verdict.parts.items(), key=lambda item: -item[1])
    rest = sum(ns for _, ns in parts[count:])
    return parts[:count] + ([("others", rest)] if rest else [])


def blamed_rows(verdict: Judgement) -> list[BlamedRow]:
    """Those that time was spent on, the heaviest first."""
    whole = sum(verdict.parts.values())
    return [
        BlamedRow(part_words(part), c.request, c.seq, c.weight_ns, c.weight_ns / max(1, whole), c.words, c.step)
        for part, c in verdict.blamed
    ]


def blamed_table(seq: int, rows: Sequence[BlamedRow]) -> Table:
    """Who time was spent on, for an export, in seconds."""
    values: list[list[Value]] = [
        [row.part, row.request, row.seq, row.weight_ns / NS_PER_S, row.of_life, row.words, row.step] for row in rows
    ]
    return Table(f"sequence-{seq}-culprits", ["part", "request", "seq", "spent_s", "share", "words", "step"], values)
