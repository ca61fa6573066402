"""A true journal made by hand: two siblings, a copy, pauses, swaps to host and disk, a failed move, a paused engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nanolens.telemetry.events import (
    AnyEvent,
    BlockCopied,
    BlocksAllocated,
    BlocksCached,
    BlocksFreed,
    BlocksSwapped,
    BreakpointHit,
    EngineContinued,
    EnginePaused,
    EngineStarted,
    EngineStopped,
    Keyframe,
    PrefixMatched,
    PriorityChanged,
    RequestArrived,
    RequestFinished,
    SequencePreempted,
    SequenceResumed,
    SequenceSnapshot,
    StatusChanged,
    StepFinished,
    StepPlanned,
    StepRetried,
    SwapFinished,
    WaitReasonChanged,
)
from nanolens.telemetry.totals import Totals

HOST_BLOCKS, DISK_BLOCKS = 2, 4


def swap_started(**config: str | int | float | bool | None) -> EngineStarted:
    """A run of 8 blocks of 4 tokens, 2 slots in host memory and 4 in a swap file."""
    settings = {"policy": "fcfs", "host_blocks": HOST_BLOCKS, "disk_blocks": DISK_BLOCKS} | config
    return EngineStarted(0, "run", 0, 1, "0", "fake", settings, 8, 4, 100, 64)  # type: ignore[arg-type]


def find(events: list[AnyEvent], kind: type, where: Callable[[Any], bool] = lambda e: True) -> int:
    """The place of the first event of a kind for which a condition holds."""
    return next(i for i, event in enumerate(events) if isinstance(event, kind) and where(event))


def story() -> list[AnyEvent]:
    """The whole run. Sequences 0 and 1 belong to one request of 6 prompt tokens."""
    events = [*_arrival(), *_prefills(), *_pause_and_swap(), *_engine_pause(), *_resumption()]
    events.append(_keyframe(events))
    return [*events, *_swap_in(), *_preemption(), *_end()]


def _arrival() -> list[AnyEvent]:
    return [
        swap_started(),
        RequestArrived(10, "r0", [0, 1], 6, 9, 0, {}),
        StatusChanged(11, 0, 0, "", "WAITING", "arrived", "r0"),
        StatusChanged(12, 0, 1, "", "WAITING", "arrived", "r0"),
    ]


def _prefills() -> list[AnyEvent]:
    """The prompt; then the sibling shares block 0 and copies one token of block 1."""
    return [
        StatusChanged(100, 1, 0, "WAITING", "RUNNING", "admitted"),
        PrefixMatched(101, 1, 0, 6, 0, 4, 0, 2, False),
        BlocksAllocated(102, 1, 0, [], [0, 1], [], 6),
        StepPlanned(103, 1, "prefill", [(0, 0, 6)], 0, [], 1, 1, 6),
        StepFinished(110, 1, 1, 1, 1, 1, 6, 1, []),
        BlocksCached(111, 1, 0, [0], b"content0"),
        StatusChanged(200, 2, 1, "WAITING", "RUNNING", "admitted"),
        PrefixMatched(201, 2, 1, 6, 4, 0, 0, 2, False),
        BlocksAllocated(202, 2, 1, [0], [2], [], 5),
        BlockCopied(203, 2, 1, 0, 1, 2, 1),
        StepPlanned(204, 2, "mixed", [(1, 5, 1)], 1, [], 0, 2, 5),
        StepRetried(205, 2, "out of memory", 2),
        StepFinished(210, 2, 1, 1, 1, 1, 2, 2, []),
    ]


def _pause_and_swap() -> list[AnyEvent]:
    """Sequence 0 pauses while step 3 computes for it; its own block goes to host memory, then to disk."""
    return [
        StepPlanned(300, 3, "decode", [], 2, [], 0, 2, 5),
        StatusChanged(305, 3, 0, "RUNNING", "PAUSED", "operator", "", 7),
        StepFinished(310, 3, 1, 1, 1, 1, 2, 2, [0]),
        BlocksSwapped(400, 4, 0, "out", 1, [1], [-1], [], [], 6),
        StepPlanned(401, 4, "decode", [], 1, [], 0, 1, 6),
        StepFinished(410, 4, 1, 1, 1, 1, 1, 1, []),
        SwapFinished(411, 4, 0, 1, 64, 9),
        BlocksSwapped(450, 5, 0, "down", 2, [-1], [-3], [], [], 6),
    ]


def _engine_pause() -> list[AnyEvent]:
    """The engine pauses, is granted one step, and goes on."""
    return [
        BreakpointHit(451, 4, 1, "on=blocks.swapped", "blocks.swapped", 0, "engine"),
        EnginePaused(452, 4, "breakpoint 1"),
        EngineContinued(460, 4, 1),
        BlocksAllocated(500, 5, 1, [], [3], [], 5),
        StepPlanned(501, 5, "decode", [], 1, [], 0, 1, 5),
        EnginePaused(502, 5, "steps"),
        StepFinished(510, 5, 1, 1, 1, 1, 1, 1, []),
        SwapFinished(511, 5, 0, 2, 64, 9),
        EngineContinued(520, 5, 0),
    ]


def _resumption() -> list[AnyEvent]:
    return [
        SequenceResumed(530, 5, 0, 3, 12),
        StatusChanged(531, 5, 0, "PAUSED", "WAITING", "resumed"),
        PriorityChanged(532, 5, 1, 3),
    ]


def _keyframe(events: list[AnyEvent]) -> Keyframe:
    """The state after the resumption, worked out by hand."""
    totals = Totals()
    totals.apply_all(events)
    first = SequenceSnapshot(
        0, "r0", "WAITING", "decode", "resumed", "", "disk", 0, 10, 531, 6, 2, 7, 0, 6, 12, 0, [0, -3], 110, 210, 3
    )
    second = SequenceSnapshot(
        1, "r0", "RUNNING", "decode", "admitted", "", "device", 3, 10, 200, 6, 4, 9, 4, 6, 9, 0, [0, 2, 3], 210, 510
    )
    return Keyframe(
        540, 5, swap_started(), [first, second], [0], [1], [0], b"content0", [0], [4, 5, 6, 7, 1], totals.snapshot()
    )


def _swap_in() -> list[AnyEvent]:
    """Sequence 0 comes back and computes what was appended, and the token that it had not computed."""
    return [
        BlocksSwapped(600, 6, 0, "in", 3, [-3], [4], [], [], 4),
        BlocksAllocated(601, 6, 0, [], [5], [], 3),
        WaitReasonChanged(602, 6, 0, "swap_in"),
        StepPlanned(603, 6, "decode", [], 1, [], 1, 1, 3),
        StepFinished(610, 6, 1, 1, 1, 1, 1, 1, []),
        SwapFinished(611, 6, 0, 3, 64, 9),
        StatusChanged(700, 7, 0, "WAITING", "RUNNING", "resumed"),
        StepPlanned(701, 7, "mixed", [(0, 7, 4)], 1, [], 0, 2, 3),
        StepFinished(710, 7, 1, 1, 1, 1, 5, 2, []),
        BlocksCached(711, 7, 0, [4], b"content4"),
    ]


def _preemption() -> list[AnyEvent]:
    """Sequence 1 is swapped out; its move fails, so that it computes again."""
    return [
        SequencePreempted(800, 8, 1, 0, "no_blocks", "swap", 3, 0, 11),
        StatusChanged(801, 8, 1, "RUNNING", "WAITING", "preempted"),
        BlocksSwapped(802, 8, 1, "out", 4, [2, 3], [-1, -2], [], [], 5),
        StepPlanned(803, 8, "decode", [], 1, [], 1, 1, 5),
        StepFinished(810, 8, 1, 1, 1, 1, 1, 1, []),
        SwapFinished(811, 8, 1, 4, 0, 9, "OSError: no space left"),
        BlocksFreed(812, 8, 1, [-2, -1, 0], 5, 11),
        BlocksAllocated(900, 9, 0, [], [6], [], 4),
        StatusChanged(901, 9, 1, "WAITING", "RUNNING", "readmitted"),
        PrefixMatched(902, 9, 1, 12, 4, 4, 0, 4, True),
        BlocksAllocated(903, 9, 1, [0], [7, 1], [], 2),
        StepPlanned(904, 9, "mixed", [(1, 4, 8)], 1, [], 0, 2, 2),
        StepFinished(910, 9, 1, 1, 1, 1, 9, 2, []),
    ]


def _end() -> list[AnyEvent]:
    return [
        StatusChanged(911, 9, 0, "RUNNING", "PAUSED", "length", "", 13),
        StatusChanged(920, 9, 0, "PAUSED", "FINISHED", "delivered"),
        BlocksFreed(921, 9, 0, [6, 5, 4, 0], 5),
        StatusChanged(930, 9, 1, "RUNNING", "FINISHED", "aborted"),
        BlocksFreed(931, 9, 1, [1, 7, 0], 8),
        RequestFinished(932, "r0", "abort", 6, 12, 0),
        EngineStopped(940, "closed"),
    ]
