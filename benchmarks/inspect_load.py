"""A large engine, as a source for nano-inspect: so many sequences of so many blocks, and steps in real time.

Its frames are decoded and folded as those of a journal are; there is no engine and no file.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Iterator

import msgspec

from ..inspector.describe import sequences_of
from ..inspector.history.step_log import StepLog
from ..inspector.sources.source import Control
from ..inspector.view import EVENTS_SHOWN, EventRow, Judgement, Kept, Moment, SourceStatus, Stay, Story, Tick, View
from ..telemetry.events import (
    AnyEvent,
    BlocksAllocated,
    BlocksFreed,
    EngineStarted,
    Keyframe,
    PrefixMatched,
    RequestArrived,
    RequestFinished,
    SequenceSnapshot,
    StatusChanged,
    StepFinished,
    StepPlanned,
)
from ..telemetry.predicate import Predicate
from ..telemetry.state import EngineState
from ..telemetry.totals import TOTAL_NAMES

MS = 1_000_000
BEGIN = 1_000_000 * MS  # the clock at step 0
BLOCK_SIZE = 16
KINDS = {3: "PAUSED", 7: "WAITING"}  # of each ten sequences; the others run


def big_keyframe(num_sequences: int, blocks_each: int) -> Keyframe:
    """So many sequences: of each ten, eight decode, one is paused in host memory, one waits without blocks."""
    pool = num_sequences * blocks_each
    started = EngineStarted(
        0, "big", 0, 1, "0", "fake", {"host_blocks": pool, "policy": "fcfs", "max_num_seqs": num_sequences}, pool,
        BLOCK_SIZE, 1000, BLOCK_SIZE * blocks_each,
    )  # fmt: skip
    sequences = [_sequence(seq, blocks_each) for seq in range(num_sequences)]
    held = {entry for each in sequences for entry in each.block_table if entry >= 0}
    cached = sorted(held)[: pool // 2]
    return Keyframe(
        t=BEGIN, step=0, started=started, sequences=sequences,
        waiting=[each.seq for each in sequences if each.status == "WAITING"],
        running=[each.seq for each in sequences if each.status == "RUNNING"],
        cached_blocks=cached, cached_hashes=b"".join(block.to_bytes(8, "big") for block in cached),
        cached_by=[block // blocks_each for block in cached],
        free_blocks=[block for block in range(pool) if block not in held], totals=dict.fromkeys(TOTAL_NAMES, 0),
    )  # fmt: skip


def big_steps(keyframe: Keyframe, step_ms: float) -> Iterator[list[AnyEvent]]:
    """The frames of one step after another. Each ends the oldest sequence that runs, and begins another."""
    running = deque(keyframe.running)
    tables = {each.seq: each.block_table for each in keyframe.sequences}
    count, waiting = len(running), len(keyframe.waiting)
    step, new = 0, len(keyframe.sequences)
    while True:
        step += 1
        t = BEGIN + int((step - 0.9) * step_ms * MS)
        old, request, free = running.popleft(), f"request-{new:06d}", len(keyframe.free_blocks)
        table = tables.pop(old)
        yield [
            StatusChanged(t, step - 1, old, "RUNNING", "FINISHED", "length"),
            BlocksFreed(t, step - 1, old, table[::-1], free + len(table)),
            RequestFinished(t, f"request-{old:06d}", "length", 40 + old % 900, step, 0),
            RequestArrived(t, request, [new], 40 + new % 900, 5000, 0, {}),
            StatusChanged(t, step - 1, new, "", "WAITING", "arrived", request),
            StatusChanged(t, step, new, "WAITING", "RUNNING", "admitted"),
            PrefixMatched(t, step, new, 40 + new % 900, 16, 24 + new % 900, 0, 0, False),
            BlocksAllocated(t, step, new, [], table, [], free),
            StepPlanned(t, step, "mixed", [(new, 16, 24 + new % 900)], count - 1, [], waiting, count, free),
            _finished(step, step_ms, count),
        ]
        running.append(new)
        tables[new] = table
        new += 1


class BigSource:
    """A source of views of that engine. Its steps begin with the first view, and go on in real time.

    Args:
        num_sequences: that live.
        blocks_each: blocks of those that are not waiting.
        step_ms: what a step takes.
        steps: that there are; nothing happens after them.
    """

    def __init__(self, num_sequences: int, blocks_each: int, step_ms: float, steps: int) -> None:
        self.title = f"{num_sequences} sequences of {blocks_each} blocks"
        self.control: Control | None = None
        keyframe = big_keyframe(num_sequences, blocks_each)
        encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(list[AnyEvent]).decode
        self._frames = [encode(frame) for frame in itertools.islice(big_steps(keyframe, step_ms), steps)]
        self._state, self._log = EngineState.from_keyframe(keyframe), StepLog()
        self._events: deque[EventRow] = deque([EventRow(Moment(1, 0, 1), 0, BEGIN, keyframe)], EVENTS_SHOWN)
        self._step_ms, self._done = step_ms, 0
        self._begin = 0.0
        self._lock = threading.Lock()

    @property
    def status(self) -> SourceStatus:
        """Live."""
        return SourceStatus("live", 0.0)

    def start(self) -> None:
        """Nothing is to be begun."""

    def close(self) -> None:
        """Nothing is held."""

    def view(self, moment: Moment | None = None) -> View:
        """The engine now, whatever the moment."""
        with self._lock:
            self._catch_up()
            events, keyframe = list(self._events), self._state.to_keyframe()
            here = Tick(keyframe.step, keyframe.t)
            return View(
                events[-1].moment,
                True,
                keyframe,
                self._log.rows(),
                events,
                True,
                None,
                Tick(0, BEGIN),
                here,
                self.status,
            )

    def kept(self, moment: Moment) -> Kept:
        """The moment alone: there is no past here."""
        here = Tick(self._state.step, self._state.t)
        return Kept(moment, here, here)

    def story(self, seq: int, moment: Moment, now_t: int = 0) -> Story | None:
        """Its last status, and the last events that name it."""
        with self._lock:
            events = [row for row in self._events if seq in sequences_of(row.event)]
            if seq not in self._state.sequences:
                return None
            snapshot, t = self._state.snapshot(seq), self._state.t
        stays = [
            Stay("WAITING", "arrived", snapshot.arrived_t, snapshot.status_t, 0),
            Stay(snapshot.status, snapshot.reason, snapshot.status_t, t, 0),
        ]
        parts = {"queued": snapshot.status_t - snapshot.arrived_t, "decode": t - snapshot.status_t}
        return Story(seq, snapshot.request, True, stays, events, parts)

    def verdict(self, seq: int, moment: Moment, now_t: int = 0) -> Judgement | None:
        """Its steps are made up: nothing can be said of them."""
        return None

    def at_step(self, step: int, near: Moment | None = None) -> Moment:
        """There is no past here."""
        return self._events[-1].moment

    def at_time(self, t: int, near: Moment | None = None) -> Moment:
        """There is no past here."""
        return self._events[-1].moment

    def move(self, moment: Moment, steps: int) -> Moment:
        """There is no past here."""
        return moment

    def find(self, moment: Moment, predicate: Predicate | None, forward: bool) -> EventRow | None:
        """There is no past here."""
        return None

    def _catch_up(self) -> None:
        """Take in the steps that are over."""
        self._begin = self._begin or time.monotonic()
        over = min(len(self._frames), int((time.monotonic() - self._begin) * 1000 / self._step_ms))
        for offset in range(self._done, over):
            for index, event in enumerate(self._decode(self._frames[offset])):
                self._state.apply(event)
                self._log.apply(event)
                t, step = getattr(event, "t", 0), getattr(event, "step", offset)
                self._events.append(EventRow(Moment(1, offset + 1, index + 1), step, t, event))
        self._done = max(self._done, over)


def _sequence(seq: int, blocks: int) -> SequenceSnapshot:
    kind, prompt, arrived = KINDS.get(seq % 10, "RUNNING"), 40 + seq % 900, BEGIN - (seq + 1) * 10 * MS
    table = range(seq * blocks, (seq + 1) * blocks)
    held = {"PAUSED": [-1 - entry for entry in table], "WAITING": []}.get(kind, list(table))
    waits = kind == "WAITING"
    return SequenceSnapshot(
        seq, f"request-{seq:06d}", kind, "prefill" if waits else "decode",
        {"PAUSED": "operator", "WAITING": "arrived"}.get(kind, "admitted"), "no_blocks" if waits else "",
        {"PAUSED": "host", "WAITING": "none"}.get(kind, "device"), seq % 3, arrived, arrived + 5 * MS, prompt,
        0 if waits else seq % 100, 0 if waits else prompt - 1 + seq % 100, 16 * (seq % 3), prompt, 5000, seq % 2,
        held, 0 if waits or not seq % 100 else arrived + 20 * MS, BEGIN if kind == "RUNNING" and seq % 100 else 0,
    )  # fmt: skip


def _finished(step: int, step_ms: float, count: int) -> StepFinished:
    device = int(step_ms * (0.7 + step % 5 * 0.02) * MS)
    wait = int(device * 0.8)
    return StepFinished(
        BEGIN + int(step * step_ms * MS), step, MS, MS // 2, device, wait + MS // 4, count, count, [], wait_ns=wait
    )
