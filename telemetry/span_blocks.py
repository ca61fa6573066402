"""What events about blocks mean for spans: allocations, copies, moves to the swap space and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from .events import BlockCopied, BlocksAllocated, BlocksCached, BlocksFreed, BlocksSwapped, Keyframe, SwapFinished
from .span_draft import Draft, Place, Value
from .span_open import OpenTraces


def _on_allocated(traces: OpenTraces, e: BlocksAllocated) -> None:
    seq = traces.seqs.get(e.seq)
    if seq is not None:
        attributes: dict[str, Value] = {
            "nanolens.event": "blocks.allocated",
            "nanolens.step": e.step,
            "nanolens.blocks.free_before": traces.free,
            "nanolens.blocks.free_after": e.free,
        }
        draft = traces.draft(seq, "blocks.allocated", "blocks.allocated", e.t, e.t, attributes)
        draft.list_ids("nanolens.blocks.cached", e.cached)
        draft.list_ids("nanolens.blocks.new", e.new)
        draft.list_ids("nanolens.blocks.evicted", e.evicted)
        if e.cached:
            _link_to_fillers(traces, draft, e.seq, e.cached)
    traces.free = e.free


def _link_to_fillers(traces: OpenTraces, draft: Draft, own: int, blocks: Iterable[int]) -> None:
    """Link to the spans in which others computed what these blocks hold."""
    fillers = Counter(place for block in blocks if (place := traces.filled_by.get(block)) is not None)
    draft.list_ids("nanolens.blocks.filled_by_seq", sorted({place.seq for place in fillers}))
    for place, count in fillers.items():
        if place.seq != own and place.span_id:
            draft.link(place, "filled_by", blocks=count)


def _on_cached(traces: OpenTraces, e: BlocksCached) -> None:
    seq = traces.seqs.get(e.seq)
    place = seq.place if seq is not None else Place(e.seq, 0, 0)
    traces.filled_by.update(dict.fromkeys(e.blocks, place))


def _on_freed(traces: OpenTraces, e: BlocksFreed) -> None:
    traces.free = e.free


def _on_copied(traces: OpenTraces, e: BlockCopied) -> None:
    seq = traces.seqs.get(e.seq)
    if seq is None:
        return
    attributes: dict[str, Value] = {
        "nanolens.event": "block.copied",
        "nanolens.step": e.step,
        "nanolens.copy.source_seq": e.source_seq,
        "nanolens.copy.source": e.source,
        "nanolens.copy.target": e.target,
        "nanolens.copy.tokens": e.num_tokens,
    }
    draft = traces.draft(seq, "block.copied", "block.copied", e.t, e.t, attributes)
    source = traces.seqs.get(e.source_seq)
    if source is not None:
        draft.link(source.place, "filled_by", blocks=1)


def _on_swapped(traces: OpenTraces, e: BlocksSwapped) -> None:
    seq = traces.seqs.get(e.seq)
    if seq is not None:
        attributes: dict[str, Value] = {
            "nanolens.event": "blocks.swapped",
            "nanolens.step": e.step,
            "nanolens.swap.kind": e.kind,
            "nanolens.swap.move": e.move,
            "nanolens.blocks.free_before": traces.free,
            "nanolens.blocks.free_after": e.free,
        }
        draft = traces.draft(seq, "blocks.swapped", "blocks.swapped", e.t, -1 if e.move else e.t, attributes)
        draft.list_ids("nanolens.swap.sources", e.sources)
        draft.list_ids("nanolens.swap.targets", e.targets)
        draft.list_ids("nanolens.blocks.cached", e.cached)
        draft.list_ids("nanolens.blocks.evicted", e.evicted)
        if e.move:
            seq.moves[e.move] = draft
    traces.free = e.free


def _on_swap_finished(traces: OpenTraces, e: SwapFinished) -> None:
    seq = traces.seqs.get(e.seq)
    draft = seq.moves.pop(e.move, None) if seq is not None else None
    if draft is None:
        return
    draft.end_t = e.t
    draft.attributes["nanolens.swap.bytes"] = e.num_bytes
    draft.attributes["nanolens.swap.copy_seconds"] = e.duration_ns / 1e9
    draft.error = e.error or None


def join_blocks(traces: OpenTraces, e: Keyframe) -> None:
    """Take from a keyframe of the pool who filled its blocks, but not in which span, and what is free."""
    traces.free = len(e.free_blocks)
    known, traces.filled_by = traces.filled_by, {}
    for block, filler in zip(e.cached_blocks, e.cached_by, strict=True):
        place = known.get(block)
        traces.filled_by[block] = place if place is not None and place.seq == filler else Place(filler, 0, 0)


BLOCK_HANDLERS: dict[type, Callable[[OpenTraces, Any], None]] = {
    BlocksAllocated: _on_allocated,
    BlocksCached: _on_cached,
    BlocksFreed: _on_freed,
    BlocksSwapped: _on_swapped,
    SwapFinished: _on_swap_finished,
    BlockCopied: _on_copied,
}
