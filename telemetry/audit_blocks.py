"""The audit's rules for blocks: conservation, no double use, no double free, only computed tokens in the cache."""

from __future__ import annotations

from ..errors import AuditError
from .block_table import slot_of
from .events import BlockCopied, BlocksAllocated, BlocksCached, BlocksFreed, BlocksSwapped
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


def check_copied(state: EngineState, e: BlockCopied) -> None:
    """A sibling has computed the tokens that are copied, and they stand next to those that the sequence has.

    Raises:
        AuditError: otherwise.
    """
    seq, source = state.sequences.get(e.seq), state.sequences.get(e.source_seq)
    if seq is None or source is None:
        raise AuditError(f"sequence {e.source_seq}'s block is copied for sequence {e.seq}, but not both are live")
    if seq.request != source.request:
        raise AuditError(f"sequences {e.source_seq} and {e.seq} share a block's content and no request")
    size = state.started.block_size if state.started else 1
    computed = state.num_computed_tokens(seq)
    place = computed // size
    if e.target not in seq.block_table[place : place + 1] or computed % size:
        raise AuditError(f"block {e.target} is not where the tokens of sequence {e.seq} from {computed} on belong")
    if e.source not in source.block_table[place : place + 1] or e.source < 0:
        raise AuditError(f"block {e.source} is copied but is not sequence {e.source_seq}'s block {place}")
    last = computed + e.num_tokens
    if not 1 <= e.num_tokens <= size or last >= seq.num_tokens or last > state.num_computed_tokens(source):
        raise AuditError(
            f"{e.num_tokens} tokens from {computed} on are copied, in blocks of {size}: sequence {e.seq} has "
            f"{seq.num_tokens}, sequence {e.source_seq} has computed {source.num_computed_tokens}"
        )


def check_freed(state: EngineState, e: BlocksFreed) -> None:
    """A sequence that doesn't run frees its whole table, the tail first, and each block has a reference to give.

    Raises:
        AuditError: otherwise.
    """
    ended = state.ended.get(e.seq)
    seq = ended or state.sequences.get(e.seq)
    if seq is None or not seq.block_table:
        raise AuditError(f"sequence {e.seq} frees {len(e.blocks)} blocks and holds none")
    for entry in e.blocks:
        if entry < 0:
            if slot_of(entry) not in state.pool.slots:
                raise AuditError(f"slot {slot_of(entry)} is freed by sequence {e.seq} without being in use")
        elif entry >= state.pool.num_blocks or not state.pool.refs[entry]:
            raise AuditError(f"block {entry} is freed by sequence {e.seq} without being in use")
    if e.blocks != seq.block_table[::-1]:
        raise AuditError(f"sequence {e.seq} frees {e.blocks}, its table (the tail first) is {seq.block_table[::-1]}")
    if seq.status == "RUNNING":
        raise AuditError(f"sequence {e.seq} frees its blocks while it runs")
    computed = 0 if ended else state.num_computed_tokens(seq)
    if e.lost != computed:
        raise AuditError(f"sequence {e.seq} loses {e.lost} computed tokens of {computed}")


def check_pool(pool: PoolState, e: BlocksAllocated | BlocksFreed | BlocksSwapped) -> None:
    """After an allocation, a release or a swap: free + referenced is the pool, and the event's own count is right.

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
