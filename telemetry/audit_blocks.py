"""The audit's rules for blocks: conservation, no double use, no double free, only computed tokens in the cache."""

from __future__ import annotations

from ..errors import AuditError
from .events import BlocksAllocated, BlocksCached, BlocksFreed
from .pool_state import HASH_BYTES, PoolState
from .state import EngineState


def check_allocated(state: EngineState, e: BlocksAllocated) -> None:
    """New blocks come from the free list, shared ones hold cached content, and lost content is named.

    Raises:
        AuditError: otherwise.
    """
    pool = state.pool
    if e.seq not in state.sequences:
        raise AuditError(f"blocks go to sequence {e.seq}, which is not live")
    if len(set(e.new)) != len(e.new):
        raise AuditError(f"sequence {e.seq} gets a block twice: {e.new}")
    shared = set(e.cached)
    for block in e.new:
        if block in shared or block not in pool.free:
            raise AuditError(f"block {block} goes to sequence {e.seq} but is not free ({_references(pool, block)})")
    for block in e.cached:
        if block not in pool.cached:
            raise AuditError(f"block {block} is shared with sequence {e.seq} but holds no cached content")
    lost = [block for block in e.new if block in pool.cached]
    if sorted(lost) != sorted(e.evicted):
        raise AuditError(f"evicted={e.evicted}, but the new blocks with cached content are {lost}")


def check_cached(state: EngineState, e: BlocksCached) -> None:
    """Cached blocks belong to the sequence, hold computed tokens only, and weren't cached before.

    Raises:
        AuditError: otherwise.
    """
    seq = state.sequences.get(e.seq)
    if seq is None:
        raise AuditError(f"blocks of sequence {e.seq} enter the cache, which is not live")
    if len(e.hashes) != HASH_BYTES * len(e.blocks):
        raise AuditError(f"{len(e.hashes)} bytes of hashes for {len(e.blocks)} blocks")
    size = state.started.block_size if state.started else 1
    computed, at = state.num_computed_tokens(seq), 0
    for block in e.blocks:
        try:
            at = seq.block_table.index(block, at)
        except ValueError as error:
            raise AuditError(f"block {block} enters the cache but is not sequence {e.seq}'s next in order") from error
        if (at + 1) * size > computed:
            raise AuditError(
                f"block {block} enters the cache with tokens {at * size} to {(at + 1) * size}, "
                f"sequence {e.seq} has computed {computed}"
            )
        if block in state.pool.cached:
            raise AuditError(f"block {block} enters the cache and is in it already")


def check_freed(state: EngineState, e: BlocksFreed) -> None:
    """A sequence frees its whole table, the tail first, and each block has a reference to give.

    Raises:
        AuditError: otherwise.
    """
    seq = state.ended.get(e.seq) or state.sequences.get(e.seq)
    if seq is None or not seq.block_table:
        raise AuditError(f"sequence {e.seq} frees {len(e.blocks)} blocks and holds none")
    for block in e.blocks:
        if not 0 <= block < state.pool.num_blocks or not state.pool.refs[block]:
            raise AuditError(f"block {block} is freed by sequence {e.seq} without being in use")
    if e.blocks != seq.block_table[::-1]:
        raise AuditError(f"sequence {e.seq} frees {e.blocks}, its table (the tail first) is {seq.block_table[::-1]}")


def check_pool(pool: PoolState, e: BlocksAllocated | BlocksFreed) -> None:
    """After an allocation or a release: free + referenced is the pool, and the event's own count is right.

    Raises:
        AuditError: otherwise.
    """
    if len(pool.free) + pool.referenced != pool.num_blocks:
        raise AuditError(
            f"{len(pool.free)} free and {pool.referenced} referenced blocks in a pool of {pool.num_blocks}"
        )
    if e.free != len(pool.free):
        raise AuditError(f"free={e.free}, the events before it leave {len(pool.free)}")


def _references(pool: PoolState, block: int) -> str:
    return f"{pool.refs[block]} references" if 0 <= block < pool.num_blocks else f"the pool has {pool.num_blocks}"
