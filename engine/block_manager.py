"""The pool of KV blocks: who holds which, which are free, and which hold a prefix that can be shared.

Knows block ids, slots of the swap space and token ids only; the memory behind them belongs to the runner.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from ..errors import AuditError, OutOfBlocks
from ..telemetry.block_table import entry_of, slot_of
from ..telemetry.clock import Clock
from ..telemetry.events import (
    AnyEvent,
    BlockCopied,
    BlocksAllocated,
    BlocksCached,
    BlocksDuplicate,
    BlocksFreed,
    BlocksSwapped,
    PrefixMatched,
)
from .plan import BlockMove
from .prefix_cache import COLLIDED, PrefixCache, PrefixMatch
from .sequence import Sequence, SequenceStatus
from .slot_pool import SlotPool


class BlockManager:
    """Blocks 0 to num_blocks - 1, each free or referenced by live block tables.

    The free list is in order of release: the first is reused next, and any block leaves it in O(1) when a prefix hit
    revives it. A full, computed block enters the cache under a keyed chain hash; a hit compares the tokens and the
    identity of the parent too, so that a collision of hashes costs a miss and never shares another prompt's KV.

    Args:
        num_blocks: size of the pool.
        block_size: tokens in a block.
        record: takes each event.
        clock: gives the time of an event.
        secret: key of the chain hash, at most 64 bytes; a new one for each run keeps prompts unguessable.
        prefix_cache: False shares nothing.
        slots: the swap space that a table's entries below 0 lie in; None: there is none.

    Attributes:
        num_releases: how often blocks were given up: what did not fit before can't fit while this stands still.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        record: Callable[[AnyEvent], None],
        clock: Clock,
        secret: bytes = b"",
        prefix_cache: bool = True,
        slots: SlotPool | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.slots = slots or SlotPool()
        self.num_releases = 0
        self.block_size = block_size
        self.prefixes = PrefixCache(num_blocks, block_size, secret, prefix_cache)
        self.contents = self.prefixes.contents
        self.match = self.prefixes.match
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self.refs = [0] * num_blocks
        self._record = record
        self._clock = clock

    @property
    def num_free(self) -> int:
        """Blocks that no table refers to."""
        return len(self.free)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens fill or begin."""
        return -(-num_tokens // self.block_size)

    def free_needed(self, seq: Sequence, match: PrefixMatch) -> int:
        """Free blocks that admitting a sequence without blocks takes, its next token included.

        Matched blocks that are referenced already cost nothing. Without room for the next token a sequence would be
        preempted right after its prefill.
        """
        revived = sum(1 for block in match.blocks if not self.refs[block])
        return self.blocks_for(seq.num_tokens + 1) - len(match.blocks) + revived

    def admit(self, seq: Sequence, match: PrefixMatch, step: int) -> None:
        """Give a sequence without blocks its matched prefix and new blocks for all the tokens it has.

        Raises:
            OutOfBlocks: the pool can't; nothing has changed.
        """
        if self.free_needed(seq, match) > len(self.free):
            need = f"sequence {seq.seq_id} needs {self.free_needed(seq, match)} free blocks"
            raise OutOfBlocks(f"{need}, room for its next token included: there are {len(self.free)}")
        if match.queried:
            self._record(
                PrefixMatched(
                    self._clock(), step, seq.seq_id, match.queried, match.hit, match.never_seen, match.evicted,
                    match.sub_block, seq.num_cached_tokens is not None,
                )
            )  # fmt: skip
        self._hold(match.blocks)
        seq.block_table.extend(match.blocks)
        seq.num_registered_blocks = len(match.blocks)
        seq.parent_content = match.parent_content
        self._append_new(seq, self.blocks_for(seq.num_tokens) - len(match.blocks), step, match.blocks)

    def copy_tail(self, seq: Sequence, leader: Sequence, step: int) -> tuple[int, int] | None:
        """Copy on write: have the block with the last prompt token copied from a sibling that has computed it.

        For a sequence just admitted with the prompt's full blocks shared. All its tokens but the last, whose logits it
        needs, then count as computed.

        Returns:
            (source, target) of the copy; None where there is nothing to copy, or not from there.
        """
        last = (seq.num_prompt_tokens - 1) // self.block_size
        computed = last * self.block_size
        count = seq.num_prompt_tokens - 1 - computed
        shares = seq.block_table[:last] == leader.block_table[:last]
        if not count or not shares or seq.num_registered_blocks != last or len(seq.token_ids) != seq.num_prompt_tokens:
            return None
        if len(leader.block_table) <= last or leader.block_table[last] < 0 or leader.move_in:
            return None
        source, target = leader.block_table[last], seq.block_table[last]
        if source == target or leader.num_computed_tokens < seq.num_prompt_tokens:
            return None
        if leader.status is SequenceStatus.RUNNING and leader.last_token_t < leader.status_t:
            return None  # admitted again: the step that computes its prompt may be this one
        self._record(BlockCopied(self._clock(), step, seq.seq_id, leader.seq_id, source, target, count))
        seq.num_computed_tokens = computed + count
        return source, target

    def grow(self, seq: Sequence, step: int, count: int = 1) -> None:
        """Append new blocks to a table.

        Raises:
            OutOfBlocks: there are not so many free; nothing has changed.
        """
        if count > len(self.free):
            raise OutOfBlocks(f"sequence {seq.seq_id} needs {count} free blocks, there are {len(self.free)}")
        if count:
            self._append_new(seq, count, step, [])

    def release(self, seq: Sequence, step: int, lost: int = 0) -> None:
        """Give up the whole table, its tail first, so that the start of a prompt stays cached the longest.

        `lost`: computed tokens that the sequence, which lives on, has to compute again.
        """
        table = seq.block_table
        if not table:
            return
        table.reverse()
        for entry in table:
            self._give_up(entry)
        seq.block_table = []
        seq.num_registered_blocks = 0
        seq.parent_content = 0
        seq.move_in = 0
        self._record(BlocksFreed(self._clock(), step, seq.seq_id, table, len(self.free), lost))

    def device_blocks(self, seq: Sequence, shared: bool) -> list[int]:
        """Places in a table of the blocks on the device; of those that nobody shares only, unless `shared`."""
        refs = self.refs
        return [i for i, entry in enumerate(seq.block_table) if entry >= 0 and (shared or refs[entry] == 1)]

    def move_out(
        self, seq: Sequence, places: list[int], slots: list[int], move: int, step: int, kind: str
    ) -> BlockMove:
        """Put slots into a table where blocks stood (`kind` out), or other slots (down)."""
        table = seq.block_table
        sources, targets = [table[place] for place in places], [entry_of(slot) for slot in slots]
        for place, target in zip(places, targets, strict=True):
            table[place] = target
        for entry in reversed(sources):
            self._give_up(entry)
        seq.num_registered_blocks = 0
        seq.parent_content = 0
        self._record(
            BlocksSwapped(self._clock(), step, seq.seq_id, kind, move, sources, targets, [], [], len(self.free))
        )
        return BlockMove(move, seq.seq_id, kind, sources, targets)

    def blocks_to_return(self, seq: Sequence, match: PrefixMatch) -> int:
        """Free blocks that bringing a table back to the device takes, its next token included."""
        found = match.blocks
        held = sum(
            1 for i, entry in enumerate(seq.block_table) if entry < 0 and i < len(found) and self.refs[found[i]]
        )
        swapped = sum(1 for entry in seq.block_table if entry < 0)
        return swapped - held + self.blocks_for(seq.num_tokens + 1) - len(seq.block_table)

    def move_in(self, seq: Sequence, match: PrefixMatch, move: int, step: int) -> BlockMove | None:
        """Give a table blocks where slots stood; None when the device still had all their content.

        Blocks of `match` whose content is still cached are taken as they are; the caller has made sure of the room.
        """
        table, found = seq.block_table, match.blocks
        places = [i for i, entry in enumerate(table) if entry < 0]
        cached = [found[i] for i in places if i < len(found)]
        self._hold(cached)
        new, evicted = self._take(len(places) - len(cached))
        sources, targets = [table[i] for i in places], cached + new
        for place, target in zip(places, targets, strict=True):
            table[place] = target
        for entry in reversed(sources):
            self.slots.give(slot_of(entry))
        seq.num_registered_blocks, seq.parent_content = len(found), match.parent_content
        number = move if new else 0
        self._record(
            BlocksSwapped(
                self._clock(), step, seq.seq_id, "in", number, sources, targets, cached, evicted, len(self.free)
            )
        )
        moved = sources[len(cached) :]
        return BlockMove(move, seq.seq_id, "in", moved, new) if new else None

    def register(self, seq: Sequence, num_computed: int, step: int) -> None:
        """Enter into the cache the sequence's full blocks whose KV was computed: its first `num_computed` tokens."""
        first = seq.num_registered_blocks
        blocks = self.prefixes.register(seq, num_computed)
        if blocks:
            hashes = b"".join(self.contents[block].hash[:8] for block in blocks)
            self._record(BlocksCached(self._clock(), step, seq.seq_id, blocks, hashes))
        if len(blocks) < seq.num_registered_blocks - first and seq.parent_content != COLLIDED:
            self._record_duplicates(seq, first, step)

    def _record_duplicates(self, seq: Sequence, first: int, step: int) -> None:
        """Of the blocks that were registered from place `first` on, those whose content is cached in another block."""
        table, hashes, cached = seq.block_table, seq.block_hashes, self.prefixes.cached
        places = [i for i in range(first, seq.num_registered_blocks) if cached[hashes[i]] != table[i]]
        if places:
            told = b"".join(hashes[i][:8] for i in places)
            self._record(BlocksDuplicate(self._clock(), step, seq.seq_id, [table[i] for i in places], told))

    def audit(self, live: list[Sequence]) -> None:
        """Check every invariant of the pool against the live block tables.

        Raises:
            AuditError: the first violation.
        """
        counts = [0] * self.num_blocks
        self.slots.audit([slot_of(entry) for seq in live for entry in seq.block_table if entry < 0])
        for seq in live:
            for block in seq.block_table:
                if block < 0:
                    continue
                if not 0 <= block < self.num_blocks:
                    raise AuditError(f"sequence {seq.seq_id} holds block {block}: there is none of this id")
                counts[block] += 1
        if counts != self.refs:
            wrong = next(b for b in range(self.num_blocks) if counts[b] != self.refs[b])
            raise AuditError(f"block {wrong}: {self.refs[wrong]} references counted, {counts[wrong]} in live tables")
        for block in range(self.num_blocks):
            if (block in self.free) == bool(self.refs[block]):
                raise AuditError(f"block {block}: {self.refs[block]} references and free={block in self.free}")
        if len(self.free) + sum(1 for count in counts if count) != self.num_blocks:
            raise AuditError(f"the free list holds {len(self.free)} ids, and some are of no block: {list(self.free)}")
        self.prefixes.audit()

    def _append_new(self, seq: Sequence, count: int, step: int, shared: list[int]) -> None:
        new, evicted = self._take(count)
        seq.block_table.extend(new)
        self._record(BlocksAllocated(self._clock(), step, seq.seq_id, shared, new, evicted, len(self.free)))

    def _take(self, count: int) -> tuple[list[int], list[int]]:
        """New blocks off the free list, and those of them that held cached content."""
        new: list[int] = []
        evicted: list[int] = []
        for _ in range(count):
            block, _ = self.free.popitem(last=False)
            self.refs[block] = 1
            new.append(block)
            if block in self.contents:
                self.prefixes.evict(block)
                evicted.append(block)
        return new, evicted

    def _hold(self, blocks: list[int]) -> None:
        """Refer to blocks with cached content, free or not."""
        for block in blocks:
            if not self.refs[block]:
                del self.free[block]
            self.refs[block] += 1

    def _give_up(self, entry: int) -> None:
        """Drop a table's reference to a block, or its slot."""
        if entry < 0:
            self.slots.give(slot_of(entry))
            return
        self.num_releases += 1
        self.refs[entry] -= 1
        if not self.refs[entry]:
            self.free[entry] = None
