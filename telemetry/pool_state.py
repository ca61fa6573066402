"""The block pool and the swap space, as projections of the journal hold them. Knows no sequences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import AuditError
from .block_table import slot_of
from .events import BlocksAllocated, BlocksCached, BlocksFreed, BlocksSwapped, Keyframe

HASH_BYTES = 8  # of a block's hash in the journal
MOST_BLOCKS = 1 << 24  # more than any device holds: what a journal claims beyond is damage


class PoolState:
    """Blocks on the device, and the slots of the swap space that are in use.

    Attributes:
        num_blocks: size of the pool.
        free: the free list in order; the first is reused next, released blocks go to the end.
        refs: references of each block.
        cached: block -> (hash, filling sequence) for blocks with cached content.
        referenced: number of blocks with references.
        slots: slots in use; each stands in one table.

    Raises:
        AuditError: no pool is of that size.
    """

    def __init__(self, num_blocks: int) -> None:
        if not 0 <= num_blocks <= MOST_BLOCKS:
            raise AuditError(f"a pool of {num_blocks:,} blocks: must be at most {MOST_BLOCKS:,}")
        self.num_blocks = num_blocks
        self.free: dict[int, None] = dict.fromkeys(range(num_blocks))
        self.refs = [0] * num_blocks
        self.cached: dict[int, tuple[bytes, int]] = {}
        self.referenced = 0
        self.slots: set[int] = set()

    @classmethod
    def from_keyframe(cls, keyframe: Keyframe) -> PoolState:
        """The pool of a keyframe."""
        pool = cls(keyframe.started.num_blocks)
        pool.free = dict.fromkeys(keyframe.free_blocks)
        for seq in keyframe.sequences:
            for entry in seq.block_table:
                if entry < 0:
                    pool.slots.add(slot_of(entry))
                else:
                    pool.refs[entry] += 1
        pool.referenced = sum(1 for count in pool.refs if count)
        for index, block in enumerate(keyframe.cached_blocks):
            content = keyframe.cached_hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES]
            pool.cached[block] = (content, keyframe.cached_by[index])
        return pool

    def allocate(self, e: BlocksAllocated) -> None:
        """Reference `cached`, take `new`, forget what `evicted` held."""
        self._take(e.cached, e.new, e.evicted)

    def cache(self, e: BlocksCached) -> None:
        """Give blocks their cached content."""
        for index, block in enumerate(e.blocks):
            self.cached[block] = (e.hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES], e.seq)

    def release(self, e: BlocksFreed) -> None:
        """Drop the references of a table; a block without any goes to the end of the free list."""
        self._give_up(e.blocks)

    def swap(self, e: BlocksSwapped) -> None:
        """Give up the places that `sources` names, the last first, and take those of `targets`."""
        self._give_up(reversed(e.sources))
        still_there = set(e.cached)
        self._take(e.cached, [entry for entry in e.targets if entry >= 0 and entry not in still_there], e.evicted)
        self.slots.update(slot_of(entry) for entry in e.targets if entry < 0)

    def _take(self, shared: Sequence[int], new: Sequence[int], evicted: Iterable[int]) -> None:
        refs, free = self.refs, self.free
        for block in shared:
            if not refs[block]:
                del free[block]
                self.referenced += 1
            refs[block] += 1
        for block in new:
            del free[block]
            refs[block] = 1
        for block in evicted:
            del self.cached[block]
        self.referenced += len(new)

    def _give_up(self, entries: Iterable[int]) -> None:
        refs, free = self.refs, self.free
        for entry in entries:
            if entry < 0:
                self.slots.remove(slot_of(entry))
                continue
            refs[entry] -= 1
            if not refs[entry]:
                free[entry] = None
                self.referenced -= 1
