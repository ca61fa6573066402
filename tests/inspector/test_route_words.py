"""Why a replica was chosen, in words: each reason with the figures that decided, and odd records without a crash."""

from __future__ import annotations

import pytest

from nanolens.inspector.describe import describe
from nanolens.inspector.route_words import route_sentence, with_found
from nanolens.telemetry.events import RequestArrived

ROUTE: dict[str, str | int] = {
    "replica": "r1", "reason": "load", "matched_blocks": 2, "best_matched_blocks": 9, "prompt_blocks": 12, "load": 3,
    "least_load": 1, "replicas": 2, "attempt": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("route", "words"),
    [
        ({"reason": "prefix"}, "(prefix): it was believed to cache 2 of the prompt's 12 blocks, the most of all; it"),
        ({"reason": "prefix", "known_ms": 140}, "cache 2 of the prompt's 12 blocks (as of 140 ms before), the most"),
        ({"reason": "prefix", "found_blocks": 0}, "the most of all, but none of these 2 were found there; it held"),
        ({"reason": "only", "found_blocks": 1}, "12 blocks, but only 1 of these 2 was found there."),
        ({}, "r1 (load): the one that was believed to cache 9 of the prompt's 12 blocks had too much to do; it"),
        ({"best_matched_blocks": 0}, "(load): none was believed to cache any of the prompt's blocks; it held 3 "),
        ({"reason": "no_blocks"}, "had a queue and too few free blocks; this one was believed to cache 2 of"),
        ({"reason": "only"}, "r1 (only): there was no other to choose; it was believed to cache 2 of"),
        ({"reason": "only", "attempt": 2}, "there was no other to choose that had not failed it before; it was"),
        ({"reason": "full"}, "r1 (full): the first choice took no more calls; this one was believed to cache 2 of"),
        ({"reason": "pinned"}, "r1 (pinned): the request names it, or goes on there; it was believed to cache 2"),
        ({"reason": "pinned"}, "12 blocks, another one 9."),
        ({"reason": "pinned", "best_matched_blocks": 2}, "r1 (pinned): the request names it, or goes on there."),
        ({"attempt": 3, "left": "r0 r2"}, "the least loaded 1; this was attempt 3, after r0 and r2."),
        ({"reason": ""}, "The router chose replica r1."),
        ({"reason": "of tomorrow", "attempt": 2}, "The router chose replica r1 (of tomorrow); this was attempt 2."),
        ({"load": "many"}, "it held 0 requests"),
    ],
)
def test_a_reason_comes_with_its_figures(route: dict[str, str | int], words: str) -> None:
    found = route_sentence(ROUTE | route)
    assert words in found and found.startswith("The router chose replica r1") and found.endswith(".")


@pytest.mark.parametrize(
    ("hit", "prompt", "found"),
    [(32, 200, None), (48, 200, None), (16, 200, 1), (0, 200, 0), (16, 32, None), (0, 32, 0), (None, 200, None)],
)
def test_less_that_is_found_than_was_believed_is_told(hit: int | None, prompt: int, found: int | None) -> None:
    """Of two blocks of 16 tokens; where the prompt is these alone, the last one has to be computed all the same."""
    told = with_found(ROUTE, hit, prompt, 16)
    assert told is not None and told.get("found_blocks") == found
    assert with_found(None, hit, prompt, 16) is None


def test_an_arrival_says_where_it_was_routed_and_nothing_without_a_router() -> None:
    plain = RequestArrived(1, "r", [4], 3, 8, 0, {})
    sent = RequestArrived(1, "r", [4], 3, 8, 0, {}, route=ROUTE | {"attempt": 2})
    assert describe(sent) == f"{describe(plain)}; routed to r1 (load, attempt 2)"
    assert "routed" not in describe(plain)
