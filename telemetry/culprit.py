"""What a culprit is: one that a part of a request's time was spent on, in words. Finds none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

US, MS, S = 1_000, 1_000_000, 1_000_000_000
HOST_WORDS = {
    "collect": "what followed from the tokens before: callbacks, texts, the queues",
    "plan": "planning",
    "launch": "launching",
    "between": "outside the engine's step: the caller, or the process did not run",
}
MISSES = (
    ("evicted", "had been cached and were evicted"),
    ("never_seen", "were never seen before"),
    ("sub_block", "in a block that is not full"),
)


@dataclass(frozen=True, slots=True)
class Culprit:
    """One that a part was spent on.

    Attributes:
        kind: holder (of blocks), runner (in a slot), chunks and decodes (took the budget), prefill (stretched steps),
            batch (decoded beside), preemptor, step (under way at the arrival), head (of the queue), sibling, collect,
            plan, launch, between (the host), pause (of the engine), rest (its own), move, reader, lost, miss, gap,
            `rank 1` (the slowest of those that share the model), stall (a step that stood still),
            failed (the step that it ended with).
        request: whose; "" where it is no request's.
        seq: of that request the one that weighs most; -1 where it is none.
        weight_ns: of the part that it accounts for. Heads of the queue come after those they waited for themselves, and
            count the same time once more.
        words: what it did.
        step: in which it weighed most, or -1.
    """

    kind: str
    request: str
    seq: int
    weight_ns: int
    words: str
    step: int = -1


def divided(total: int, amounts: Sequence[float]) -> list[int]:
    """A time in proportion to amounts, in whole nanoseconds: each rounded down, what is left goes to the largest.

    Args:
        total: nanoseconds.
        amounts: >= 0; where all are 0, so is every share.
    """
    whole, left = sum(amounts), total
    if not whole:
        return [0] * len(amounts)
    found = []
    for amount in amounts:
        found.append(min(left, int(total * (amount / whole))))
        left -= found[-1]
    found[max(range(len(amounts)), key=amounts.__getitem__)] += left
    return found


def merged(found: list[Culprit]) -> list[Culprit]:
    """Those of the same kind and request as one, with the words of the heaviest."""
    groups: dict[tuple[str, str], list[Culprit]] = {}
    for culprit in found:
        groups.setdefault((culprit.kind, culprit.request), []).append(culprit)
    result = []
    for same in groups.values():
        top = max(same, key=lambda culprit: culprit.weight_ns)
        more = f"; {len(same) - 1} more" if len(same) > 1 else ""
        weight = sum(culprit.weight_ns for culprit in same)
        result.append(Culprit(top.kind, top.request, top.seq, weight, top.words + more, top.step))
    return result


def time_words(ns: int) -> str:
    """`2.31 s`, `12.3 ms`, `850 µs`."""
    if ns >= S:
        return f"{ns / S:.2f} s"
    return f"{ns / MS:.1f} ms" if ns >= MS else f"{ns / US:.0f} µs"


def count_words(count: int, noun: str) -> str:
    """`1 block`, `2 blocks`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
