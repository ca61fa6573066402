"""Lives through pauses and swaps, from the story made by hand."""

from __future__ import annotations

from typing import Any

from nanolens.telemetry.events import (
    AnyEvent,
    BlocksSwapped,
    JournalDropped,
    Keyframe,
    StatusChanged,
    StepFinished,
    StepPlanned,
)
from nanolens.telemetry.lives import Life, Lives
from stories import find, story

PARTS = ("queued_ns", "prefill_ns", "decode_ns", "preempted_ns", "paused_ns")


def lives_of(events: list[AnyEvent]) -> dict[int, Life]:
    lives = Lives()
    lives.apply_all(events)
    return lives.lives


def until(kind: type, where: Any = lambda e: True) -> dict[int, Life]:
    """The lives of the story after the first such event."""
    events = story()
    return lives_of(events[: find(events, kind, where) + 1])


def test_each_part_of_a_life_that_paused() -> None:
    """Arrived 10, runs 100, first token 110, paused 305, resumed 531, runs 700, token 710, paused 911, ends 920."""
    life = lives_of(story())[0]
    assert [getattr(life, part) for part in PARTS] == [
        (100 - 10) + (700 - 531),
        (110 - 100) + (710 - 700),
        (305 - 110) + (911 - 710),
        0,
        (531 - 305) + (920 - 911),
    ]
    assert (life.num_pauses, life.num_output_tokens, life.num_preemptions) == (2, 5, 0)


def test_each_part_of_a_life_that_was_swapped_out() -> None:
    """Arrived 10, runs 200, first token 210, preempted 801, runs 901, token 910, ends 930."""
    life = lives_of(story())[1]
    assert [getattr(life, part) for part in PARTS] == [190, 10 + 9, (801 - 210) + (930 - 910), 100, 0]
    assert (life.num_pauses, life.num_output_tokens, life.num_preemptions) == (0, 7, 1)


def test_the_parts_sum_to_the_lifetime_wherever_one_joins() -> None:
    events = story()
    keyframe = find(events, Keyframe)
    for found in (lives_of(events), lives_of(events[keyframe:])):
        for life in found.values():
            assert sum(getattr(life, part) for part in PARTS) == life.lifetime_ns
    whole, rest = lives_of(events), lives_of(events[keyframe:])
    for seq, life in rest.items():
        assert (life.since_t, life.status) == (540, whole[seq].status)
        assert life.num_output_tokens == whole[seq].num_output_tokens
        assert life.num_blocks == 0


def test_blocks_are_those_on_the_device() -> None:
    assert until(BlocksSwapped, lambda e: e.kind == "out")[0].num_blocks == 1
    assert until(BlocksSwapped, lambda e: e.kind == "down")[0].num_blocks == 1
    assert until(BlocksSwapped, lambda e: e.kind == "in")[0].num_blocks == 2
    assert until(BlocksSwapped, lambda e: e.move == 4)[1].num_blocks == 1
    assert {seq: life.peak_blocks for seq, life in lives_of(story()).items()} == {0: 4, 1: 3}
    assert {life.num_blocks for life in lives_of(story()).values()} == {0}


def test_a_keyframe_tells_slots_from_blocks() -> None:
    events = story()
    lives = lives_of([events[find(events, Keyframe)]])
    assert (lives[0].num_blocks, lives[1].num_blocks) == (1, 3)


def test_a_resumed_sequence_computes_what_was_appended_before_it_decodes() -> None:
    """Its newest token and the three appended are one chunk; until that is planned no step counts it as a decode."""
    events = story()
    running = find(events, StatusChanged, lambda e: e.reason == "resumed" and e.new == "RUNNING")
    life = lives_of(events[: running + 1])[0]
    assert (life.computed, life.target, life.part) == (0, 11, "prefill")
    planned = find(events, StepPlanned, lambda e: e.step == 7)
    assert lives_of(events[: planned + 1])[0].computed == 11


def test_the_token_of_a_step_that_a_pause_made_void_is_not_counted() -> None:
    lives = until(StepFinished, lambda e: e.step == 3)
    assert (lives[0].num_output_tokens, lives[0].last_token_t) == (2, 210)
    assert (lives[1].num_output_tokens, lives[1].last_token_t) == (2, 310)


def test_a_gap_over_the_pause_leaves_the_rest_of_the_life() -> None:
    events = story()
    keyframe = find(events, Keyframe)
    before = events[: find(events, StepPlanned, lambda e: e.step == 3)]
    life = lives_of([*before, JournalDropped(540, 9, 1, "full"), *events[keyframe:]])[0]
    assert life.num_output_tokens == 5
    assert sum(getattr(life, part) for part in PARTS) == life.lifetime_ns
