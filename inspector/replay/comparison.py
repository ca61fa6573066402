"""Whether two events are the same decision: all their fields but times, measurements, hashes and content."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from ...telemetry.events import (
    AnyEvent,
    BlocksCached,
    BlocksDuplicate,
    EngineStarted,
    EngineStopped,
    RequestArrived,
    SequenceResumed,
    StepFinished,
    SwapFinished,
)

_LEFT_OUT: dict[type, set[str]] = {
    RequestArrived: {"params", "traceparent", "prompt_token_ids", "block_hashes", "route"},
    SequenceResumed: {"appended_token_ids", "block_hashes"},
    BlocksCached: {"hashes"},
    BlocksDuplicate: {"hashes"},
    SwapFinished: {"num_bytes", "duration_ns"},
    StepFinished: {
        "plan_ns", "launch_ns", "device_ns", "collect_ns", "wait_ns", "graph", "padding",
        "wasted",  # known at the end of the reading only: compared by whoever waits for it
    },
    EngineStarted: set(EngineStarted.__struct_fields__),
    EngineStopped: {"reason"},
}  # fmt: skip
_FIELDS: dict[type, tuple[str, ...]] = {
    kind: tuple(name for name in kind.__struct_fields__ if name != "t" and name not in _LEFT_OUT.get(kind, ()))
    for kind in get_args(AnyEvent)
}


def fields_of(kind: type) -> tuple[str, ...]:
    """The fields of an event in which a decision shows."""
    return _FIELDS[kind]


def differences(expected: AnyEvent, got: AnyEvent, left_out: Callable[[str], bool] | None = None) -> list[str]:
    """The fields in which two events differ, with both values; empty where they are the same decision."""
    if expected.__class__ is not got.__class__:
        return [f"event: {tag(expected)} recorded, {tag(got)} now"]
    found: list[str] = []
    for name in _FIELDS[expected.__class__]:
        was: Any = getattr(expected, name)
        now: Any = getattr(got, name)
        if was != now and not (left_out and left_out(name)):
            found.append(f"{name}: {was!r} recorded, {now!r} now")
    return found


def tag(event: AnyEvent) -> str:
    """An event's name in the journal."""
    return str(event.__struct_config__.tag)
