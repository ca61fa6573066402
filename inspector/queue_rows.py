"""The waiting queue of a view: its order, why each waits, and who holds what the first one needs. Knows no screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..telemetry.events import SequenceSnapshot
from .describe import plural
from .view import View

PASSED = ("swap_in", "sibling_prefill")  # those behind a sequence that waits for one of these don't wait for it
RESERVE_PART = 100  # an admission leaves this part of the pool free while something runs (docs/architecture.md)
WORDS = {
    "no_blocks": "blocks are short",
    "sequence_cap": "all slots for running sequences are taken",
    "token_budget": "the step's token budget was spent",
    "head_of_line": "it stands behind the first in the queue",
    "engine_paused": "the engine is paused",
    "swap_in": "its KV is coming back to the device",
    "sibling_prefill": "a sibling computes the prompt that they share",
    "": "no plan was made since it came",
}


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A sequence that waits.

    Attributes:
        place: in the queue, from 1.
        reason: why it waits; "" before the first plan that sees it.
        waited_ns: since it began to wait.
        to_compute: tokens that it has and whose KV is missing; what the prefix cache holds of them is not known before
            its admission.
        blocks: that it holds on the device.
        slots: that it holds in the swap space.
        needed: free blocks that it takes to run, its next token included. Without blocks of its own this is the most:
            what the prefix cache shares with it comes off.
    """

    place: int
    seq: int
    request: str
    reason: str
    waited_ns: int
    priority: int
    to_compute: int
    blocks: int
    slots: int
    needed: int
    residency: str
    num_preemptions: int


@dataclass(frozen=True, slots=True)
class Holder:
    """A sequence that holds blocks on the device.

    Attributes:
        blocks: that its table names.
        own: of these, what becomes free when it gives them up; the others are shared.
        part: of the pool, from 0 to 1, that its table names.
        age_ns: since it arrived.
    """

    seq: int
    request: str
    status: str
    phase: str
    priority: int
    blocks: int
    own: int
    part: float
    age_ns: int


@dataclass(frozen=True, slots=True)
class HeadWait:
    """What the queue waits for.

    Attributes:
        row: of the first sequence that keeps others waiting, or that itself waits where none does.
        reserve: blocks that its admission has to leave free.
        free: blocks that are free.
        short: blocks that are missing at most; 0 where it does not wait for blocks.
        words: all that in a sentence.
    """

    row: QueueRow
    reserve: int
    free: int
    short: int
    words: str


def queue_rows(view: View) -> list[QueueRow]:
    """The queue, first in line first."""
    keyframe = view.keyframe
    sequences = {seq.seq: seq for seq in keyframe.sequences}
    waiting = [sequences[seq] for seq in keyframe.waiting if seq in sequences]
    return [_row(place, seq, view) for place, seq in enumerate(waiting, 1)]


def holders(view: View) -> list[Holder]:
    """Who holds blocks on the device, those with the most first."""
    keyframe = view.keyframe
    tables = {seq.seq: [entry for entry in seq.block_table if entry >= 0] for seq in keyframe.sequences}
    references: Counter[int] = Counter()
    for table in tables.values():
        references.update(table)
    pool = max(1, keyframe.started.num_blocks)
    found = [
        Holder(
            seq.seq, seq.request, seq.status, seq.phase, seq.priority, len(tables[seq.seq]),
            sum(references[block] == 1 for block in tables[seq.seq]), len(tables[seq.seq]) / pool,
            max(0, view.now_t - seq.arrived_t),
        )
        for seq in keyframe.sequences
        if tables[seq.seq]
    ]  # fmt: skip
    return sorted(found, key=lambda holder: (-holder.blocks, holder.seq))


def head_wait(view: View, rows: Sequence[QueueRow], held_by: Sequence[Holder]) -> HeadWait | None:
    """What the queue waits for; None where nothing waits.

    Args:
        view: of which the others are.
        rows: `queue_rows` of it.
        held_by: `holders` of it.
    """
    if not rows:
        return None
    keyframe = view.keyframe
    head = next((row for row in rows if row.reason not in PASSED), rows[0])
    reserve = keyframe.started.num_blocks // RESERVE_PART if keyframe.running else 0
    free = len(keyframe.free_blocks)
    short = max(0, head.needed + reserve - free) if head.reason == "no_blocks" else 0
    words = f"seq {head.seq} waits: {WORDS.get(head.reason, head.reason)}{_why(view, head, reserve, free, held_by)}"
    return HeadWait(head, reserve, free, short, words)


def _why(view: View, head: QueueRow, reserve: int, free: int, held_by: Sequence[Holder]) -> str:
    """The figures behind the head's reason."""
    keyframe = view.keyframe
    if head.reason == "no_blocks":
        needs = f"{'' if head.blocks else 'at most '}{head.needed}"
        kept = f" and {reserve} in reserve" if reserve else ""
        others = [holder for holder in held_by if holder.seq != head.seq]
        most = f"; most are held by seq {others[0].seq} ({plural(others[0].blocks, 'block')})" if others else ""
        return f": it needs {needs}{kept}, {free} free{most}"
    if head.reason == "sequence_cap":
        cap = keyframe.started.config.get("max_num_seqs")
        return f": {len(keyframe.running)} run" + (f" of at most {cap}" if cap is not None else "")
    if head.reason == "token_budget" and view.steps:
        planned, budget = view.steps[-1].planned, keyframe.started.config.get("max_num_batched_tokens")
        spent = planned.decodes + view.steps[-1].num_prefill_tokens
        return f": step {planned.step} computes {spent} tokens" + (f" of at most {budget}" if budget else "")
    if head.reason == "engine_paused" and keyframe.engine_paused:
        return f" ({keyframe.engine_paused})"
    return f": {plural(head.slots, 'slot')} of the swap space" if head.reason == "swap_in" else ""


def _row(place: int, seq: SequenceSnapshot, view: View) -> QueueRow:
    num_tokens = seq.num_prompt_tokens + seq.num_output_tokens + seq.num_appended_tokens
    resident = sum(entry >= 0 for entry in seq.block_table)
    return QueueRow(
        place=place,
        seq=seq.seq,
        request=seq.request,
        reason=seq.wait_reason,
        waited_ns=max(0, view.now_t - seq.status_t),
        priority=seq.priority,
        to_compute=max(0, num_tokens - seq.num_computed_tokens),
        blocks=resident,
        slots=len(seq.block_table) - resident,
        needed=max(0, -(-(num_tokens + 1) // view.keyframe.started.block_size) - resident),
        residency=seq.residency,
        num_preemptions=seq.num_preemptions,
    )
