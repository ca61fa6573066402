"""The block pool and the swap space of a view as a map: what each place holds, and for whom. Knows no screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Literal, NamedTuple

from ..telemetry.block_table import entry_of, slot_of
from ..telemetry.events import Keyframe, SequenceSnapshot
from ..telemetry.pool_state import HASH_BYTES

Kind = Literal["free", "cached", "used", "shared", "host", "disk", "empty"]
"""Of a block: free; free with cached content; used by one table; shared by several. Of a slot: in use in host memory or
in the swap file; empty."""
KINDS: tuple[Kind, ...] = ("free", "cached", "used", "shared", "host", "disk", "empty")

SECOND = 1_000_000_000
AGES_NS = (SECOND, 10 * SECOND, 60 * SECOND, 600 * SECOND)
"""Bounds of the ages of used places: level 0 is younger than the first, level 4 not younger than the last."""
LRU_LEVELS = 5  # parts of the free list: level 0 is reused first


class Use(NamedTuple):
    """One table that names a place."""

    seq: int
    request: str
    status: str
    position: int  # in the block table: its tokens begin at position * block_size


@dataclass(frozen=True, slots=True)
class Place:
    """One block or slot in full.

    Attributes:
        entry: a block id, or -1 - slot of the swap space.
        kind: what it is now.
        references: tables that name it.
        uses: these tables, by sequence id.
        hash: of its cached content, hexadecimal; "" without any.
        filler: the sequence that computed the cached content; None without any.
        lru: place in the free list, 0 is reused next; None where it is not free.
        age_ns: since the first of its owners arrived; None without an owner.
    """

    entry: int
    kind: Kind
    references: int
    uses: Sequence[Use]
    hash: str
    filler: int | None
    lru: int | None
    age_ns: int | None


class BlockMap:
    """All places of one keyframe, ready to be asked one by one.

    Building it costs a few ten milliseconds for 100,000 blocks, a question about one place a look-up or two.

    Args:
        keyframe: the state.

    Attributes:
        num_blocks: of the pool on the device.
        block_size: tokens of a block.
        host_blocks: slots of the swap space in host memory.
        disk_blocks: slots behind these, in the swap file.
        sequences: the live ones by id.
        now_t: clock nanoseconds that ages count up to.
    """

    def __init__(self, keyframe: Keyframe) -> None:
        started = keyframe.started
        self.num_blocks, self.block_size = started.num_blocks, started.block_size
        self.host_blocks = _count(started.config.get("host_blocks"))
        self.disk_blocks = _count(started.config.get("disk_blocks"))
        self.sequences: dict[int, SequenceSnapshot] = {seq.seq: seq for seq in keyframe.sequences}
        self.now_t = keyframe.t
        self._references = Counter(chain.from_iterable(seq.block_table for seq in keyframe.sequences))
        self._owner: dict[int, int] = {}
        for seq in sorted(keyframe.sequences, key=lambda each: each.seq, reverse=True):
            self._owner.update(dict.fromkeys(seq.block_table, seq.seq))  # the first to have come stays
        self._free = dict(zip(keyframe.free_blocks, range(len(keyframe.free_blocks)), strict=True))
        self._cached = dict(zip(keyframe.cached_blocks, range(len(keyframe.cached_blocks)), strict=True))
        self._hashes, self._fillers = keyframe.cached_hashes, keyframe.cached_by

    def kind(self, entry: int) -> Kind:
        """What a place is now."""
        if entry < 0:
            if entry not in self._owner:
                return "empty"
            return "host" if slot_of(entry) < self.host_blocks else "disk"
        if entry in self._free:
            return "cached" if entry in self._cached else "free"
        return "shared" if self._references[entry] > 1 else "used"

    def owner(self, entry: int) -> int | None:
        """The sequence with the lowest id whose table names a place; None without any."""
        return self._owner.get(entry)

    def owners(self, entry: int) -> Sequence[int]:
        """All sequences whose tables name a place, by id."""
        if self._references[entry] > 1:
            return self._sharers[entry]
        owner = self._owner.get(entry)
        return () if owner is None else (owner,)

    def references(self, entry: int) -> int:
        """How many tables name a place."""
        return self._references[entry]

    def filler(self, block: int) -> int | None:
        """The sequence that computed a block's cached content."""
        index = self._cached.get(block)
        return None if index is None else self._fillers[index]

    def hash(self, block: int) -> str:
        """Of a block's cached content, hexadecimal; "" without any."""
        at = self._cached.get(block)
        return "" if at is None else self._hashes[at * HASH_BYTES : (at + 1) * HASH_BYTES].hex()

    def age_ns(self, entry: int) -> int | None:
        """Since the first of a place's owners arrived; None without an owner."""
        owner = self._owner.get(entry)
        return None if owner is None else max(0, self.now_t - self.sequences[owner].arrived_t)

    def lru(self, block: int) -> int | None:
        """A free block's place in the free list: 0 is reused next."""
        return self._free.get(block)

    def age_level(self, entry: int) -> int:
        """The age of a used place by AGES_NS, the part of the free list that a free block is in; -1 for others."""
        age = self.age_ns(entry)
        if age is not None:
            return sum(age >= bound for bound in AGES_NS)
        place = self._free.get(entry)
        return -1 if place is None else place * LRU_LEVELS // len(self._free)

    def place(self, entry: int) -> Place:
        """One place in full.

        Raises:
            IndexError: there is no such block or slot.
        """
        if not -self.host_blocks - self.disk_blocks <= entry < self.num_blocks:
            raise IndexError(f"no block or slot {entry}")
        owners = (self.sequences[seq] for seq in self.owners(entry))
        uses = [Use(seq.seq, seq.request, seq.status, seq.block_table.index(entry)) for seq in owners]
        return Place(
            entry, self.kind(entry), self._references[entry], uses, self.hash(entry), self.filler(entry),
            self.lru(entry), self.age_ns(entry),
        )  # fmt: skip

    @cached_property
    def _sharers(self) -> dict[int, list[int]]:
        """Shared block -> its owners. Looks through all tables, once."""
        found: dict[int, list[int]] = {entry: [] for entry, count in self._references.items() if count > 1}
        for seq in sorted(self.sequences):
            for entry in self.sequences[seq].block_table:
                if entry in found:
                    found[entry].append(seq)
        return found

    @cached_property
    def counts(self) -> dict[Kind, int]:
        """How many places of each kind."""
        free_cached = len(self._free.keys() & self._cached.keys())
        held = self.num_blocks - len(self._free)
        shared = sum(count > 1 for count in self._references.values())
        slots = [slot_of(entry) for entry in self._owner if entry < 0]
        host = sum(slot < self.host_blocks for slot in slots)
        return {
            "free": len(self._free) - free_cached,
            "cached": free_cached,
            "used": held - shared,
            "shared": shared,
            "host": host,
            "disk": len(slots) - host,
            "empty": self.host_blocks + self.disk_blocks - len(slots),
        }


class Line(NamedTuple):
    """One line of a map.

    A heading has a text and no places; a line of places has its label, the first place's number, and their entries
    count on in steps of `step` (-1 in the swap space).
    """

    text: str
    first: int
    length: int
    step: int

    def entries(self) -> range:
        """The places, from left to right."""
        return range(self.first, self.first + self.length * self.step, self.step)


class MapLayout:
    """Where each place of a map stands, for some number of places a line. Costs nothing for lines nobody looks at.

    Args:
        num_blocks: on the device; then come `host_blocks` and `disk_blocks` slots, each part under a heading.
        per_line: places in a line.
    """

    def __init__(self, num_blocks: int, host_blocks: int, disk_blocks: int, per_line: int) -> None:
        self.per_line = per_line
        self._parts: list[tuple[int, str, int, int, int]] = []  # first line, heading, first entry, places, step
        at = 0
        parts = (
            ("", 0, num_blocks, 1),
            ("host memory", entry_of(0), host_blocks, -1),
            ("swap file", entry_of(host_blocks), disk_blocks, -1),
        )
        for heading, first, count, step in parts:
            if count:
                self._parts.append((at, heading, first, count, step))
                at += bool(heading) + -(-count // per_line)
        self.num_lines = at

    def line(self, y: int) -> Line:
        """A line of the map.

        Raises:
            IndexError: there are fewer.
        """
        if not 0 <= y < self.num_lines:
            raise IndexError(f"line {y} of {self.num_lines}")
        at, heading, first, count, step = next(part for part in reversed(self._parts) if part[0] <= y)
        row = y - at - bool(heading)
        if row < 0:
            return Line(f"{heading}: {count} slots", first, 0, step)
        skipped = row * self.per_line
        start = first + skipped * step
        number = start if start >= 0 else slot_of(start)
        return Line(str(number), start, min(self.per_line, count - skipped), step)

    def position(self, entry: int) -> tuple[int, int]:
        """Line and column of a place."""
        for at, heading, first, count, step in self._parts:
            index = (entry - first) * step
            if 0 <= index < count:
                row, column = divmod(index, self.per_line)
                return at + bool(heading) + row, column
        raise IndexError(f"no block or slot {entry}")

    def entry(self, y: int, column: int) -> int | None:
        """The place at a line and column; None where there is none."""
        if not 0 <= y < self.num_lines:
            return None
        line = self.line(y)
        return line.first + column * line.step if 0 <= column < line.length else None


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0
