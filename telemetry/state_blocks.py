"""What events about blocks, and about the KV in them, mean for the state projection."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .events import (
    BlockCopied,
    BlocksAllocated,
    BlocksCached,
    BlocksFreed,
    BlocksSwapped,
    PrefixMatched,
    SwapFinished,
)

if TYPE_CHECKING:
    from .state import EngineState


def _on_matched(state: EngineState, e: PrefixMatched) -> None:
    seq = state.sequences[e.seq]
    seq.num_computed_tokens = e.hit
    if not e.recompute:
        seq.num_cached_tokens = e.hit


def _on_copied(state: EngineState, e: BlockCopied) -> None:
    state.sequences[e.seq].num_computed_tokens += e.num_tokens


def _on_allocated(state: EngineState, e: BlocksAllocated) -> None:
    table = state.sequences[e.seq].block_table
    state.pool.allocate(e)
    table += e.cached
    table += e.new


def _on_cached(state: EngineState, e: BlocksCached) -> None:
    state.pool.cache(e)


def _on_freed(state: EngineState, e: BlocksFreed) -> None:
    seq = state.ended.pop(e.seq, None) or state.sequences[e.seq]
    state.pool.release(e)
    state.steps.leave(seq)
    seq.block_table = []
    seq.num_computed_tokens = 0


def _on_swapped(state: EngineState, e: BlocksSwapped) -> None:
    seq = state.sequences[e.seq]
    state.pool.swap(e)
    moved = dict(zip(e.sources, e.targets, strict=True))
    seq.block_table = [moved.get(entry, entry) for entry in seq.block_table]


def _on_swap_finished(state: EngineState, e: SwapFinished) -> None:
    state.t = e.t


BLOCK_HANDLERS: dict[type, Callable[[EngineState, Any], None]] = {
    PrefixMatched: _on_matched,
    BlockCopied: _on_copied,
    BlocksAllocated: _on_allocated,
    BlocksCached: _on_cached,
    BlocksFreed: _on_freed,
    BlocksSwapped: _on_swapped,
    SwapFinished: _on_swap_finished,
}
