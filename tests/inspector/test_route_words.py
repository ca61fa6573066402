"""Why a replica was chosen, in words: each reason with the figures that decided, and odd records without a crash."""

from __future__ import annotations

import pytest

from nanolens.inspector.describe import describe
from nanolens.inspector.route_words import route_sentence
from nanolens.telemetry.events import RequestArrived

ROUTE: dict[str, str | int] = {
    "replica": "r1", "reason": "load", "matched_blocks": 2, "best_matched_blocks": 9, "prompt_blocks": 12, "load": 3,
    "least_load": 1, "replicas": 2, "attempt": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("route", "words"),
    [
        ({"reason": "prefix"}, "(prefix): it caches 2 of the prompt's 12 blocks, the most of all; it held 3 requests"),
        ({}, "r1 (load): the one that caches 9 of the prompt's 12 blocks had too much to do; it held 3 requests, the"),
        ({"best_matched_blocks": 0}, "r1 (load): none caches any of the prompt's blocks; it held 3 requests"),
        ({"reason": "no_blocks"}, "had a queue and too few free blocks; this one caches 2, and it held 3"),
        ({"reason": "only"}, "r1 (only): there was no other to choose; it caches 2 of"),
        ({"reason": "full"}, "r1 (full): the first choice took no more calls; this one caches 2 of"),
        ({"reason": "pinned"}, "r1 (pinned): the request names it, or goes on there."),
        ({"attempt": 3, "left": "r0 r2"}, "the least loaded 1; this was attempt 3, after r0 and r2."),
        ({"reason": ""}, "The router chose replica r1."),
        ({"reason": "of tomorrow", "attempt": 2}, "The router chose replica r1 (of tomorrow); this was attempt 2."),
        ({"load": "many"}, "it held 0 requests"),
    ],
)
def test_a_reason_comes_with_its_figures(route: dict[str, str | int], words: str) -> None:
    found = route_sentence(ROUTE | route)
    assert words in found and found.startswith("The router chose replica r1") and found.endswith(".")


def test_an_arrival_says_where_it_was_routed_and_nothing_without_a_router() -> None:
    plain = RequestArrived(1, "r", [4], 3, 8, 0, {})
    sent = RequestArrived(1, "r", [4], 3, 8, 0, {}, route=ROUTE | {"attempt": 2})
    assert describe(sent) == f"{describe(plain)}; routed to r1 (load, attempt 2)"
    assert "routed" not in describe(plain)
