"""How much later a client has a token than the engine: the server's journal against the times at the client.

Both are of one clock, CLOCK_MONOTONIC of one machine. Knows journals and answers, not how they were got.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from ..telemetry.lives import Lives
from ..telemetry.reader import JournalReader
from .serve_load import Answer


@dataclass(frozen=True)
class Spelling:
    """A prompt's answer: its text, and how many of the text's characters each of its tokens completes, summed up."""

    text: str
    ends: list[int]

    def token_of(self, end: int) -> int:
        """The token with which the text is `end` characters long."""
        return bisect_left(self.ends, end)


@dataclass(frozen=True)
class Delays:
    """Milliseconds of each piece of text, from the step that gave its last token to the client.

    Attributes:
        added_ms: in no order.
        num_compared: answers that they are from.
        num_others: answers whose text was not the known one, or that the journal does not have.
    """

    added_ms: list[float]
    num_compared: int
    num_others: int


def token_times(journal: Path) -> dict[str, list[int]]:
    """When the engine read each token: request -> clock nanoseconds, of requests of one sequence that never paused.

    Raises:
        JournalError: it can't be read.
    """
    lives = Lives(keep_intervals=True)
    for frame in JournalReader(journal).frames():
        lives.apply_all(frame.events)
    return {
        life.request: list(accumulate(life.intervals_ns, initial=life.first_token_t))
        for life in lives.lives.values()
        if life.first_token_t and not life.num_pauses
    }


def delays(answers: Sequence[Answer], known: Sequence[Spelling], times: Mapping[str, list[int]]) -> Delays:
    """Compare.

    Args:
        answers: whole ones, as they came.
        known: of each prompt.
        times: of each request's tokens.
    """
    added: list[float] = []
    compared = others = 0
    for answer in answers:
        spelling = known[answer.ask.key] if answer.ask.key is not None else None
        at_engine = next((times[name] for name in (*answer.ids, answer.request_id) if name in times), None)
        if spelling is None or at_engine is None or answer.text != spelling.text:
            others += 1
            continue
        compared += 1
        ends = accumulate(map(len, answer.pieces))
        for end, at_client in zip(ends, answer.times, strict=True):
            token = spelling.token_of(end)
            if token < len(at_engine):
                added.append((at_client - at_engine[token]) / 1e6)
    return Delays(added, compared, others)
