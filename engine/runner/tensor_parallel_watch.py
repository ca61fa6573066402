"""Tells a rank that hangs from one that computes: a process beats, whatever its main thread does, until it is stopped.

Knows neither processes nor steps.
"""

from __future__ import annotations

import time

LOOK_S = 0.1  # between two looks
HANG_S = 5.0  # without a beat


class Watch:
    """Looks at the ranks' beats.

    A look counts only as the time between two looks, so that a driver that was itself stopped accuses nobody.

    Args:
        size: ranks.
    """

    def __init__(self, size: int) -> None:
        self._beats = [-1] * size
        self._looks = [0] * size  # in a row that found the same beat
        self._next = 0.0

    def reset(self) -> None:
        """Begin anew: nobody has looked for a while."""
        self._looks = [0] * len(self._looks)

    def look(self, beats: list[int]) -> int | None:
        """The rank that has not beaten for `HANG_S` seconds, or None. Looks that come too early do nothing."""
        now = time.monotonic()
        if now < self._next:
            return None
        self._next = now + LOOK_S
        for rank, beat in enumerate(beats):
            self._looks[rank] = self._looks[rank] + 1 if beat == self._beats[rank] else 0
        self._beats = beats
        most = max(self._looks)
        return self._looks.index(most) if most * LOOK_S >= HANG_S else None
