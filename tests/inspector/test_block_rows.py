"""The map of the block pool: kinds, owners, ages, and where each place stands."""

from __future__ import annotations

import pytest

from made_views import NOW, SECOND, keyframe, sequence
from nanolens.inspector.block_rows import BlockMap, MapLayout, Use

# Blocks: 0 and 1 of seq 1, 1 and 2 of seq 2 (1 is shared), 3 cached and free.
# Slots 0 (host) and 2 (disk) in use.
STATE = keyframe(
    [
        sequence(2, [1, 2], arrived_t=NOW - 3 * SECOND),
        sequence(1, [0, 1], arrived_t=NOW - 90 * SECOND),
        sequence(9, [-1, -3], status="PAUSED", residency="disk"),
    ],
    num_blocks=8, free=[7, 3, 6, 5, 4], cached={1: 1, 3: 8}, host_blocks=2, disk_blocks=1,
)  # fmt: skip


def test_each_place_has_its_kind() -> None:
    blocks = BlockMap(STATE)
    kinds = [blocks.kind(entry) for entry in (0, 1, 2, 3, 4, -1, -2, -3)]
    assert kinds == ["used", "shared", "used", "cached", "free", "host", "empty", "disk"]


def test_counts_of_the_kinds_add_up_to_pool_and_swap_space() -> None:
    counts = BlockMap(STATE).counts
    assert counts == {"free": 4, "cached": 1, "used": 2, "shared": 1, "host": 1, "disk": 1, "empty": 1}
    assert sum(counts.values()) == 8 + 3


def test_a_block_that_a_sequence_has_not_given_back_after_its_end_is_used_by_nobody() -> None:
    blocks = BlockMap(keyframe([], num_blocks=2, free=[1]))
    assert (blocks.kind(0), blocks.owner(0), blocks.age_level(0)) == ("used", None, -1)
    assert blocks.place(0).uses == []


def test_a_shared_block_belongs_to_the_lowest_id_and_names_all_owners() -> None:
    blocks = BlockMap(STATE)
    place = blocks.place(1)
    assert blocks.owner(1) == 1 and place.references == 2
    assert place.uses == [Use(1, "r1", "RUNNING", 1), Use(2, "r2", "RUNNING", 0)]


def test_a_cached_block_tells_its_hash_and_who_filled_it() -> None:
    blocks = BlockMap(STATE)
    assert (blocks.place(3).hash, blocks.place(3).filler) == ("0000000000000003", 8)
    assert (blocks.place(1).hash, blocks.place(1).filler) == ("0000000000000001", 1)
    assert (blocks.place(2).hash, blocks.place(2).filler) == ("", None)


def test_ages_of_owned_blocks_count_from_their_owners_arrival() -> None:
    blocks = BlockMap(STATE)
    assert blocks.age_ns(2) == 3 * SECOND and blocks.age_level(2) == 1
    assert blocks.age_ns(1) == 90 * SECOND and blocks.age_level(1) == 3
    assert blocks.age_ns(-1) == 5 * SECOND


def test_ages_of_free_blocks_are_their_places_in_the_free_list() -> None:
    blocks = BlockMap(STATE)
    assert [blocks.lru(block) for block in (7, 3, 4, 0)] == [0, 1, 4, None]
    assert [blocks.age_level(block) for block in (7, 3, 6, 5, 4)] == [0, 1, 2, 3, 4]
    assert blocks.place(7).age_ns is None


def test_an_empty_slot_has_neither_owner_nor_age() -> None:
    blocks = BlockMap(STATE)
    assert (blocks.owner(-2), blocks.age_level(-2), blocks.place(-2).uses) == (None, -1, [])


@pytest.mark.parametrize("entry", [8, -4])
def test_places_beyond_pool_and_swap_space_are_refused(entry: int) -> None:
    with pytest.raises(IndexError, match=str(entry)):
        BlockMap(STATE).place(entry)


def test_the_layout_puts_pool_host_memory_and_swap_file_below_each_other() -> None:
    layout = MapLayout(10, 5, 3, per_line=4)
    lines = [layout.line(y) for y in range(layout.num_lines)]
    assert [line.text for line in lines] == ["0", "4", "8", "host memory: 5 slots", "0", "4", "swap file: 3 slots", "5"]
    assert [list(line.entries()) for line in lines] == [
        [0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [], [-1, -2, -3, -4], [-5], [], [-6, -7, -8],
    ]  # fmt: skip


def test_position_and_entry_are_each_others_inverse() -> None:
    layout = MapLayout(10, 5, 3, per_line=4)
    for entry in range(-8, 10):
        assert layout.entry(*layout.position(entry)) == entry
    assert layout.entry(2, 2) is None and layout.entry(3, 0) is None and layout.entry(99, 0) is None


def test_a_layout_without_swap_space_has_no_headings() -> None:
    layout = MapLayout(3, 0, 0, per_line=4)
    assert layout.num_lines == 1 and list(layout.line(0).entries()) == [0, 1, 2]
