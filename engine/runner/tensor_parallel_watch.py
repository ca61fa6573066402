"""Tells ranks that hang from ranks that compute, by counts that rise while they live, or while they get further.

Knows no steps.
"""

from __future__ import annotations

import time
from pathlib import Path

LOOK_S = 0.1  # between two looks while something is due
REST_LOOK_S = 1.0  # between two looks while nothing is
HANG_S = 5.0  # without a beat
LOAD_HANG_S = 30.0  # without a beat or any work, for a rank that loads, and may hold its interpreter's lock for long


class Watch:
    """Looks at counts.

    A look counts only as the time between two looks, so that a driver that was itself stopped accuses nobody.

    Args:
        size: counts.
        bound_s: seconds that one may stand still; None: `HANG_S`, for beats.
        look_s: between two looks, at least.
    """

    def __init__(self, size: int, bound_s: float | None = None, look_s: float = LOOK_S) -> None:
        self._bound_s, self._look_s = bound_s, look_s
        self._counts = [-1] * size
        self._looks = [0] * size  # in a row that found the same count
        self._next = 0.0

    def reset(self) -> None:
        """Begin anew: nobody has looked for a while."""
        self._looks = [0] * len(self._looks)

    def look(self, counts: list[int]) -> int | None:
        """Which count has stood still for too long, or None. Looks that come too early do nothing."""
        now = time.monotonic()
        if now < self._next:
            return None
        self._next = now + self._look_s
        for index, count in enumerate(counts):
            self._looks[index] = self._looks[index] + 1 if count == self._counts[index] else 0
        self._counts = counts
        most = max(self._looks)
        bound_s = HANG_S if self._bound_s is None else self._bound_s
        return self._looks.index(most) if most * self._look_s >= bound_s else None


def work_of(pid: int) -> int:
    """A number that rises while a process computes or reads its files into memory; 0 where the system does not tell.

    Unlike a beat, it does so too while one call (the loading of a library) keeps all other threads of Python waiting.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return sum(int(fields[index]) for index in (9, 11, 12))  # major faults; clock ticks in user and kernel mode
    except (OSError, ValueError, IndexError):
        return 0
