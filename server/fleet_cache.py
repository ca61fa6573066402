"""What the front of a fleet believes that one replica caches: what that reported, and what was sent there since.

Knows hashes of blocks, and neither prices nor transports.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import islice

from .fleet_messages import Report

HASH_BYTES = 8  # of a block, as the journal has it
RECENT_S = 5.0  # for which a prompt that was sent to a replica counts as cached there, before the journal says so
LAG_S = 0.5  # that a report may be behind what it tells of
MAX_RECENT = 1 << 16  # hashes
MAX_DOOMED = 1 << 12  # blocks of which it is foreseen that they go


class CacheBelief:
    """Of one replica.

    An engine takes the block that was released longest ago, the end of a prompt before its beginning. So once its pool
    is full, prompts that are on their way there evict the oldest blocks: those do not count as cached any more.

    Args:
        now: seconds.

    Attributes:
        as_of: what is known was asked for then.
    """

    def __init__(self, now: float) -> None:
        self.as_of = now
        self._cached: dict[bytes, None] = {}  # as reported; those that were used last are at the end
        self._recent: dict[bytes, float] = {}  # of prompts that were sent there -> when
        self._expected: set[bytes] = set()  # those of them that were not cached, and no report has told of yet
        self._ends: set[bytes] = set()  # the last ones of prompts: behind each is a block that is not full
        self._is_full = False

    def __len__(self) -> int:
        """Blocks that were reported."""
        return len(self._cached)

    def matched(self, hashes: Iterable[bytes], now: float) -> int:
        """How many leading blocks of a prompt it caches, or is about to."""
        since, count = now - RECENT_S, 0
        doomed = self._doomed()
        for each in hashes:
            is_cached = each in self._cached and each not in doomed
            if not is_cached and self._recent.get(each, -math.inf) < since:
                break
            count += 1
        return count

    def expect(self, hashes: Sequence[bytes], now: float) -> None:
        """A prompt was sent there."""
        for each in reversed(hashes):
            self._recent.pop(each, None)
            self._recent[each] = now
            if each in self._cached:
                self._use(each)
            else:
                self._expected.add(each)
        if hashes and hashes[-1] in self._expected:
            self._ends.add(hashes[-1])
        self._forget(now - RECENT_S)

    def released(self, hashes: Sequence[bytes]) -> None:
        """A prompt that was sent there is done."""
        for each in reversed(hashes):
            if each in self._cached:
                self._use(each)

    def take(self, report: Report, asked: float, now: float) -> None:
        """Take a report that was asked for at `asked`."""
        self.as_of = asked
        added = set(_split(report.added))
        gone: Iterable[bytes] = _split(report.removed)
        if report.is_whole:
            gone = (self._cached.keys() | self._recent.keys()) - added
        for each in gone:
            self._is_full |= each in self._cached
            self._cached.pop(each, None)
            if self._recent.get(each, now) < now - LAG_S:  # it was computed meanwhile, and is gone again
                self._drop(each)
        # Those that were sent from here in the order in which they will be evicted.
        for each in (*(added - self._recent.keys()), *(each for each in list(self._recent) if each in added)):
            self._drop(each)
            self._use(each)
        self._forget(now - RECENT_S)

    def _doomed(self) -> set[bytes]:
        """Blocks that are evicted as what is on its way arrives."""
        count = min(len(self._expected) + len(self._ends), MAX_DOOMED) if self._is_full else 0
        return set(islice(self._cached, count))

    def _use(self, each: bytes) -> None:
        self._cached.pop(each, None)
        self._cached[each] = None

    def _drop(self, each: bytes) -> None:
        self._recent.pop(each, None)
        self._expected.discard(each)
        self._ends.discard(each)

    def _forget(self, before: float) -> None:
        """Let go of prompts that were sent before a time."""
        while self._recent:
            first = next(iter(self._recent))
            if len(self._recent) <= MAX_RECENT and self._recent[first] >= before:
                return
            self._drop(first)


def _split(hashes: bytes) -> list[bytes]:
    return [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]
