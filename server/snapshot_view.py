"""A keyframe as JSON for people and tools: bounded, with names and seconds, and nothing of any prompt.

Knows the journal's keyframe alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from ..telemetry.events import Keyframe, SequenceSnapshot

VERSION = 1
MAX_SEQUENCES, MAX_BLOCKS = 256, 4096  # shown unless asked for more
_NS = 1_000_000_000
_ORDER = {"RUNNING": 0, "WAITING": 1, "PAUSED": 2}


@dataclass(frozen=True, slots=True)
class ViewLimits:
    """How much of an engine's state is shown.

    Attributes:
        max_sequences: sequences in full.
        max_blocks: blocks of the pool, from block 0 on; also the most entries of one block table.
    """

    max_sequences: int = MAX_SEQUENCES
    max_blocks: int = MAX_BLOCKS


def snapshot_view(keyframe: Keyframe, limits: ViewLimits) -> dict[str, Any]:
    """The state of an engine. `omitted` tells how much the limits left out."""
    sequences = _in_order(keyframe)
    shown = sequences[: limits.max_sequences]
    waiting = keyframe.waiting[: limits.max_sequences]
    running = keyframe.running[: limits.max_sequences]
    started = keyframe.started
    return {
        "version": VERSION,
        "run": started.run_id,
        "model": started.model,
        "t": (keyframe.t + started.wall_offset_ns) / _NS,
        "uptime_s": (keyframe.t - started.t) / _NS,
        "step": keyframe.step,
        "engine_paused": keyframe.engine_paused,
        "counts": dict(Counter(seq.status for seq in sequences)),
        "sequences": [_sequence(seq, keyframe, limits) for seq in shown],
        "waiting": waiting,
        "running": running,
        "blocks": _blocks(keyframe, limits),
        "totals": keyframe.totals,
        "limits": {"max_sequences": limits.max_sequences, "max_blocks": limits.max_blocks},
        "omitted": {
            "sequences": len(sequences) - len(shown),
            "waiting": len(keyframe.waiting) - len(waiting),
            "running": len(keyframe.running) - len(running),
            "blocks": max(0, started.num_blocks - limits.max_blocks),
        },
    }


def _in_order(keyframe: Keyframe) -> list[SequenceSnapshot]:
    """Running sequences by id, then waiting ones in queue order, then paused ones, the oldest pause first."""
    place = {seq: index for index, seq in enumerate(keyframe.waiting)}

    def key(seq: SequenceSnapshot) -> tuple[int, int, int]:
        order = place.get(seq.seq, 0) if seq.status == "WAITING" else seq.status_t if seq.status == "PAUSED" else 0
        return _ORDER.get(seq.status, len(_ORDER)), order, seq.seq

    return sorted(keyframe.sequences, key=key)


def _sequence(seq: SequenceSnapshot, keyframe: Keyframe, limits: ViewLimits) -> dict[str, Any]:
    table = seq.block_table[: limits.max_blocks]
    return {
        "seq": seq.seq,
        "request": seq.request,
        "status": seq.status,
        "phase": seq.phase,
        "reason": seq.reason,
        "wait_reason": seq.wait_reason or None,
        "residency": seq.residency,
        "priority": seq.priority,
        "age_s": (keyframe.t - seq.arrived_t) / _NS,
        "in_status_s": (keyframe.t - seq.status_t) / _NS,
        "since_first_token_s": _since(keyframe.t, seq.first_token_t),
        "since_last_token_s": _since(keyframe.t, seq.last_token_t),
        "num_prompt_tokens": seq.num_prompt_tokens,
        "num_output_tokens": seq.num_output_tokens,
        "num_appended_tokens": seq.num_appended_tokens,
        "num_computed_tokens": seq.num_computed_tokens,
        "num_cached_tokens": seq.num_cached_tokens,
        "max_tokens": seq.max_tokens,
        "num_preemptions": seq.num_preemptions,
        "num_blocks": len(seq.block_table),
        "block_table": table,
    }


def _since(now: int, then: int) -> float | None:
    """Seconds since something happened; None where it has not."""
    return (now - then) / _NS if then else None


def _blocks(keyframe: Keyframe, limits: ViewLimits) -> dict[str, Any]:
    """The pool: how many blocks are held, free and cached, and for each block shown how many sequences hold it."""
    started = keyframe.started
    references = Counter(block for seq in keyframe.sequences for block in seq.block_table if block >= 0)
    last = min(started.num_blocks, limits.max_blocks)
    return {
        "block_size": started.block_size,
        "total": started.num_blocks,
        "free": len(keyframe.free_blocks),
        "held": len(references),
        "shared": sum(count > 1 for count in references.values()),
        "cached": len(keyframe.cached_blocks),
        "references": [references.get(block, 0) for block in range(last)],
        "cached_blocks": sorted(block for block in keyframe.cached_blocks if block < last),
    }
