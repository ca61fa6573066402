"""One sequence's rows: its block table against the pool, its statuses, its events."""

from __future__ import annotations

import itertools

import pytest

from nanolens.inspector.detail_rows import (
    block_rows_of,
    block_table_of,
    event_table,
    sequence_of,
    shares_of,
    stay_rows,
    stay_table,
    story_events,
)
from nanolens.telemetry.pool_state import PoolState
from views import fake_run, story_of, view_of_fake_run


def test_block_rows_say_what_the_pool_says_at_every_frame() -> None:
    shared = swapped = 0
    for frames in range(1, len(fake_run()) + 1):
        view = view_of_fake_run(frames)
        pool = PoolState.from_keyframe(view.keyframe)
        for seq in view.keyframe.sequences:
            rows = block_rows_of(view, seq)
            assert [row.entry for row in rows] == seq.block_table
            assert sum(row.computed for row in rows) == (seq.num_computed_tokens if rows else 0)
            for row in rows:
                if row.entry < 0:
                    assert (row.references, row.sharers, row.hash) == (1, (), "")
                    assert row.residency == ("host" if row.place < 4 else "disk")
                    swapped += 1
                    continue
                assert (row.residency, row.place) == ("device", row.entry)
                assert row.references == pool.refs[row.entry] == len(row.sharers) + 1
                content = pool.cached.get(row.entry)
                assert row.hash == (content[0].hex() if content else "")
                assert row.filled_by == (content[1] if content else seq.seq if row.computed else None)
                for other in row.sharers:
                    table = sequence_of(view.keyframe, other)
                    assert table is not None and row.entry in table.block_table and other != seq.seq
                shared += len(row.sharers)
    assert shared > 50 and swapped > 20


def test_a_shared_block_names_its_sharers_and_who_filled_it() -> None:
    view = view_of_fake_run()
    alike = sequence_of(view.keyframe, 4)
    assert alike is not None
    first, _, own = block_rows_of(view, alike)[:3]
    assert (first.place, first.references, first.sharers, first.filled_by) == (9, 3, (2, 3), 2)
    assert (own.references, own.sharers, own.filled_by) == (1, (), 4)
    assert (first.first, own.first, first.size) == (0, 8, 4)


def test_statuses_are_told_from_the_arrival_on() -> None:
    story = story_of(6)
    assert story is not None
    rows = stay_rows(story)
    assert [(row.status, row.reason) for row in rows] == [
        ("WAITING", "arrived"), ("RUNNING", "admitted"), ("WAITING", "preempted"), ("PAUSED", "operator"),
    ]  # fmt: skip
    assert rows[0].since_ns == 200_000  # the request arrived just before
    for row, after in itertools.pairwise(rows):
        assert row.since_ns + row.lasted_ns == after.since_ns


def test_events_are_in_words_with_their_moments() -> None:
    story = story_of(6)
    assert story is not None
    rows = story_events(story)
    assert len({row.moment for row in rows}) == len(rows) == len(story.events)
    assert (rows[0].kind, rows[0].since_ns) == ("request.arrived", 0)
    preempted = next(row for row in rows if row.kind == "sequence.preempted")
    assert preempted.words == "seq 6 preempted for seq 3 (no_blocks, recompute): 3 blocks and 10 computed tokens lost"


@pytest.mark.parametrize(
    ("parts", "width", "cells"),
    [
        ([1, 1], 10, [5, 5]),
        ([1, 1000], 10, [1, 9]),
        ([0, 5, 0], 4, [0, 4, 0]),
        ([0, 0], 4, [0, 0]),
        ([], 4, []),
        ([5, 1, 9, 2], 2, [1, 0, 1, 0]),
        ([1, 2, 3], 0, [0, 0, 0]),
        ([1, 1, 1], 10, [4, 3, 3]),
    ],
)
def test_a_bar_is_in_proportion_and_shows_what_is_short(parts: list[int], width: int, cells: list[int]) -> None:
    assert shares_of(parts, width) == cells


def test_a_bar_is_as_long_as_it_should_be() -> None:
    for width in range(1, 90):
        assert sum(shares_of([7, 1, 1, 300, 0, 33, 2], width)) == width


def test_exports_are_named_after_the_sequence() -> None:
    view, story = view_of_fake_run(), story_of(4)
    seq = sequence_of(view.keyframe, 4)
    assert seq is not None and story is not None
    blocks = block_table_of(4, block_rows_of(view, seq))
    assert blocks.title == "sequence-4-blocks"
    assert dict(zip(blocks.columns, blocks.rows[0], strict=True))["sharers"] == "2 3"
    assert stay_table(4, stay_rows(story)).rows[1][:2] == ["RUNNING", "admitted"]
    assert event_table(4, story_events(story)).rows[0][2] == "request.arrived"
