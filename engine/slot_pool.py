"""The slots of the swap space: which of them hold a block. Knows numbers only; the memory belongs to the runner."""

from __future__ import annotations

from ..errors import AuditError


class SlotPool:
    """Slots 0 to host_blocks - 1 in host memory, the next disk_blocks in the swap file.

    Args:
        host_blocks: slots in host memory.
        disk_blocks: slots in the swap file.
    """

    def __init__(self, host_blocks: int = 0, disk_blocks: int = 0) -> None:
        self.host_blocks = host_blocks
        self.disk_blocks = disk_blocks
        self.free_host = list(range(host_blocks - 1, -1, -1))  # the lowest is taken first
        self.free_disk = list(range(host_blocks + disk_blocks - 1, host_blocks - 1, -1))

    def take_host(self, count: int) -> list[int] | None:
        """That many slots in host memory, or None (and nothing taken)."""
        return _take(self.free_host, count)

    def take_disk(self, count: int) -> list[int] | None:
        """That many slots in the swap file, or None (and nothing taken)."""
        return _take(self.free_disk, count)

    def give(self, slot: int) -> None:
        """Take a slot back."""
        (self.free_host if slot < self.host_blocks else self.free_disk).append(slot)

    def audit(self, held: list[int]) -> None:
        """Check that each slot is free or held by one live table.

        Raises:
            AuditError: the first violation.
        """
        seen = sorted(self.free_host + self.free_disk + held)
        if seen != list(range(self.host_blocks + self.disk_blocks)):
            raise AuditError(f"swap slots held {sorted(held)}, free {self.free_host + self.free_disk}: not each once")


def _take(free: list[int], count: int) -> list[int] | None:
    if count > len(free):
        return None
    taken = free[len(free) - count :][::-1]
    del free[len(free) - count :]
    return taken
