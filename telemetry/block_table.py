"""What the entries of a block table mean: a block on the device, or a slot of the swap space. Knows no events."""

from __future__ import annotations

from collections.abc import Sequence


def entry_of(slot: int) -> int:
    """The table entry of a slot of the swap space: below 0. It is its own inverse."""
    return -1 - slot


def slot_of(entry: int) -> int:
    """The slot that a table entry below 0 means."""
    return -1 - entry


def residency_of(table: Sequence[int], host_blocks: int) -> str:
    """Where the KV of a table is: none, device, host or disk; of several places the slowest."""
    lowest = min(table, default=None)
    if lowest is None:
        return "none"
    if lowest >= 0:
        return "device"
    return "host" if slot_of(lowest) < host_blocks else "disk"
