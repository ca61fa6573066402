"""Tells ranks that hang from ranks that compute, by counts that rise while they live, or while they get further.

Knows neither processes nor steps.
"""

from __future__ import annotations

import time

LOOK_S = 0.1  # between two looks
HANG_S = 5.0  # without a beat


class Watch:
    """Looks at counts.

    A look counts only as the time between two looks, so that a driver that was itself stopped accuses nobody.

    Args:
        size: counts.
        bound_s: seconds that one may stand still; None: `HANG_S`, for beats.
    """

    def __init__(self, size: int, bound_s: float | None = None) -> None:
        self._bound_s = bound_s
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
        self._next = now + LOOK_S
        for index, count in enumerate(counts):
            self._looks[index] = self._looks[index] + 1 if count == self._counts[index] else 0
        self._counts = counts
        most = max(self._looks)
        bound_s = HANG_S if self._bound_s is None else self._bound_s
        return self._looks.index(most) if most * LOOK_S >= bound_s else None
