"""The one clock of the journal: CLOCK_MONOTONIC in nanoseconds, and its offset to wall time."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]

monotonic_ns: Clock = time.monotonic_ns


def wall_offset_ns() -> int:
    """Nanoseconds to add to a CLOCK_MONOTONIC reading to get nanoseconds since 1970."""
    return time.time_ns() - time.monotonic_ns()
