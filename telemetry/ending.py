"""How a request ended, in words. Knows the reasons of the engine's transitions; weighs nothing."""

from __future__ import annotations

from dataclasses import dataclass

from .latency import Breakdown

_VERBS = {"aborted": "was aborted after", "expired": "expired after", "error": "ended in an error after"}
_WORDS = {
    "stop": "It ended with a stop token or text",
    "length": "It ended at the most tokens that it could have",
    "delivered": "It ended while it was paused: what it had by then was its answer",
    "aborted": "It was aborted",
    "expired": "It was paused for longer than paused_ttl_s lets a sequence rest",
    "error": "It ended in an error",
}


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a request; empty throughout while it lives, and where its end is not known.

    Attributes:
        reason: what its caller was told: stop, length, abort, error.
        how: why the sequence ended that ended last: stop, length, delivered, aborted, expired, error.
        error: its message.
    """

    reason: str = ""
    how: str = ""
    error: str = ""

    @property
    def is_usual(self) -> bool:
        """Whether it came to its end by itself."""
        return self.how not in _VERBS

    @property
    def verb(self) -> str:
        """What stands between the request's name and its time."""
        return _VERBS.get(self.how, "took")

    @property
    def sentence(self) -> str:
        """How it ended; "" where that is not known."""
        words = _WORDS.get(self.how, "")
        if not words:
            return ""
        if self.how == "error" and self.error:
            return f"{words}: {self.error}."
        if self.reason == "abort" and self.is_usual:
            return f"{words}; another of its sequences was aborted or expired (abort)."
        return f"{words} ({self.reason})." if self.reason else f"{words}."


def ending_of(breakdown: Breakdown) -> Ending:
    """The end of a request of a journal."""
    if not breakdown.ended:
        return Ending()
    finished = breakdown.request.finished
    if finished is None:
        return Ending(how=breakdown.track.reason)
    return Ending(finished.finish_reason, breakdown.track.reason, finished.error or "")
