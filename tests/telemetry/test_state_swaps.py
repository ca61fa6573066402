"""The state of blocks and slots through swaps and copies, from events made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from nanolens.errors import AuditError
from nanolens.telemetry.events import (
    AnyEvent,
    BlockCopied,
    BlocksAllocated,
    BlocksCached,
    BlocksFreed,
    BlocksSwapped,
    Keyframe,
    RequestArrived,
    SequencePreempted,
    StatusChanged,
)
from nanolens.telemetry.pool_state import PoolState
from nanolens.telemetry.state import EngineState
from stories import find, story, swap_started


def until(kind: type, where: Any = lambda e: True) -> EngineState:
    """The state of the story after the first such event."""
    events, state = story(), EngineState()
    state.apply_all(events[: find(events, kind, where) + 1])
    return state


def paused(*blocks: int, host_blocks: int = 2) -> EngineState:
    """A state with one paused sequence that holds these blocks, all cached."""
    state = EngineState()
    hashes = b"".join(b"content%d" % block for block in blocks)
    events: list[AnyEvent] = [
        swap_started(host_blocks=host_blocks),
        RequestArrived(1, "r0", [0], 6, 9, 0, {}),
        StatusChanged(2, 0, 0, "", "WAITING", "arrived", "r0"),
        BlocksAllocated(3, 0, 0, [], list(blocks), [], 8 - len(blocks)),
        BlocksCached(4, 0, 0, list(blocks), hashes),
        StatusChanged(5, 0, 0, "WAITING", "PAUSED", "operator"),
    ]
    state.apply_all(events)
    return state


def test_blocks_that_move_out_are_free_the_last_first_and_slots_stand_in_the_table() -> None:
    state = until(BlocksSwapped, lambda e: e.move == 4)
    assert state.snapshot(1).block_table == [0, -1, -2]
    assert state.pool.slots == {0, 1}
    assert list(state.pool.free)[-2:] == [3, 2]


def test_a_shared_block_that_moves_out_loses_a_reference_only() -> None:
    state = until(BlocksSwapped, lambda e: e.kind == "out")
    before = list(state.pool.free)
    state.apply(BlocksSwapped(401, 4, 0, "out", 9, [0], [-2], [], [], 6))
    assert list(state.pool.free) == before
    assert state.pool.refs[0] == 1
    assert state.snapshot(0).block_table == [-2, -1]


def test_what_moves_down_leaves_its_slot_in_host_memory() -> None:
    state = until(BlocksSwapped, lambda e: e.kind == "down")
    assert state.pool.slots == {2}
    assert state.snapshot(0).block_table == [0, -3]


@pytest.mark.parametrize(("table", "residency"), [([0], "device"), ([0, -2], "host"), ([-1, -3, 0], "disk")])
def test_residency_is_the_slowest_place(table: list[int], residency: str) -> None:
    state = paused(0)
    state.sequences[0].block_table = table
    assert state.snapshot(0).residency == residency


def test_without_host_blocks_in_the_settings_every_slot_is_on_disk() -> None:
    state = paused(0, host_blocks=0)
    state.apply(BlocksSwapped(6, 1, 0, "out", 1, [0], [-1], [], [], 8))
    assert state.snapshot(0).residency == "disk"


def test_blocks_that_come_back_are_revived_where_still_cached_and_new_otherwise() -> None:
    state = paused(0, 1, 2)
    state.apply(BlocksSwapped(6, 1, 0, "out", 1, [0, 1, 2], [-1, -2, -3], [], [], 8))
    assert list(state.pool.free) == [3, 4, 5, 6, 7, 2, 1, 0]
    state.apply(BlocksSwapped(7, 2, 0, "in", 2, [-1, -2, -3], [0, 3, 4], [0], [], 5))
    assert state.snapshot(0).block_table == [0, 3, 4]
    assert list(state.pool.free) == [5, 6, 7, 2, 1]
    assert (state.pool.slots, state.pool.refs[:5]) == (set(), [1, 0, 0, 1, 1])
    assert set(state.pool.cached) == {0, 1, 2}


def test_a_block_that_comes_back_may_evict_cached_content() -> None:
    state = paused(0, 1)
    state.apply(BlocksSwapped(6, 1, 0, "out", 1, [1], [-1], [], [], 7))
    state.apply(BlocksSwapped(7, 2, 0, "in", 2, [-1], [1], [], [1], 6))
    assert set(state.pool.cached) == {0}
    assert state.totals.counts["blocks_evicted"] == 1


def test_a_block_found_in_use_by_another_is_shared() -> None:
    state = until(BlocksSwapped, lambda e: e.kind == "out")
    state.apply(BlocksSwapped(401, 4, 0, "out", 9, [0], [-2], [], [], 6))
    state.apply(BlocksSwapped(402, 4, 0, "in", 0, [-2], [0], [0], [], 6))
    assert state.pool.refs[0] == 2
    assert state.snapshot(0).block_table == [0, -1]


def test_a_table_that_is_freed_gives_back_its_slots_and_its_computed_tokens() -> None:
    state = until(BlocksFreed, lambda e: e.lost)
    snapshot = state.snapshot(1)
    assert (snapshot.block_table, snapshot.num_computed_tokens, snapshot.residency) == ([], 0, "none")
    assert state.pool.slots == set()
    assert state.totals.counts["dropped_tokens"] == 11


def test_copied_tokens_count_as_computed_behind_the_shared_ones() -> None:
    state = until(BlockCopied)
    assert (state.snapshot(1).num_computed_tokens, state.snapshot(1).num_cached_tokens) == (5, 4)


def test_a_keyframes_pool_holds_the_slots_in_its_tables() -> None:
    events = story()
    keyframe = events[find(events, Keyframe)]
    assert isinstance(keyframe, Keyframe)
    pool = PoolState.from_keyframe(keyframe)
    assert (pool.slots, pool.refs, pool.referenced) == ({2}, [2, 0, 1, 1, 0, 0, 0, 0], 3)


def test_a_slot_that_nobody_has_cannot_be_given_up() -> None:
    state = paused(0)
    with pytest.raises(AuditError, match="names 3, which the events before it do not have"):
        state.apply(BlocksSwapped(6, 1, 0, "in", 1, [-4], [5], [], [], 6))


def test_whoever_is_swapped_out_waits_with_what_it_kept() -> None:
    state = until(StatusChanged, lambda e: e.reason == "preempted")
    assert until(SequencePreempted).snapshot(1).num_computed_tokens == 11
    assert list(state.waiting) == [1]
