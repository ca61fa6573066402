"""Each event in words, and the sequences that it names."""

from __future__ import annotations

import pytest

from nanolens.inspector.describe import describe, sequences_of
from nanolens.telemetry.events import (
    AnyEvent,
    BlockCopied,
    BlocksFreed,
    BlocksSwapped,
    BreakpointHit,
    EngineContinued,
    EnginePaused,
    Keyframe,
    PriorityChanged,
    SequencePreempted,
    SequenceResumed,
    StatusChanged,
    StepRanks,
    StepRetried,
    SwapFinished,
)
from stories import find, story

WORDS: list[tuple[AnyEvent, str, list[int]]] = [
    (EnginePaused(1, 2, "breakpoint 3"), "engine paused (breakpoint 3)", []),
    (EngineContinued(1, 2, 0), "engine continues", []),
    (EngineContinued(1, 2, 1), "engine continues for 1 step", []),
    (
        BreakpointHit(1, 2, 3, "on=preempted", "sequence.preempted", 7, "engine"),
        "breakpoint 3 (on=preempted) met by sequence.preempted of seq 7: the engine pauses",
        [7],
    ),
    (
        BreakpointHit(1, 2, 3, "on=step.planned", "step.planned", -1, "sequence"),
        "breakpoint 3 (on=step.planned) met by step.planned: the sequence pauses",
        [],
    ),
    (
        StatusChanged(1, 2, 4, "RUNNING", "PAUSED", "operator", "", 7),
        "seq 4 RUNNING -> PAUSED (operator), keeping 7 computed tokens",
        [4],
    ),
    (
        StatusChanged(1, 2, 4, "RUNNING", "ERROR", "error", cause=5),
        "seq 4 RUNNING -> ERROR (error), drawn in by seq 5",
        [4, 5],
    ),
    (StatusChanged(1, 2, 4, "", "WAITING", "arrived", "r"), "seq 4 WAITING (arrived)", [4]),
    (SequenceResumed(1, 2, 4, 3, 12), "seq 4 resumed with 3 tokens appended, max 12", [4]),
    (SequenceResumed(1, 2, 4, 0, 12), "seq 4 resumed, max 12", [4]),
    (PriorityChanged(1, 2, 4, -1), "seq 4 has priority -1", [4]),
    (
        BlocksSwapped(1, 2, 4, "out", 9, [3, 5], [-1, -2], [], [], 6),
        "seq 4 swaps out 2 blocks (3 5) -> 2 slots (0 1) (move 9); 6 free",
        [4],
    ),
    (
        BlocksSwapped(1, 2, 4, "in", 9, [-1, -2], [3, 6], [3], [6], 6),
        "seq 4 swaps in 2 slots (0 1) -> 2 blocks (3 6), 1 of them still there, evicting 1 cached (move 9); 6 free",
        [4],
    ),
    (
        BlocksSwapped(1, 2, 4, "in", 0, [-1], [3], [3], [], 6),
        "seq 4 swaps in 1 slot (0) -> 1 block (3), 1 of them still there (nothing to move); 6 free",
        [4],
    ),
    (SwapFinished(1, 2, 4, 9, 3 << 19, 2_500_000), "seq 4 move 9 done: 1.50 MiB in 2.50 ms", [4]),
    (SwapFinished(1, 2, 4, 9, 0, 1, "OSError: full"), "seq 4 move 9 failed: OSError: full", [4]),
    (BlockCopied(1, 2, 4, 3, 10, 11, 2), "seq 4 copies 2 tokens of block 10 of seq 3 into block 11", [4, 3]),
    (BlocksFreed(1, 2, 4, [-3, 5], 6), "seq 4 gives up 1 block (5) and 1 slot (2); 6 free", [4]),
    (BlocksFreed(1, 2, 4, [-3], 6, 9), "seq 4 gives up 1 slot (2), losing 9 computed tokens; 6 free", [4]),
    (
        SequencePreempted(1, 2, 4, 3, "no_blocks", "swap", 2, 1, 9),
        "seq 4 preempted for seq 3 (no_blocks, swap): 2 blocks and 1 computed token lost, 9 kept",
        [4, 3],
    ),
    (
        SequencePreempted(1, 2, 4, 4, "no_blocks", "recompute", 2, 9),
        "seq 4 preempted for itself (no_blocks, recompute): 2 blocks and 9 computed tokens lost",
        [4, 4],
    ),
    (
        StepRanks(2, [1_500_000, 2_000_000], [250_000, 0]),
        "on each rank 1.50, 2.00 ms, of it 0.25, 0.00 in collectives",
        [],
    ),
    (
        StepRanks(2, [1_500_000, 2_000_000], [250_000, 0], [0, 1_250_000]),
        "on each rank 1.50, 2.00 ms, of it 0.25, 0.00 in collectives, late to them by 0.00, 1.25",
        [],
    ),
    (StepRetried(1, 2, "out of memory", 2), "step does not fit (out of memory): launched again in 2 parts", []),
]


@pytest.mark.parametrize(("event", "words", "seqs"), WORDS, ids=[words for _, words, _ in WORDS])
def test_says(event: AnyEvent, words: str, seqs: list[int]) -> None:
    assert describe(event) == words
    assert sequences_of(event) == seqs


def test_a_keyframe_counts_the_paused_and_says_why_the_engine_stands_still() -> None:
    events = story()
    keyframe = events[find(events, Keyframe)]
    assert isinstance(keyframe, Keyframe)
    assert describe(keyframe) == "keyframe: 1 running, 1 waiting, 5 blocks free, 1 cached"
    keyframe.sequences[0].status = "PAUSED"
    keyframe.engine_paused = "operator"
    assert describe(keyframe) == (
        "keyframe: 1 running, 1 waiting, 1 paused, 5 blocks free, 1 cached; engine paused (operator)"
    )


def test_every_event_of_the_story_is_one_line() -> None:
    for event in story():
        assert "\n" not in describe(event)
        assert describe(event)
