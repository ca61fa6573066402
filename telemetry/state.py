"""The `state` projection: the engine's queues, sequences and blocks at any point of a journal.

Knows the meaning of events as telemetry/events.py states it, and nothing of the engine's code. A decode step costs the
same however many sequences decode: they share two counters, and each is brought up to date when someone looks at it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..errors import AuditError
from .events import (
    AnyEvent,
    EngineContinued,
    EnginePaused,
    EngineStarted,
    EngineStopped,
    JournalDropped,
    Keyframe,
    PriorityChanged,
    RequestArrived,
    RequestFinished,
    SequencePreempted,
    SequenceResumed,
    SequenceSnapshot,
    StatusChanged,
    StepFinished,
    StepPlanned,
    WaitReasonChanged,
)
from .pool_state import PoolState
from .queue_order import QueueKey, QueueOrder
from .sequence_state import RequestState, SequenceState
from .state_blocks import BLOCK_HANDLERS
from .step_state import StepState
from .totals import TOTAL_NAMES, Totals

__all__ = ["TOTAL_NAMES", "EngineState", "Totals"]

FINAL = ("FINISHED", "ERROR")


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
        running: ids of the sequences in that status.
        waiting: ids of the WAITING ones, each with its place in the queue. The order in a keyframe that was joined
            holds; who comes later stands where the policy of the run puts it.
        engine_paused: why nothing is planned; "" while the engine runs.
        steps: steps in flight, and the sequences that decode.
        pool: the blocks, and the slots of the swap space.
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
        return self.steps.settle(self.sequences[seq_id]).snapshot(self._host_blocks)

    @property
    def is_order_sure(self) -> bool:
        """Whether the order of the queue is known: not while some wait whose place a joined keyframe leaves open."""
        return not self._unsure

    def num_computed_tokens(self, seq: SequenceState) -> int:
        """Tokens of a sequence that are computed; planned steps count as done."""
        return self.steps.settle(seq).num_computed_tokens

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
            waiting=sorted(self.waiting, key=self.waiting.__getitem__),
            running=sorted(self.running),
            cached_blocks=[block for block, _ in cached],
            cached_hashes=b"".join(content[0] for _, content in cached),
            cached_by=[content[1] for _, content in cached],
            free_blocks=list(self.pool.free),
            totals=self.totals.snapshot(),
            engine_paused=self.engine_paused,
        )

    # Joining

    def _reset(self, pool: PoolState) -> None:
        self.step = 0
        self.sequences: dict[int, SequenceState] = {}
        self.ended: dict[int, SequenceState] = {}
        self.requests: dict[str, RequestState] = {}
        self.running: set[int] = set()
        self.waiting: dict[int, QueueKey] = {}
        self._unsure: set[int] = set()  # in the queue when it was joined, at a place that can't be worked out
        self.engine_paused = ""
        self.pool = pool
        self._owner: dict[int, RequestState] = {}  # sequence -> its request, before and while it lives
        self.steps = StepState()

    def _begin(self, started: EngineStarted, t: int) -> None:
        """Hold the state of this run from here on."""
        self.started, self.stopped, self.joined, self.t = started, None, True, t
        self._order = QueueOrder(started.config)
        host_blocks = started.config.get("host_blocks")
        self._host_blocks = host_blocks if isinstance(host_blocks, int) else 0

    def _on_started(self, e: EngineStarted) -> None:
        self._reset(PoolState(e.num_blocks))
        self._begin(e, e.t)
        self.totals = Totals()

    def _on_keyframe(self, e: Keyframe) -> None:
        if not self.joined:
            self._join_keyframe(e)
        self.t = e.t

    def _join_keyframe(self, e: Keyframe) -> None:
        self._reset(PoolState.from_keyframe(e))
        self._begin(e.started, e.t)
        self.step, self.engine_paused, self.totals = e.step, e.engine_paused, Totals(e.totals)
        in_flight: dict[int, list[SequenceState]] = {}
        for snapshot in e.sequences:
            seq = SequenceState.from_snapshot(snapshot)
            self._adopt(seq)
            for back in range(seq.num_unread_tokens):
                in_flight.setdefault(e.step - back, []).append(seq)
        waiting = [self.sequences[seq] for seq in e.waiting]
        self.waiting = self._order.keys(waiting)
        self._unsure = {seq.seq for seq in waiting if not self._order.is_sure(seq)}
        self.running = set(e.running)
        self.steps.adopt(in_flight)

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
            self.steps.join(seq)

    # Events

    def _on_stopped(self, e: EngineStopped) -> None:
        self.stopped, self.t = e, e.t

    def _on_engine_paused(self, e: EnginePaused) -> None:
        self.engine_paused, self.t = e.cause, e.t

    def _on_engine_continued(self, e: EngineContinued) -> None:
        self.engine_paused, self.t = "", e.t

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
                self.steps.leave(seq)
                if e.new == "PAUSED":
                    seq.num_computed_tokens = e.kept
            elif e.old == "WAITING":
                self.waiting.pop(e.seq, None)
                self._unsure.discard(e.seq)
        seq.status, seq.status_t, seq.reason, seq.wait_reason = e.new, e.t, e.reason, ""
        if e.new == "RUNNING":
            self.running.add(e.seq)
            seq.prefill_target = seq.num_tokens  # never all computed: it joins the decodes after a chunk
        elif e.new == "WAITING":
            self.waiting[e.seq] = self._order.key(seq)
        elif e.new in FINAL:
            del self.sequences[e.seq]
            request = self._owner.pop(e.seq)
            request.num_output_tokens += seq.num_output_tokens
            request.live -= 1
            if seq.block_table:
                self.ended[e.seq] = seq

    def _on_waits(self, e: WaitReasonChanged) -> None:
        self.sequences[e.seq].wait_reason = e.reason

    def _on_resumed(self, e: SequenceResumed) -> None:
        self.t = e.t
        seq = self.sequences[e.seq]
        seq.num_appended_tokens += e.num_appended
        seq.max_tokens = e.max_tokens

    def _on_priority(self, e: PriorityChanged) -> None:
        self.t = e.t
        seq = self.sequences[e.seq]
        seq.priority = e.priority
        if e.seq in self.waiting:
            self.waiting[e.seq] = self._order.key(seq)

    def _on_preempted(self, e: SequencePreempted) -> None:
        seq = self.sequences[e.seq]
        self.steps.leave(seq)
        seq.num_computed_tokens = e.kept
        seq.num_preemptions += 1

    def _on_planned(self, e: StepPlanned) -> None:
        self.step = e.step
        self.steps.plan(e, self.sequences)

    def _on_finished(self, e: StepFinished) -> None:
        self.t = e.t
        self.steps.finish(e)


_HANDLERS: dict[type, Callable[[EngineState, Any], None]] = {
    EngineStarted: EngineState._on_started,
    EngineStopped: EngineState._on_stopped,
    EnginePaused: EngineState._on_engine_paused,
    EngineContinued: EngineState._on_engine_continued,
    Keyframe: EngineState._on_keyframe,
    JournalDropped: EngineState._on_dropped,
    RequestArrived: EngineState._on_arrived,
    RequestFinished: EngineState._on_request_finished,
    StatusChanged: EngineState._on_status,
    WaitReasonChanged: EngineState._on_waits,
    SequenceResumed: EngineState._on_resumed,
    PriorityChanged: EngineState._on_priority,
    SequencePreempted: EngineState._on_preempted,
    StepPlanned: EngineState._on_planned,
    StepFinished: EngineState._on_finished,
    **BLOCK_HANDLERS,
}
