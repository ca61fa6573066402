"""The audit: a true journal passes, and each kind of lie is found, at its event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from journals import busy_engine
from nanolens.engine.sequence import TRANSITIONS
from nanolens.errors import AuditError
from nanolens.telemetry.audit import LEGAL, Audit
from nanolens.telemetry.events import (
    AnyEvent,
    BlocksAllocated,
    BlocksCached,
    BlocksFreed,
    EngineStarted,
    EngineStopped,
    JournalDropped,
    Keyframe,
    PrefixMatched,
    RequestArrived,
    RequestFinished,
    SequencePreempted,
    StatusChanged,
    StepFinished,
    StepPlanned,
    WaitReasonChanged,
)

Edit = Callable[[list[AnyEvent], int], None]


@pytest.fixture(scope="module")
def recorded() -> bytes:
    """The events of a whole run, encoded: every test breaks its own copy."""
    engine = busy_engine(overlap=True)
    keyframe = engine.core.keyframe()
    keyframe.totals = engine.core.recorder.totals.snapshot()
    engine.events.append(keyframe)
    engine.core.close()
    return msgspec.msgpack.encode(engine.events)


def events_of(recorded: bytes) -> list[AnyEvent]:
    return msgspec.msgpack.decode(recorded, type=list[AnyEvent])


def find(events: list[AnyEvent], kind: type, where: Callable[[Any], bool] = lambda e: True) -> int:
    return next(i for i, event in enumerate(events) if isinstance(event, kind) and where(event))


def change(**fields: object) -> Edit:
    """Give fields of the event other values; a callable is given the old one."""

    def edit(events: list[AnyEvent], at: int) -> None:
        for name, value in fields.items():
            old = getattr(events[at], name)
            setattr(events[at], name, value(old) if callable(value) else value)

    return edit


def drop(events: list[AnyEvent], at: int) -> None:
    del events[at]


def repeat(events: list[AnyEvent], at: int) -> None:
    events.insert(at, events[at])


def drop_last(events: list[AnyEvent], at: int) -> None:
    """The last of the event's kind goes."""
    del events[max(i for i, event in enumerate(events) if type(event) is type(events[at]))]


def before_its_step(events: list[AnyEvent], at: int) -> None:
    """The event moves to where its sequence had got its blocks and computed nothing."""
    event = events.pop(at)
    allocated = find(events, BlocksAllocated, lambda e: e.seq == event.seq)  # type: ignore[union-attr]
    events.insert(allocated + 1, event)


def one_more(value: int) -> int:
    return value + 1


def test_a_true_journal_passes(recorded: bytes) -> None:
    audit = Audit()
    audit.apply_all(events_of(recorded))
    assert audit.state.stopped is not None
    assert audit.state.totals.counts["preemptions"] > 0


def test_its_table_of_transitions_is_the_engines() -> None:
    engines = {(a.value if a else "", b.value): reasons for (a, b), reasons in TRANSITIONS.items()}
    assert engines == LEGAL


def nothing(e: Any) -> bool:
    return True


VIOLATIONS: dict[str, tuple[type, Callable[[Any], bool], Edit, str]] = {
    "illegal transition": (StatusChanged, lambda e: e.new == "RUNNING", change(reason="stop"), "is not legal"),
    "wrong old status": (StatusChanged, lambda e: e.new == "FINISHED", change(old="PAUSED"), "leaves PAUSED but is"),
    "arrival twice": (StatusChanged, lambda e: e.old == "", repeat, r"leaves \(new\) but is WAITING"),
    "sequence without request": (StatusChanged, lambda e: e.old == "", change(request="?"), "without its request"),
    "request id in use": (RequestArrived, nothing, repeat, "while one of that id is open"),
    "request without sequences": (RequestArrived, nothing, change(seqs=[]), "has no sequences"),
    "waiting while running": (WaitReasonChanged, nothing, change(seq=999), "waits .* but is not live"),
    "prefix counts": (PrefixMatched, lambda e: not e.recompute, change(never_seen=one_more), "tokens queried"),
    "new block not free": (BlocksAllocated, lambda e: e.new, change(new=lambda b: [-1, *b[1:]]), "is not free"),
    "block given twice": (BlocksAllocated, lambda e: len(e.new) > 1, change(new=lambda b: [b[0]] * 2), "a block twice"),
    "shared without content": (BlocksAllocated, lambda e: e.new, change(cached=[19]), "holds no cached content"),
    "eviction not named": (BlocksAllocated, lambda e: e.evicted, change(evicted=[]), "new blocks with cached content"),
    "free after allocation": (BlocksAllocated, nothing, change(free=one_more), "the events before it leave"),
    "blocks to a dead sequence": (BlocksAllocated, nothing, change(seq=999), "which is not live"),
    "cached before computed": (BlocksCached, nothing, before_its_step, "has computed 0"),
    "cached twice": (BlocksCached, nothing, repeat, "is in it already"),
    "cached block of another": (BlocksCached, nothing, change(blocks=lambda b: [19] * len(b)), "next in order"),
    "hash bytes": (BlocksCached, nothing, change(hashes=b"1"), "bytes of hashes"),
    "freed twice": (BlocksFreed, nothing, repeat, "and holds none"),
    "freed out of order": (BlocksFreed, lambda e: e.blocks[1:], change(blocks=lambda b: b[::-1]), "the tail first"),
    "freed without a reference": (BlocksFreed, nothing, change(blocks=lambda b: [*b, 99]), "without being in use"),
    "free after release": (BlocksFreed, nothing, change(free=one_more), "the events before it leave"),
    "never freed": (BlocksFreed, nothing, drop_last, "ended .* and kept its"),
    "preempted while waiting": (SequencePreempted, nothing, change(seq=999), "is preempted but is not live"),
    "blocks lost": (SequencePreempted, nothing, change(num_blocks=one_more), "its table has"),
    "tokens lost": (SequencePreempted, nothing, change(num_tokens=one_more), "computed tokens of"),
    "step numbers": (StepPlanned, lambda e: e.step > 5, change(step=2), "is planned after step"),
    "running count": (StepPlanned, nothing, change(running=one_more), "running="),
    "waiting count": (StepPlanned, nothing, change(waiting=one_more), "waiting="),
    "free count": (StepPlanned, nothing, change(free=one_more), "free="),
    "chunk of a dead sequence": (StepPlanned, lambda e: e.chunks, change(chunks=[(999, 0, 1)]), "is computed but"),
    "chunk leaves a hole": (StepPlanned, lambda e: e.chunks, change(chunks=lambda c: [(c[0][0], 77, 1)]), "ition 77"),
    "chunk beyond its blocks": (
        StepPlanned, lambda e: e.chunks, change(chunks=lambda c: [(*c[0][:2], 500)]), "blocks of 4"),
    "decodes": (StepPlanned, lambda e: e.decodes, change(decodes=one_more), "decodes planned"),
    "step finished twice": (StepFinished, nothing, repeat, "finished after step"),
    "step never planned": (StepFinished, nothing, change(step=5000), "never planned"),
    "computed tokens": (StepFinished, nothing, change(num_tokens=one_more), "tokens computed"),
    "sampled tokens": (StepFinished, nothing, change(num_sampled=one_more), "sampled"),
    "request finished twice": (RequestFinished, nothing, repeat, "finished before"),
    "request finished early": (
        RequestFinished, nothing,
        lambda es, at: es.insert(find(es, StatusChanged, lambda e: e.new == "FINISHED"), es.pop(at)), "have not ended"),
    "finish reason": (RequestFinished, nothing, change(finish_reason="tired"), "finish_reason='tired'"),
    "prompt tokens": (RequestFinished, nothing, change(num_prompt_tokens=one_more), "prompt tokens"),
    "output tokens": (RequestFinished, nothing, change(num_output_tokens=one_more), "output tokens"),
    "request never finished": (RequestFinished, nothing, drop, "never finished|keyframe is not"),
    "keyframe": (Keyframe, nothing, change(free_blocks=lambda b: b[::-1]), "free_blocks"),
    "second start": (EngineStarted, nothing, repeat, "a second engine.started"),
    "after the end": (EngineStopped, nothing, repeat, "comes after engine.stopped"),
}  # fmt: skip


@pytest.mark.parametrize("name", VIOLATIONS)
def test_finds(recorded: bytes, name: str) -> None:
    kind, where, edit, words = VIOLATIONS[name]
    events = events_of(recorded)
    edit(events, find(events, kind, where))
    with pytest.raises(AuditError, match=words):
        Audit().apply_all(events)


def test_a_sequence_that_never_ends_is_found_at_the_end(recorded: bytes) -> None:
    events = events_of(recorded)
    cut = find(events, StatusChanged, lambda e: e.new == "FINISHED")
    with pytest.raises(AuditError, match="never ended"):
        Audit().apply_all([*events[:cut], EngineStopped(0, "closed")])


def test_the_message_names_step_and_event(recorded: bytes) -> None:
    events = events_of(recorded)
    at = find(events, BlocksAllocated)
    events[at].free += 1
    with pytest.raises(AuditError, match=rf"^step {events[at].step}, event {at + 1} \(blocks\.allocated\): free="):
        Audit().apply_all(events)


def test_a_loss_that_the_writer_reports_is_no_contradiction(recorded: bytes) -> None:
    events = events_of(recorded)
    keyframe = find(events, Keyframe)
    lost = [event for event in events[keyframe - 20 : keyframe] if isinstance(event, StepFinished)]
    assert lost
    audit = Audit()
    audit.apply_all([*events[: keyframe - 20], JournalDropped(0, 20, 1, "disk full"), *events[keyframe:]])
    assert audit.state.stopped is not None
