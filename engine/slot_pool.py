"""The slots of the swap space: which of them hold a block. Knows numbers only; the memory belongs to the runner."""

from __future__ import annotations

from ..errors import AuditError


class FreeSlots:
    """Slots first to end - 1, of which some are taken. Costs nothing for those that were never taken."""

    def __init__(self, first: int, end: int) -> None:
        self.first, self.end = first, end
        self._next = first  # from here on none was ever taken
        self._given_back: list[int] = []

    def __len__(self) -> int:
        return self.end - self._next + len(self._given_back)

    def take(self, count: int) -> list[int] | None:
        """That many slots, or None (and nothing taken)."""
        if count > len(self):
            return None
        again = min(count, len(self._given_back))
        taken = [self._given_back.pop() for _ in range(again)]
        first, self._next = self._next, self._next + count - again
        return taken + list(range(first, self._next))

    def give(self, slot: int) -> None:
        """Take a slot back."""
        self._given_back.append(slot)

    def is_free(self, slot: int) -> bool:
        """Whether a slot is not taken; slow."""
        return slot >= self._next or slot in self._given_back


class SlotPool:
    """Slots 0 to host_blocks - 1 in host memory, the next disk_blocks in the swap file.

    Args:
        host_blocks: slots in host memory.
        disk_blocks: slots in the swap file.
    """

    def __init__(self, host_blocks: int = 0, disk_blocks: int = 0) -> None:
        self.host_blocks = host_blocks
        self.disk_blocks = disk_blocks
        self.free_host = FreeSlots(0, host_blocks)
        self.free_disk = FreeSlots(host_blocks, host_blocks + disk_blocks)

    def take_host(self, count: int) -> list[int] | None:
        """That many slots in host memory, or None (and nothing taken)."""
        return self.free_host.take(count)

    def take_disk(self, count: int) -> list[int] | None:
        """That many slots in the swap file, or None (and nothing taken)."""
        return self.free_disk.take(count)

    def give(self, slot: int) -> None:
        """Take a slot back."""
        (self.free_host if slot < self.host_blocks else self.free_disk).give(slot)

    def audit(self, held: list[int]) -> None:
        """Check that each slot is free or held by one live table.

        Raises:
            AuditError: the first violation.
        """
        if len(set(held)) != len(held):
            raise AuditError(f"swap slots {sorted(held)}: one is held twice")
        for pool in (self.free_host, self.free_disk):
            own = [slot for slot in held if pool.first <= slot < pool.end]
            if len(own) + len(pool) != pool.end - pool.first or any(map(pool.is_free, own)):
                raise AuditError(
                    f"swap slots {sorted(own)} of {pool.first} to {pool.end - 1} are held, and {len(pool)} free"
                )
