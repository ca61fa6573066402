"""Which places of a block map meet a filter, as typed: `kind:shared seq:12 references>2`. Knows no screen."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .block_rows import KINDS, BlockMap
from .filters import Field, parse_filter


class Spot(NamedTuple):
    """A place for one of its owners, -1 where it has none."""

    blocks: BlockMap
    entry: int
    seq: int


FIELDS: dict[str, Field[Spot]] = {
    "kind": Field("text", lambda spot: spot.blocks.kind(spot.entry), KINDS),
    "block": Field("number", lambda spot: spot.entry if spot.entry >= 0 else None),
    "seq": Field("number", lambda spot: spot.seq if spot.seq >= 0 else None),
    "state": Field("text", lambda spot: spot.blocks.sequences[spot.seq].status if spot.seq >= 0 else None),
    "references": Field("number", lambda spot: spot.blocks.references(spot.entry)),
    "hash": Field("text", lambda spot: spot.blocks.hash(spot.entry)),
    "filler": Field("number", lambda spot: spot.blocks.filler(spot.entry)),
    "lru": Field("number", lambda spot: spot.blocks.lru(spot.entry)),
    "age": Field("duration", lambda spot: spot.blocks.age_ns(spot.entry)),
}


def parse_block_filter(text: str) -> Callable[[BlockMap, int], bool] | None:
    """The test that a filter makes of a place; None where all places meet it.

    A place that several sequences share meets it if it does so for one of them. A bare word is looked for in the
    owner's request.

    Raises:
        InspectError: as `parse_filter`.
    """
    found = parse_filter(text, FIELDS, _words)
    if not found.checks:
        return None

    def test(blocks: BlockMap, entry: int) -> bool:
        return any(found.matches(Spot(blocks, entry, seq)) for seq in blocks.owners(entry) or (-1,))

    return test


def _words(spot: Spot) -> str:
    return spot.blocks.sequences[spot.seq].request if spot.seq >= 0 else ""
