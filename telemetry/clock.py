"""The one clock of the journal: CLOCK_MONOTONIC in nanoseconds, its offset to wall time, and whose clock it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

Clock = Callable[[], int]

monotonic_ns: Clock = time.monotonic_ns
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def wall_offset_ns() -> int:
    """Nanoseconds to add to a CLOCK_MONOTONIC reading to get nanoseconds since 1970."""
    return time.time_ns() - time.monotonic_ns()


def boot_id(path: Path = _BOOT_ID) -> str:
    """The id of this boot of the kernel (Linux: random(4)); "" where there is none to be read.

    Those who share it may still count on different clocks: a container may have a time namespace of its own.
    """
    try:
        return path.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""
