"""Which requests of a fleet's journals are tries of one that a client sent, and which journals ran at the same time.

Knows requests by what their journals say: the caller's span, the id, the router's decision. Knows no words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from ..telemetry.span_ids import parse_traceparent

if TYPE_CHECKING:
    from .fleet_reading import Asked

T = TypeVar("T")


def grouped(asked: Iterable[Asked]) -> list[list[Asked]]:
    """Requests by what a client sent, each with all its tries, in order of arrival.

    A router sends every try under the same span of its own, and with the same id. One span may ask for several
    requests, as a call with several prompts does: those are told apart by their ids. Where each replica got one
    request of a router's span, it is one request, whatever its ids.

    Args:
        asked: requests in order of arrival.
    """
    spans: dict[Hashable, list[Asked]] = {}
    for one in asked:
        parent = parse_traceparent(one.request.traceparent)
        spans.setdefault(id(one.request) if parent is None else parent, []).append(one)
    groups = [group for span in spans.values() for group in _of_span(span)]
    return sorted(groups, key=lambda group: group[0].arrived)


def _of_span(span: Sequence[Asked]) -> list[list[Asked]]:
    per_replica = Counter(one.replica.name for one in span)
    is_routed = any(one.request.route is not None for one in span)
    lone = {one.request.request for one in span if per_replica[one.replica.name] == 1} if is_routed else set()
    groups: dict[str, list[Asked]] = {}
    for one in span:
        name = one.request.request
        groups.setdefault("" if name in lone else name, []).append(one)  # no id is empty
    return list(groups.values())


def generations(lives: Sequence[tuple[int, int, T]]) -> list[list[T]]:
    """What lived at the same time, or in an unbroken chain of such, together; the newest first.

    Args:
        lives: (begin, end, what) in any order.
    """
    found: list[list[T]] = []
    until = 0
    for begin, end, what in sorted(lives, key=lambda life: life[:2]):
        if found and begin <= until:
            found[-1].append(what)
            until = max(until, end)
        else:
            found.append([what])
            until = end
    return found[::-1]
