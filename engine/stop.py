"""Finds stop strings in text that arrives in pieces. Knows characters only: no tokens, no engine."""

from __future__ import annotations

from collections.abc import Sequence


class _Matcher:
    """Knuth, Morris and Pratt's automaton for one string: constant amortised time a character."""

    __slots__ = ("_fallback", "matched", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.matched = 0  # length of the longest proper prefix of the pattern that ends the text read so far
        self._fallback = [0] * (len(pattern) + 1)  # [k]: longest proper border of the pattern's first k characters
        border = 0
        for k in range(1, len(pattern)):
            while border and pattern[k] != pattern[border]:
                border = self._fallback[border]
            border += pattern[k] == pattern[border]
            self._fallback[k + 1] = border

    def read(self, char: str) -> bool:
        """Advance by one character; whether an occurrence ends with it."""
        matched = self.matched
        while matched and char != self.pattern[matched]:
            matched = self._fallback[matched]
        self.matched = matched + (char == self.pattern[matched])
        if self.matched < len(self.pattern):
            return False
        self.matched = self._fallback[self.matched]  # what an occurrence that doesn't count leaves to go on with
        return True


class StopChecker:
    """Lets text through up to the first stop string, and holds back what may be the beginning of one.

    The first occurrence is the one that is complete first; of two that end with the same character, the longer one.
    So the outcome doesn't depend on how the text was cut into pieces.

    Args:
        stop: stop strings, none empty.
        include_stop: let the matched string through too; what follows it never is.
    """

    __slots__ = ("_done", "_held", "_include_stop", "_matchers")

    def __init__(self, stop: Sequence[str], include_stop: bool = False) -> None:
        # Longest first: among the strings that end with one character, the first that reports wins.
        self._matchers = [_Matcher(pattern) for pattern in sorted(stop, key=len, reverse=True)]
        self._include_stop = include_stop
        self._held = ""  # the longest end of the text that begins a stop string
        self._done = False

    def push(self, text: str, *, counts: bool = True) -> tuple[str, str | None]:
        """Take the next piece; return the text that may be shown now, and the stop string that was completed.

        Args:
            text: the next characters.
            counts: False lets occurrences that end within this piece pass as ordinary text (before `min_tokens`).
        """
        if self._done:
            return "", None
        if not self._matchers:
            return text, None
        if not self._held and not any(matcher.pattern[0] in text for matcher in self._matchers):
            return text, None  # nothing begins here
        pending = self._held + text
        for end, char in enumerate(text, len(self._held) + 1):
            found = [matcher.pattern for matcher in self._matchers if matcher.read(char)]
            if found and counts:
                self._held, self._done = "", True
                return pending[: end if self._include_stop else end - len(found[0])], found[0]
        keep = len(pending) - max(matcher.matched for matcher in self._matchers)
        self._held = pending[keep:]
        return pending[:keep], None

    def finish(self) -> str:
        """The text ended without a stop string: return what was held back, once."""
        held, self._held, self._done = self._held, "", True
        return held
