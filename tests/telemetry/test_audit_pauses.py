"""The audit of pauses, swaps, copies and a paused engine: the story is true, and each lie about it is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nanolens.errors import AuditError
from nanolens.telemetry.audit import Audit
from nanolens.telemetry.events import (
    AnyEvent,
    BlockCopied,
    BlocksFreed,
    BlocksSwapped,
    EngineContinued,
    EnginePaused,
    JournalDropped,
    Keyframe,
    PrefixMatched,
    PriorityChanged,
    SequencePreempted,
    SequenceResumed,
    StatusChanged,
    StepPlanned,
    SwapFinished,
)
from stories import find, story

Edit = Callable[[list[AnyEvent], int], None]


def change(**fields: object) -> Edit:
    """Give fields of the event other values."""

    def edit(events: list[AnyEvent], at: int) -> None:
        for name, value in fields.items():
            setattr(events[at], name, value)

    return edit


def drop(events: list[AnyEvent], at: int) -> None:
    del events[at]


def repeat(events: list[AnyEvent], at: int) -> None:
    events.insert(at, events[at])


def before(*more: AnyEvent) -> Edit:
    """Other events stand before the event."""

    def edit(events: list[AnyEvent], at: int) -> None:
        events[at:at] = more

    return edit


def instead(*more: AnyEvent) -> Edit:
    """Other events stand in its place."""

    def edit(events: list[AnyEvent], at: int) -> None:
        events[at : at + 1] = more

    return edit


def anything(e: Any) -> bool:
    return True


def out(e: BlocksSwapped) -> bool:
    return e.kind == "out"


def down(e: BlocksSwapped) -> bool:
    return e.kind == "down"


def back(e: BlocksSwapped) -> bool:
    return e.kind == "in"


def second_out(e: BlocksSwapped) -> bool:
    return e.move == 4


def pause(e: StatusChanged) -> bool:
    return e.new == "PAUSED"


def readmission(e: StatusChanged) -> bool:
    return e.reason == "readmitted"


def resumption(e: StatusChanged) -> bool:
    return e.reason == "resumed" and e.new == "RUNNING"


LIES: dict[str, tuple[type, Callable[[Any], bool], Edit, str]] = {
    # What a pause keeps
    "kept more than computed": (StatusChanged, pause, change(kept=9), "keeps 9 of 8 computed tokens, of 8"),
    "kept all tokens": (StatusChanged, pause, change(kept=8), "keeps 8 of 8 computed tokens, of 8"),
    "kept less than nothing": (StatusChanged, pause, change(kept=-1), "keeps -1 of"),
    "kept at an admission": (StatusChanged, readmission, change(kept=1), "does not leave RUNNING for PAUSED"),
    "a chunk of what was kept": (StatusChanged, pause, change(kept=6), "num_computed_tokens: 7 given, 6 expected"),
    # Resumptions
    "resumed by itself": (SequenceResumed, anything, drop, "leaves PAUSED for WAITING without sequence.resumed"),
    "resumed twice": (SequenceResumed, anything, repeat, "is resumed twice"),
    "resumed while running": (SequenceResumed, anything, change(seq=1), "is resumed but is RUNNING"),
    "resumed without end": (StatusChanged, lambda e: e.old == "PAUSED", drop, "was resumed and is still PAUSED"),
    "less than nothing appended": (SequenceResumed, anything, change(num_appended=-1), "with -1 tokens appended"),
    "no room for its output": (SequenceResumed, anything, change(max_tokens=1), "it has 2 output tokens"),
    "appended tokens": (SequenceResumed, anything, change(num_appended=4), "num_appended_tokens: 3 given, 4 expected"),
    "nothing to compute": (
        SequencePreempted, anything, change(num_tokens=0, kept=12), "keeps 12 computed tokens of 11"),
    # Causes
    "cause is itself": (StatusChanged, lambda e: e.reason == "aborted", change(cause=1), "which is no sibling"),
    "cause is a stranger": (StatusChanged, lambda e: e.reason == "aborted", change(cause=7), "which is no sibling"),
    "cause of a pause": (StatusChanged, pause, change(cause=1), "on account of sequence 1, which is no sibling"),
    "priority of the dead": (PriorityChanged, anything, change(seq=9), "which is not live"),
    "first admission twice": (PrefixMatched, lambda e: e.recompute, change(recompute=False), "first time twice"),
    # Preemptions
    "kept and lost": (SequencePreempted, anything, change(num_tokens=1), "loses 1 and keeps 11 computed tokens of 11"),
    "recompute keeps": (SequencePreempted, anything, change(mode="recompute"), "keeps 11 of 12 tokens, mode='recompu"),
    "no such mode": (SequencePreempted, anything, change(mode="forget"), "mode='forget'"),
    "recompute holds": (
        SequencePreempted, anything, change(mode="recompute", num_tokens=11, kept=0), "kept its 3 blocks"),
    # Swaps
    "swap of the running": (BlocksSwapped, out, change(seq=1), "blocks of sequence 1 move out, but it is RUNNING"),
    "swap of the dead": (BlocksSwapped, out, change(seq=9), "move out, but it is not live"),
    "swap of nothing": (BlocksSwapped, out, change(sources=[], targets=[]), "0 places move to 0"),
    "swap of unlike lists": (BlocksSwapped, out, change(targets=[-1, -2]), "1 places move to 2"),
    "source of another": (BlocksSwapped, out, change(sources=[2]), "block 2 moves but is not sequence 0's next"),
    "slot of another": (BlocksSwapped, down, change(sources=[-2]), "slot 1 moves but is not sequence 0's next"),
    "sources out of order": (BlocksSwapped, second_out, change(sources=[3, 2]), "block 2 moves but is not"),
    "target twice": (BlocksSwapped, second_out, change(targets=[-1, -1]), "gets a place twice"),
    "out to the device": (BlocksSwapped, out, change(targets=[5]), r"move out from \['device'\] to \['device'\]"),
    "out as down": (BlocksSwapped, out, change(kind="down"), r"move down from \['device'\] to \['host'\]"),
    "down within the host": (BlocksSwapped, down, change(targets=[-2]), r"move down from \['host'\] to \['host'\]"),
    "no such kind": (BlocksSwapped, out, change(kind="away"), "blocks move away from"),
    "slot that is not there": (BlocksSwapped, down, change(targets=[-7]), "gets slot 6, the swap space has 6"),
    "slot in use": (
        BlocksSwapped, back, before(BlocksSwapped(599, 6, 0, "out", 3, [0], [-3], [], [], 6)), "which is in use"),
    "block in use": (BlocksSwapped, back, change(targets=[3]), "block 3 goes to sequence 0 but is not free"),
    "block that is not there": (BlocksSwapped, back, change(targets=[8]), "block 8 goes to sequence 0 but is not free"),
    "content that is not cached": (BlocksSwapped, back, change(cached=[4], move=0), "holds no cached content"),
    "content that is no target": (BlocksSwapped, back, change(cached=[0]), "found in the cache .* but is no target"),
    "eviction of nothing": (BlocksSwapped, back, change(evicted=[4]), r"evicted=\[4\], but .* are \[\]"),
    "free after a swap": (BlocksSwapped, out, change(free=5), "free=5, the events before it leave 6"),
    "move without a number": (BlocksSwapped, out, change(move=0), "move 0 has 1 blocks to move"),
    "number below 0": (BlocksSwapped, out, change(move=-1), "move -1 has 1 blocks to move"),
    "numbers fall": (BlocksSwapped, down, change(move=1), "move 1 begins after move 1"),
    "move ended twice": (SwapFinished, anything, repeat, "move 1 ended but is not open"),
    "move never begun": (SwapFinished, anything, change(move=8), "move 8 ended but is not open"),
    "move of another": (SwapFinished, anything, change(seq=1), "move 1 of sequence 0 ended as one of sequence 1"),
    "runs before its blocks are in": (SwapFinished, lambda e: e.move == 3, drop, "while move 3 still brings"),
    "runs on slots": (
        StatusChanged, resumption,
        before(BlocksSwapped(699, 6, 0, "out", 4, [5], [-1], [], [], 4)), r"runs with slots \[0\]"),
    "failed move kept": (
        SwapFinished, anything, change(error="bad disk"), "sequence 0 kept the blocks that a failed move left"),
    # Blocks
    "tokens lost by a drop": (BlocksFreed, lambda e: e.lost, change(lost=10), "loses 10 computed tokens of 11"),
    "tokens lost at the end": (BlocksFreed, lambda e: e.seq == 0, change(lost=1), "loses 1 computed tokens of 0"),
    "slot freed that nobody has": (BlocksFreed, lambda e: e.lost, change(blocks=[-5, -1, 0]), "slot 4 is freed"),
    "freed while running": (
        StatusChanged, pause, before(BlocksFreed(304, 3, 0, [1, 0], 6, 8)), "frees its blocks while it runs"),
    # Copies
    "copy of a stranger": (BlockCopied, anything, change(source_seq=9), "not both are live"),
    "copy of another block": (BlockCopied, anything, change(source=0), "block 0 is copied but is not sequence 0's"),
    "copy to another block": (BlockCopied, anything, change(target=0), "block 0 is not where the tokens"),
    "copy of what is not computed": (BlockCopied, anything, change(num_tokens=3), "3 tokens from 4 on are copied"),
    "copy of nothing": (BlockCopied, anything, change(num_tokens=0), "0 tokens from 4 on are copied"),
    "copy of more than a block": (BlockCopied, anything, change(num_tokens=5), "5 tokens from 4 on are copied"),
    # The engine pauses
    "step of a paused engine": (EngineContinued, anything, drop, r"while the engine is paused \(breakpoint 1\)"),
    "step beyond the granted": (
        EnginePaused, lambda e: e.cause == "steps",
        instead(StepPlanned(503, 6, "decode", [], 1, [], 0, 1, 5)), "beyond those that the paused engine was granted"),
    "steps below 0": (EngineContinued, anything, change(num_steps=-1), "continues for -1 steps"),
    "keyframe of a paused engine": (Keyframe, anything, change(engine_paused="operator"), "engine_paused: operator"),
    # Steps
    "chunk beyond its tokens": (
        StepPlanned, lambda e: e.step == 7, change(chunks=[(0, 7, 5)]), "tokens 7 to 12, it has 11"),
}  # fmt: skip


def test_the_story_is_true() -> None:
    audit = Audit()
    audit.apply_all(story())
    assert audit.state.stopped is not None


@pytest.mark.parametrize("name", LIES)
def test_finds(name: str) -> None:
    kind, where, edit, words = LIES[name]
    events = story()
    edit(events, find(events, kind, where))
    with pytest.raises(AuditError, match=words):
        Audit().apply_all(events)


def test_a_step_of_moves_alone_may_be_planned_while_the_engine_is_paused() -> None:
    events = story()
    at = find(events, EngineContinued)
    audit = Audit()
    audit.apply_all([*events[:at], StepPlanned(455, 5, "moves", [], 0, [], 0, 1, 6)])
    assert audit.state.engine_paused


def test_a_slot_that_is_held_at_the_end_is_found() -> None:
    """Its sequence is gone from the record: only the pool still knows."""
    events = story()
    audit = Audit()
    audit.apply_all(events[:-1])
    audit.state.pool.slots.add(3)
    with pytest.raises(AuditError, match=r"slots \[3\] of the swap space were never freed"):
        audit.apply(events[-1])


def test_whoever_pauses_or_waits_may_hold_blocks() -> None:
    """A preemption with swap leaves shared blocks where they are, and a paused sequence keeps all."""
    events = story()
    at = find(events, BlocksSwapped, second_out)
    planned = StepPlanned(803, 8, "decode", [], 1, [], 1, 1, 3)
    Audit().apply_all([*events[:at], planned])


def test_a_reader_that_joins_midway_takes_the_end_of_a_move_that_it_did_not_see() -> None:
    events = story()
    keyframe = find(events, Keyframe)
    audit = Audit()
    audit.apply_all([events[keyframe], SwapFinished(545, 5, 0, 2, 64, 9), *events[keyframe + 1 :]])
    assert audit.state.stopped is not None
    audit = Audit()
    began = find(events, BlocksSwapped, back)
    audit.apply_all(events[keyframe : began + 1])
    audit.apply(SwapFinished(605, 6, 0, 2, 64, 9))
    with pytest.raises(AuditError, match="move 9 ended but is not open"):
        audit.apply(SwapFinished(605, 6, 0, 9, 64, 9))


def test_a_loss_forgets_what_was_open() -> None:
    events = story()
    keyframe = find(events, Keyframe)
    began = find(events, BlocksSwapped, out)
    audit = Audit()
    audit.apply_all([*events[: began + 1], JournalDropped(402, 9, 1, "disk full"), *events[keyframe:]])
    assert audit.state.stopped is not None


@pytest.mark.parametrize(("failed", "kept"), [(1, True), (2, False)])
def test_a_failed_move_matters_while_its_targets_stand_in_the_table(failed: int, kept: bool) -> None:
    """Block 0 moves out with move 2, and comes back without a move, since it is still cached; block 1 stays out."""
    events = story()
    began = find(events, BlocksSwapped, out)
    audit = Audit()
    audit.apply_all(events[: began + 1])
    audit.apply(BlocksSwapped(400, 4, 0, "out", 2, [0], [-2], [], [], 6))
    audit.apply(BlocksSwapped(400, 4, 0, "in", 0, [-2], [0], [0], [], 6))
    audit.apply(SwapFinished(400, 4, 0, failed, 0, 9, "no space left"))
    if kept:
        with pytest.raises(AuditError, match="sequence 0 kept the blocks that a failed move left"):
            audit.apply(events[began + 1])
    else:
        audit.apply(events[began + 1])


def test_a_failed_move_of_a_sequence_that_was_freed_meanwhile_matters_to_nobody() -> None:
    events = story()
    at = find(events, SwapFinished, lambda e: bool(e.error))
    freed = events.pop(find(events, BlocksFreed, lambda e: e.lost))
    events.insert(at, freed)
    audit = Audit()
    audit.apply_all(events)
    assert audit.state.stopped is not None
