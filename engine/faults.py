"""Points in the engine at which a test can make something fail. In any other run each is one look at a dictionary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

POINTS = (
    "launch",  # before a step touches the device
    "forward",  # before the model computes a step
    "collect",  # before a step's tokens are read
    "decode_text",  # before a token is turned into text
    "swap_out",  # before blocks leave the device
    "swap_in",  # before blocks come back to it
    "disk_write",  # before a block is written to the swap file
    "disk_read",  # before one is read from it
)

_armed: dict[str, Callable[[], None]] = {}


def reach(point: str) -> None:
    """Do what was armed for this point; nothing in a run without tests."""
    if _armed and point in _armed:
        _armed[point]()


@contextmanager
def armed(point: str, action: Callable[[], None]) -> Iterator[None]:
    """Within the block, call `action` each time that `point` is reached; what it raises is the fault.

    Raises:
        ValueError: there is no such point.
    """
    if point not in POINTS:
        raise ValueError(f"{point!r} is no fault point; there are {', '.join(POINTS)}")
    _armed[point] = action
    try:
        yield
    finally:
        del _armed[point]
