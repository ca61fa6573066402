"""One sequence as rows: its block table, its statuses, its events. Pure functions of a view and a story."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..telemetry.block_table import slot_of
from ..telemetry.event_fields import tag_of
from ..telemetry.events import Keyframe, SequenceSnapshot
from ..telemetry.pool_state import HASH_BYTES
from .describe import describe
from .export import Table, Value
from .filters import Field
from .view import EventRow, Moment, Story, View

PARTS = ("queued", "prefill", "decode", "preempted", "paused")  # of a life, in the order in which they are shown
NS_PER_S = 1e9


class BlockRow(NamedTuple):
    """One entry of a block table.

    Attributes:
        logical: its place in the table.
        entry: as in the table: a block, or -1 - slot.
        residency: device, host or disk.
        place: number of the block, or of the slot of the swap space.
        first: position of its first token.
        size: tokens that fit in.
        computed: of these, computed.
        references: tables that it stands in.
        hash: of its content, in hexadecimal; "" where it is not in the prefix cache.
        sharers: the other sequences whose tables it stands in.
        filled_by: the sequence that computed it; None while nothing in it is computed.
    """

    logical: int
    entry: int
    residency: str
    place: int
    first: int
    size: int
    computed: int
    references: int
    hash: str
    sharers: tuple[int, ...]
    filled_by: int | None


class StayRow(NamedTuple):
    """A status of a sequence, as long as it was in it; `since_ns` counts as in `StoryEvent`."""

    status: str
    reason: str
    since_ns: int
    lasted_ns: int
    step: int


class StoryEvent(NamedTuple):
    """An event that names a sequence; `since_ns` counts from its arrival, or from where the journal begins."""

    moment: Moment
    step: int
    since_ns: int
    kind: str
    words: str


EVENT_FIELDS: dict[str, Field[StoryEvent]] = {
    "kind": Field("text", lambda row: row.kind),
    "step": Field("number", lambda row: row.step),
    "since": Field("duration", lambda row: row.since_ns),
}


def sequence_of(keyframe: Keyframe, seq: int) -> SequenceSnapshot | None:
    """A live sequence by its id."""
    return next((each for each in keyframe.sequences if each.seq == seq), None)


def block_rows_of(view: View, seq: SequenceSnapshot) -> list[BlockRow]:
    """The block table of a sequence, with what the pool says of each block."""
    keyframe = view.keyframe
    size, host_blocks = keyframe.started.block_size, keyframe.started.config.get("host_blocks")
    on_host = host_blocks if isinstance(host_blocks, int) else 0
    sharers, contents = _sharers(keyframe, seq), _contents(keyframe, seq)
    rows = []
    for logical, entry in enumerate(seq.block_table):
        others = tuple(sharers.get(entry, ()))
        computed = max(0, min(size, seq.num_computed_tokens - logical * size))
        digest, filler = contents.get(entry, ("", seq.seq if computed else None))
        residency = "device" if entry >= 0 else "host" if slot_of(entry) < on_host else "disk"
        place = entry if entry >= 0 else slot_of(entry)
        rows.append(
            BlockRow(
                logical,
                entry,
                residency,
                place,
                logical * size,
                size,
                computed,
                1 + len(others),
                digest,
                others,
                filler,
            )
        )
    return rows


def stay_rows(story: Story) -> list[StayRow]:
    """Its statuses, oldest first."""
    begin = _begin(story)
    return [
        StayRow(stay.status, stay.reason, stay.begin_t - begin, stay.end_t - stay.begin_t, stay.step)
        for stay in story.stays
    ]


def story_events(story: Story) -> list[StoryEvent]:
    """Its events, oldest first."""
    begin = _begin(story)
    return [_story_event(row, begin) for row in story.events]


def shares_of(parts: Sequence[int], width: int) -> list[int]:
    """Cells of a bar of `width` for parts in their order: in proportion, but one at least for what is not 0.

    They add up to `width`; all are 0 where all parts are. What has more parts than cells shows the longest ones.
    """
    whole, some = sum(parts), [i for i, part in enumerate(parts) if part > 0]
    cells = [0] * len(parts)
    if not whole or width <= 0:
        return cells
    some = sorted(sorted(some, key=lambda i: -parts[i])[:width])
    spare, weight = width - len(some), sum(parts[i] for i in some)
    exact = {i: spare * parts[i] / weight for i in some}
    for i in some:
        cells[i] = 1 + int(exact[i])
    for i in sorted(some, key=lambda i: int(exact[i]) - exact[i])[: width - sum(cells)]:
        cells[i] += 1
    return cells


def block_table_of(seq: int, rows: Sequence[BlockRow]) -> Table:
    """A block table for an export."""
    columns = [*BlockRow._fields]
    values = [[" ".join(map(str, cell)) if isinstance(cell, tuple) else cell for cell in row] for row in rows]
    return Table(f"sequence-{seq}-blocks", columns, values)


def stay_table(seq: int, rows: Sequence[StayRow]) -> Table:
    """Statuses for an export, in seconds."""
    values: list[list[Value]] = [
        [row.status, row.reason, row.since_ns / NS_PER_S, row.lasted_ns / NS_PER_S, row.step] for row in rows
    ]
    return Table(f"sequence-{seq}-states", ["status", "reason", "since_s", "lasted_s", "step"], values)


def event_table(seq: int, rows: Sequence[StoryEvent]) -> Table:
    """Events for an export, in seconds."""
    values: list[list[Value]] = [[row.step, row.since_ns / NS_PER_S, row.kind, row.words] for row in rows]
    return Table(f"sequence-{seq}-events", ["step", "since_s", "event", "words"], values)


def _begin(story: Story) -> int:
    """Its arrival, or where its story begins."""
    first = [stay.begin_t for stay in story.stays[:1]] + [row.t for row in story.events[:1]]
    return min(first, default=0)


def _sharers(keyframe: Keyframe, seq: SequenceSnapshot) -> dict[int, list[int]]:
    """Block -> the other sequences whose tables hold it."""
    own = {entry for entry in seq.block_table if entry >= 0}
    found: dict[int, list[int]] = {}
    for other in keyframe.sequences:
        if other.seq != seq.seq and not own.isdisjoint(other.block_table):
            for block in own.intersection(other.block_table):
                found.setdefault(block, []).append(other.seq)
    return found


def _contents(keyframe: Keyframe, seq: SequenceSnapshot) -> dict[int, tuple[str, int]]:
    """Block -> (hash, filling sequence), of those in the prefix cache."""
    own, hashes = set(seq.block_table), keyframe.cached_hashes
    return {
        block: (hashes[i * HASH_BYTES : (i + 1) * HASH_BYTES].hex(), keyframe.cached_by[i])
        for i, block in enumerate(keyframe.cached_blocks)
        if block in own
    }


def _story_event(row: EventRow, begin: int) -> StoryEvent:
    return StoryEvent(row.moment, row.step, row.t - begin, tag_of(type(row.event)), describe(row.event))
