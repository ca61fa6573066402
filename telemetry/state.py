"""The `state` projection: the engine's queues, sequences and blocks at any point of a journal.

Knows the meaning of events as telemetry/events.py states it, and nothing of the engine's code. A decode step costs the
same however many sequences decode: they share two counters, and each is brought up to date when someone looks at it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from ..errors import AuditError
from .events import (
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
    SequenceSnapshot,
    StatusChanged,
    StepFinished,
    StepPlanned,
    WaitReasonChanged,
)
from .sequence_state import PoolState, RequestState, SequenceState
from .totals import TOTAL_NAMES, Totals

__all__ = ["TOTAL_NAMES", "EngineState", "Totals"]

FINAL = ("FINISHED", "ERROR")


class _InFlight:
    """A planned step whose tokens have not been read."""

    __slots__ = ("num_sampled", "num_tokens", "ordinal", "samplers", "step")

    def __init__(
        self, step: int, ordinal: int, samplers: list[SequenceState], num_tokens: int = 0, num_sampled: int = 0
    ) -> None:
        self.step = step
        self.ordinal = ordinal  # of the step among those with decodes; 0: it has none
        self.samplers = samplers  # those that sample in it and are not, or no longer, counted with the decodes
        self.num_tokens = num_tokens  # 0: not known
        self.num_sampled = num_sampled


class EngineState:
    """The state after the events applied so far.

    It begins empty; engine.started or a keyframe joins it, and events before that are passed over. After a gap
    (`lose`, or journal.dropped) it passes over events again until the next keyframe.

    Attributes:
        joined: whether the state holds.
        started: the run's first event; None until joined.
        stopped: its last event, once applied.
        step: last planned step.
        t: time of the last event, in clock nanoseconds.
        sequences: live sequences by id. Read their counts through `snapshot`, which brings them up to date.
        ended: sequences that have ended and not yet given back their blocks.
        requests: requests that have not finished.
        running, waiting: ids of the sequences in that status.
        decoding: sequences that compute one token in each step with decodes.
        pool: the blocks.
        totals: counters since the run began.
    """

    def __init__(self) -> None:
        self.joined = False
        self.started: EngineStarted | None = None
        self.stopped: EngineStopped | None = None
        self.totals = Totals()
        self.t = 0
        self._reset(PoolState(0))

    @classmethod
    def from_keyframe(cls, keyframe: Keyframe) -> EngineState:
        """The state that a keyframe holds."""
        state = cls()
        state._join_keyframe(keyframe)
        return state

    def apply(self, event: AnyEvent) -> None:
        """Fold one event.

        Raises:
            AuditError: the event names a sequence, request or block that the state does not have.
        """
        handler = _HANDLERS.get(event.__class__)
        if not self.joined and event.__class__ not in (EngineStarted, Keyframe):
            return
        self.totals.apply(event)
        if handler is not None:
            try:
                handler(self, event)
            except (KeyError, IndexError) as error:
                name = event.__struct_config__.tag
                raise AuditError(f"{name} names {error.args[0]!r}, which the events before it do not have") from error

    def apply_all(self, events: Iterable[AnyEvent]) -> None:
        """Fold a batch."""
        for event in events:
            self.apply(event)

    def lose(self) -> None:
        """Say that events were missed: the state holds again from the next keyframe on."""
        self.joined = False

    def snapshot(self, seq_id: int) -> SequenceSnapshot:
        """One live sequence, up to date.

        Raises:
            KeyError: no live sequence has this id.
        """
        return self._settle(self.sequences[seq_id]).snapshot()

    def num_computed_tokens(self, seq: SequenceState) -> int:
        """Tokens of a sequence that are computed; planned steps count as done."""
        return self._settle(seq).num_computed_tokens

    def planned(self, step: int) -> tuple[int, int] | None:
        """(tokens that a step in flight computes, tokens that it samples); None if its plan wasn't seen."""
        for record in self._in_flight:
            if record.step == step and record.num_tokens:
                return record.num_tokens, record.num_sampled
        return None

    def to_keyframe(self) -> Keyframe:
        """The state as a keyframe, with sequences and cached blocks in the order of their ids.

        Raises:
            AuditError: the state is not joined.
        """
        if not self.joined or self.started is None:
            raise AuditError("there is no state before engine.started or the first keyframe")
        cached = sorted(self.pool.cached.items())
        return Keyframe(
            t=self.t,
            step=self.step,
            started=self.started,
            sequences=[self.snapshot(seq) for seq in sorted(self.sequences)],
            waiting=sorted(self.waiting, key=self._queue_key),
            running=sorted(self.running),
            cached_blocks=[block for block, _ in cached],
            cached_hashes=b"".join(content[0] for _, content in cached),
            cached_by=[content[1] for _, content in cached],
            free_blocks=list(self.pool.free),
            totals=self.totals.snapshot(),
        )

    def _queue_key(self, seq_id: int) -> tuple[int, ...]:
        """A waiting sequence's place under the policy of the run."""
        seq = self.sequences[seq_id]
        policy = self.started.config.get("policy") if self.started else None
        if policy == "priority":
            return seq.priority, seq_id
        if policy == "sjf":
            return seq.num_prompt_tokens + seq.max_tokens, seq_id
        return (seq_id,)

    # Joining

    def _reset(self, pool: PoolState) -> None:
        self.step = 0
        self.sequences: dict[int, SequenceState] = {}
        self.ended: dict[int, SequenceState] = {}
        self.requests: dict[str, RequestState] = {}
        self.running: set[int] = set()
        self.waiting: set[int] = set()
        self.decoding: dict[int, SequenceState] = {}
        self.pool = pool
        self._owner: dict[int, RequestState] = {}  # sequence -> its request, before and while it lives
        self._in_flight: deque[_InFlight] = deque()
        self._decode_steps = 0  # steps with decodes, planned
        self._decode_steps_finished = 0  # of those, the last one whose tokens were read
        self._decode_t = 0  # when they were read

    def _on_started(self, e: EngineStarted) -> None:
        self._reset(PoolState(e.num_blocks))
        self.started, self.stopped, self.joined, self.t = e, None, True, e.t
        self.totals = Totals()

    def _on_keyframe(self, e: Keyframe) -> None:
        if not self.joined:
            self._join_keyframe(e)
        self.t = e.t

    def _join_keyframe(self, e: Keyframe) -> None:
        self._reset(PoolState.from_keyframe(e))
        self.started, self.stopped, self.joined, self.t, self.step = e.started, None, True, e.t, e.step
        self.totals = Totals(e.totals)
        in_flight: dict[int, list[SequenceState]] = {}
        for snapshot in e.sequences:
            seq = SequenceState.from_snapshot(snapshot)
            self._adopt(seq)
            for back in range(seq.num_unread_tokens):
                in_flight.setdefault(e.step - back, []).append(seq)
        self.waiting = set(e.waiting)
        self.running = set(e.running)
        self._in_flight = deque(_InFlight(step, 0, in_flight[step]) for step in sorted(in_flight))

    def _adopt(self, seq: SequenceState) -> None:
        """Take in a live sequence of a keyframe."""
        self.sequences[seq.seq] = seq
        request = self.requests.get(seq.request)
        if request is None:
            request = RequestState(
                seq.request, seq.arrived_t, [], seq.num_prompt_tokens, seq.max_tokens, seq.priority, 0, whole=False
            )
            self.requests[seq.request] = request
        request.seqs.append(seq.seq)
        request.live += 1
        self._owner[seq.seq] = request
        if seq.status == "RUNNING" and seq.num_computed_tokens >= seq.prefill_target:
            self._join_decodes(seq)

    # Decodes, counted together

    def _settle(self, seq: SequenceState) -> SequenceState:
        """Bring a sequence's own counts up to date with the shared ones."""
        if seq.decodes:
            seq.num_computed_tokens += self._decode_steps - seq.planned_base
            seq.planned_base = self._decode_steps
            read = self._decode_steps_finished - seq.finished_base
            if read > 0:
                seq.finished_base = self._decode_steps_finished
                seq.take(read, self._decode_t)
        return seq

    def _join_decodes(self, seq: SequenceState) -> None:
        """From the next planned step on, this sequence is one of its decodes."""
        seq.decodes = True
        seq.planned_base = seq.finished_base = self._decode_steps
        self.decoding[seq.seq] = seq

    def _leave_decodes(self, seq: SequenceState) -> None:
        """Stop counting it with the others; steps in flight remember that it samples in them."""
        if not seq.decodes:
            return
        self._settle(seq)
        for record in self._in_flight:
            if record.ordinal > seq.finished_base:
                record.samplers.append(seq)
        seq.decodes = False
        del self.decoding[seq.seq]

    # Events

    def _on_stopped(self, e: EngineStopped) -> None:
        self.stopped, self.t = e, e.t

    def _on_dropped(self, e: JournalDropped) -> None:
        self.joined = False

    def _on_arrived(self, e: RequestArrived) -> None:
        seqs, prompt = list(e.seqs), e.num_prompt_tokens
        request = RequestState(e.request, e.t, seqs, prompt, e.max_tokens, e.priority, len(seqs))
        self.requests[e.request] = request
        for seq in e.seqs:
            self._owner[seq] = request

    def _on_request_finished(self, e: RequestFinished) -> None:
        self.requests.pop(e.request)
        self.t = e.t

    def _on_status(self, e: StatusChanged) -> None:
        self.t = e.t
        if not e.old:
            seq = self.sequences[e.seq] = SequenceState.arriving(e.seq, self._owner[e.seq])
        else:
            seq = self.sequences[e.seq]
            if e.old == "RUNNING":
                self.running.discard(e.seq)
                self._leave_decodes(seq)
            elif e.old == "WAITING":
                self.waiting.discard(e.seq)
        seq.status, seq.status_t, seq.reason, seq.wait_reason = e.new, e.t, e.reason, ""
        if e.new == "RUNNING":
            self.running.add(e.seq)
            seq.prefill_target = seq.num_prompt_tokens + seq.num_output_tokens
            if seq.num_computed_tokens >= seq.prefill_target:
                self._join_decodes(seq)
        elif e.new == "WAITING":
            self.waiting.add(e.seq)
        elif e.new in FINAL:
            del self.sequences[e.seq]
            request = self._owner.pop(e.seq)
            request.num_output_tokens += seq.num_output_tokens
            request.live -= 1
            if seq.block_table:
                self.ended[e.seq] = seq

    def _on_waits(self, e: WaitReasonChanged) -> None:
        self.sequences[e.seq].wait_reason = e.reason

    def _on_matched(self, e: PrefixMatched) -> None:
        seq = self.sequences[e.seq]
        seq.num_computed_tokens = e.hit
        if not e.recompute:
            seq.num_cached_tokens = e.hit

    def _on_allocated(self, e: BlocksAllocated) -> None:
        table = self.sequences[e.seq].block_table
        self.pool.allocate(e)
        table += e.cached
        table += e.new

    def _on_cached(self, e: BlocksCached) -> None:
        self.pool.cache(e)

    def _on_freed(self, e: BlocksFreed) -> None:
        seq = self.ended.pop(e.seq, None) or self.sequences[e.seq]
        self.pool.release(e)
        self._leave_decodes(seq)
        seq.block_table = []
        seq.num_computed_tokens = 0

    def _on_preempted(self, e: SequencePreempted) -> None:
        seq = self.sequences[e.seq]
        self._leave_decodes(seq)
        seq.num_computed_tokens = 0
        seq.num_preemptions += 1

    def _on_planned(self, e: StepPlanned) -> None:
        self.step = e.step
        joining: list[SequenceState] = []
        for seq_id in e.idle:
            seq = self.sequences[seq_id]
            if seq.decodes:
                self._leave_decodes(seq)
                joining.append(seq)
        samplers: list[SequenceState] = []
        for seq_id, start, count in e.chunks:
            seq = self.sequences[seq_id]
            self._leave_decodes(seq)
            seq.num_computed_tokens = start + count
            if seq.num_computed_tokens >= seq.prefill_target:
                samplers.append(seq)
                joining.append(seq)
        if e.decodes:
            self._decode_steps += 1
        num_tokens = e.decodes + sum(count for _, _, count in e.chunks)
        ordinal = self._decode_steps if e.decodes else 0
        self._in_flight.append(_InFlight(e.step, ordinal, samplers, num_tokens, e.decodes + len(samplers)))
        for seq in joining:
            self._join_decodes(seq)

    def _on_finished(self, e: StepFinished) -> None:
        self.t = e.t
        record = self._pop_in_flight(e.step)
        if record is None:
            return
        rejoining = [self.decoding[seq] for seq in e.wasted if seq in self.decoding]
        for seq in rejoining:
            self._leave_decodes(seq)  # before the shared count rises: it took no token
        if record.ordinal:
            self._decode_steps_finished, self._decode_t = record.ordinal, e.t
        for seq in record.samplers:
            if seq.seq not in e.wasted:
                seq.take(1, e.t)
        for seq in rejoining:
            self._join_decodes(seq)

    def _pop_in_flight(self, step: int) -> _InFlight | None:
        """The plan of a step whose tokens were read; those before it failed, and their tokens are never read."""
        in_flight = self._in_flight
        while in_flight and in_flight[0].step < step:
            in_flight.popleft()
        # A keyframe tells who samples, not in which step: the first to be read, and no later than the last planned.
        if in_flight and (in_flight[0].step == step or not in_flight[0].num_tokens):
            return in_flight.popleft()
        return None


_HANDLERS: dict[type, Callable[[EngineState, Any], None]] = {
    EngineStarted: EngineState._on_started,
    EngineStopped: EngineState._on_stopped,
    Keyframe: EngineState._on_keyframe,
    JournalDropped: EngineState._on_dropped,
    RequestArrived: EngineState._on_arrived,
    RequestFinished: EngineState._on_request_finished,
    StatusChanged: EngineState._on_status,
    WaitReasonChanged: EngineState._on_waits,
    PrefixMatched: EngineState._on_matched,
    BlocksAllocated: EngineState._on_allocated,
    BlocksCached: EngineState._on_cached,
    BlocksFreed: EngineState._on_freed,
    SequencePreempted: EngineState._on_preempted,
    StepPlanned: EngineState._on_planned,
    StepFinished: EngineState._on_finished,
}
