"""The engine's core: plan, launch, collect, and what follows from the tokens.

A pure function of arrivals, clock and tokens: it knows token ids, not text models or devices. One thread owns it.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Sequence as Items

from ..errors import AuditError, EngineDead, InvalidRequest, OutOfDeviceMemory
from ..telemetry.clock import Clock, monotonic_ns
from ..telemetry.events import (
    AnyEvent,
    BreakpointHit,
    EngineError,
    EngineStarted,
    EngineStopped,
    Keyframe,
    RequestArrived,
    StepFinished,
    StepRetried,
    TokensSampled,
)
from ..telemetry.recorder import NullRecorder, Recorder
from .block_manager import BlockManager
from .breakpoints import Breakpoints, Hit
from .config import EngineConfig
from .interrupts import HeldInterrupts
from .plan import MoveResult, Runner, StepPlan, StepResult
from .request import Request
from .request_book import RequestBook, describe
from .scheduler import InFlight, Scheduler
from .sequence import Sequence, SequenceStatus
from .slot_pool import SlotPool
from .snapshot import make_keyframe
from .step_halves import halves, join_results, without_void

logger = logging.getLogger("nanolens.engine")


class EngineCore:
    """Sequences, queues, blocks and the step loop over one runner.

    Every public method is whole to a Ctrl-C in the main thread: it comes out of them at their end.

    Args:
        config: the engine's settings.
        runner: computes planned steps.
        recorder: takes every event.
        eos_token_ids: tokens that end a sequence unless it ignores them.
        max_model_len: longest prompt + output of a sequence, at most the pool.
        overlap: launch step N+1 before step N is read.
        secret: key of the block hashes.
        clock: CLOCK_MONOTONIC nanoseconds; tests give their own.
        started: the run's first event.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        recorder: Recorder | NullRecorder,
        started: EngineStarted,
        *,
        eos_token_ids: frozenset[int] = frozenset(),
        overlap: bool = False,
        secret: bytes = b"",
        clock: Clock = monotonic_ns,
    ) -> None:
        self.config = config
        self.runner = runner
        self.recorder = recorder
        self.clock = clock
        self.started = started
        self.max_model_len = started.max_model_len
        self.eos_token_ids = eos_token_ids
        self.blocks = BlockManager(
            runner.num_blocks, config.block_size, recorder.record, clock, secret, config.prefix_cache,
            SlotPool(runner.host_blocks, runner.disk_blocks),
        )  # fmt: skip
        self.scheduler = Scheduler(config, self.blocks, recorder.record, clock)
        self.book = RequestBook(self.scheduler, self.blocks, recorder, clock, eos_token_ids, started.wall_offset_ns)
        self.breakpoints = Breakpoints(lambda: {seq.seq_id: seq.request_id for seq in self.book.live_sequences})
        self.scheduler.residency.swap_ns_per_block = float(runner.swap_ns_per_block)
        self.book.finish_moves = self._finish_moves
        self._in_flight = self.scheduler.in_flight
        self._hits: list[Hit] = []
        self._ttl_ns = None if config.paused_ttl_s is None else int(config.paused_ttl_s * 1e9)
        self._depth = 1 if overlap else 0  # steps launched and not read, at most, when step() returns
        self._reading = False  # a step's tokens are being dealt with
        self._closed = ""  # why the engine can't be used any more
        self._next_seq = 0
        self._random = random.Random(config.seed)
        recorder.make_keyframe = self.keyframe
        recorder.record(started)
        self.flush()

    @property
    def requests(self) -> dict[str, Request]:
        """Live requests by id."""
        return self.book.requests

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything now: paused sequences wait for others, not for the engine."""
        scheduler = self.scheduler
        if self._in_flight:
            return True
        if scheduler.paused:
            return False
        return bool(scheduler.waiting or scheduler.running) or self._expired() is not None

    @property
    def next_deadline(self) -> int | None:
        """When the next paused sequence expires, in clock nanoseconds; None while no time is set."""
        oldest = next(iter(self.scheduler.residency.paused.values()), None)
        if oldest is None or self._ttl_ns is None or self.scheduler.paused:
            return None
        return oldest.status_t + self._ttl_ns

    def require_open(self) -> None:
        """Check that the engine can still be used.

        Raises:
            EngineDead: it was closed, or died; in these words.
        """
        if self._closed:
            raise EngineDead(self._closed)

    def add(self, request: Request) -> None:
        """Take in a validated request: its sequences start WAITING.

        Raises:
            InvalidRequest: a live request has this id; nothing has changed.
            EngineDead: the engine was closed.
        """
        self.require_open()
        with HeldInterrupts():
            self._add(request)

    def _add(self, request: Request) -> None:
        if request.request_id in self.requests:
            raise InvalidRequest("request_id", f"request_id={request.request_id!r}: a live request has this id")
        params, now = request.params, self.clock()
        seed = params.seed if params.seed is not None else self._random.getrandbits(63)
        first = self._next_seq
        self._next_seq += params.n
        for i in range(params.n):
            request.sequences.append(self._new_sequence(request, first + i, (seed + i) % (1 << 63), now))
        request.open_streams()
        self.book.add(request)
        record = params.as_record()
        record["seed"] = seed
        self.recorder.record(
            RequestArrived(
                now, request.request_id, [seq.seq_id for seq in request.sequences], len(request.prompt_token_ids),
                request.sequences[0].max_tokens, params.priority, record, request.traceparent,
                request.prompt_token_ids if self.config.journal_content else None,
            )
        )  # fmt: skip
        for seq in request.sequences:
            self.scheduler.add(seq)

    def abort(self, request_id: str) -> bool:
        """End a live request; False (and nothing else) when there is none of this id."""
        with HeldInterrupts():
            found = self.book.abort(request_id)
            self.flush()
        return found

    def pause(self, sequences: Items[Sequence], reason: str) -> bool:
        """Pause those of these that run or wait; whether one did.

        What is in flight is read first, so that no work is lost; from within a callback it is void instead.
        """
        with HeldInterrupts():
            if not self._reading:
                self._drain()
            active = [seq for seq in sequences if seq.status in (SequenceStatus.RUNNING, SequenceStatus.WAITING)]
            for seq in active:
                self.book.pause(seq, reason)
            self.flush()
        return bool(active)

    def resume(self, sequences: Items[Sequence], token_ids: list[int], max_tokens: Items[int]) -> None:
        """Let paused sequences go on, after these tokens, up to so many generated tokens in all, one figure each."""
        with HeldInterrupts():
            for seq, limit in zip(sequences, max_tokens, strict=True):
                self.book.resume(seq, token_ids, limit, self.config.journal_content)
            self.flush()

    def finish(self, sequences: Items[Sequence]) -> None:
        """End paused sequences in order: what they gave is delivered."""
        with HeldInterrupts():
            for seq in sequences:
                self.book.deliver(seq)
            self.flush()

    def set_priority(self, sequences: Items[Sequence], priority: int) -> None:
        """Change the priority of live sequences."""
        with HeldInterrupts():
            for seq in sequences:
                if seq.is_live:
                    self.scheduler.set_priority(seq, priority)
            self.flush()

    def pause_engine(self, cause: str) -> None:
        """Plan nothing from here on; what is in flight is read, unless this comes from within a callback."""
        with HeldInterrupts():
            self.scheduler.pause_engine(cause)
            if not self._reading:
                self._drain()
            self.flush()

    def continue_engine(self, num_steps: int = 0) -> None:
        """Plan on, for `num_steps` steps, or until paused again where that is 0."""
        with HeldInterrupts():
            self.scheduler.continue_engine(num_steps)
            self.flush()

    def step(self) -> bool:
        """Plan and launch the next step and read the one that is due; False when there was nothing to do.

        Raises:
            EngineDead: the engine was closed.
        """
        self.require_open()
        with HeldInterrupts():
            return self._step()

    def _step(self) -> bool:
        expired = self._expire()
        plan = self.scheduler.plan()
        if plan is not None:
            self._launch(plan)
        if self._in_flight and (plan is None or len(self._in_flight) > self._depth):
            self._collect()
        elif plan is None and self.scheduler.residency.under_way and self.scheduler.waiting:
            self._finish_moves()  # nothing can run before one of them has arrived
        elif plan is None:
            self.flush()
            return expired
        if self.config.audit and not self._closed:
            self.audit()
        self.flush()
        return True

    def _expired(self) -> Sequence | None:
        """The sequence paused the longest, if its time is over."""
        deadline = self.next_deadline
        if deadline is None or self.clock() < deadline:
            return None
        return next(iter(self.scheduler.residency.paused.values()))

    def _expire(self) -> bool:
        """End the sequences that have been paused for too long; whether there were any."""
        found = False
        while (seq := self._expired()) is not None:
            self.book.expire(seq)
            found = True
        return found

    def _drain(self) -> None:
        """Read all that is in flight."""
        while self._in_flight:
            self._collect()

    def _finish_moves(self) -> None:
        """Wait for the moves of blocks that are under way."""
        self.scheduler.residency.finished(self.runner.finish_moves(), self.scheduler.step)

    def flush(self) -> None:
        """Hand what was recorded to the journal, as one frame.

        Not while a step is read: its record is complete only afterwards, and a callback may abort or be refused.
        """
        if self._reading:
            return
        self.recorder.flush(self.scheduler.step)
        if self._hits:
            self._act_on_hits()
            self.recorder.flush(self.scheduler.step)

    def watch(self, predicate: str, action: str) -> int:
        """Set a breakpoint; its number.

        Raises:
            InvalidRequest: the predicate or the action can't be understood, or nothing is recorded.
        """
        if not self.recorder.on:
            raise InvalidRequest("predicate", "breakpoints look at recorded events: this engine has recording=False")
        number = self.breakpoints.add(predicate, action)
        if len(self.breakpoints.listed) == 1:
            self.flush()  # what has happened before does not count
            self.recorder.subscribe(self._check)
        return number

    def unwatch(self, number: int) -> bool:
        """Remove a breakpoint; False when there is none of this number."""
        found = self.breakpoints.remove(number)
        if not self.breakpoints:
            self.recorder.unsubscribe(self._check)
        return found

    def _check(self, events: Items[AnyEvent]) -> None:
        self._hits += self.breakpoints.check(events)

    def _act_on_hits(self) -> None:
        """Record what met a breakpoint since the last flush, and pause the engine or the sequence."""
        hits, self._hits = self._hits, []
        for hit in hits:
            self.recorder.record(
                BreakpointHit(
                    self.clock(), self.scheduler.step, hit.number, hit.predicate, hit.event, hit.seq, hit.action
                )
            )
        for hit in hits:
            if hit.action == "engine":
                self.scheduler.pause_engine(f"breakpoint {hit.number}")
                continue
            self._drain()
            seq = self.book.live_sequence(hit.seq)
            if seq is not None and seq.status in (SequenceStatus.RUNNING, SequenceStatus.WAITING):
                self.book.pause(seq, "breakpoint")

    def audit(self) -> None:
        """Check every invariant of sequences, queues and blocks.

        Raises:
            AuditError: the first violation.
        """
        live = self.book.live_sequences
        self.blocks.audit(live)
        paused = list(self.scheduler.residency.paused.values())
        for queue, status in ((self.scheduler.waiting, SequenceStatus.WAITING), (paused, SequenceStatus.PAUSED),
                              (self.scheduler.running, SequenceStatus.RUNNING)):  # fmt: skip
            ids = sorted(seq.seq_id for seq in live if seq.status is status)
            if ids != sorted(seq.seq_id for seq in queue):
                raise AuditError(f"{status.value} queue holds {[s.seq_id for s in queue]}, live sequences are {ids}")
        for seq in live:
            if seq.status is SequenceStatus.RUNNING and not (
                seq.is_resident
                and seq.num_computed_tokens <= len(seq.block_table) * self.config.block_size
                and 0 <= seq.num_computed_tokens <= seq.num_tokens
            ):
                raise AuditError(
                    f"sequence {seq.seq_id}: {seq.num_computed_tokens} computed of {seq.num_tokens} tokens "
                    f"in {len(seq.block_table)} blocks"
                )

    def close(self, reason: str = "closed") -> None:
        """Abort what is left, write the last event and give back the device. A second call does nothing."""
        with HeldInterrupts():
            if self._closed:
                return
            self._closed = "the engine is closed"
            try:
                for request_id in list(self.requests):
                    self.abort(request_id)
                self._drain()
            finally:  # a callback may have raised more than an Exception
                self._end(reason)

    def die(self, message: str) -> None:
        """End every open request in ERROR with this message, and the engine with it."""
        with HeldInterrupts():
            if self._closed:
                return
            self._closed = message
            self._in_flight.clear()
            self._hits.clear()
            logger.error("the engine stops: %s", message)
            self.recorder.record(EngineError(self.clock(), self.scheduler.step, message))
            try:
                for request in list(self.requests.values()):
                    self.book.fail(request, message)
            finally:
                self._end("error")

    def _end(self, reason: str) -> None:
        """Write the last event and give back the device, whatever state that is in."""
        self._reading = False
        self.recorder.record(EngineStopped(self.clock(), reason))
        self.recorder.flush(self.scheduler.step)
        self.recorder.close()
        with contextlib.suppress(Exception) if reason == "error" else contextlib.nullcontext():
            self.runner.close()

    def keyframe(self) -> Keyframe:
        """The whole state now."""
        return make_keyframe(self)

    def _new_sequence(self, request: Request, seq_id: int, seed: int, now: int) -> Sequence:
        params = request.params
        leader = request.sequences[0] if request.sequences and self.config.prefix_cache else None
        seq = Sequence(
            seq_id, request.request_id, request.prompt_token_ids, params, seed, now, self.recorder.record,
            self.clock, self.max_model_len, leader,
        )  # fmt: skip
        seq.stop_token_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            seq.stop_token_ids |= self.eos_token_ids
        seq.bad_words_ids = request.bad_words_ids
        return seq

    def _launch(self, plan: StepPlan) -> None:
        began = self.clock()
        try:
            try:
                handle = self.runner.launch(plan)
            except OutOfDeviceMemory as error:
                handle = self._launch_halves(plan, error)
        except BaseException as error:
            self.scheduler.released[:0] = plan.released  # the runner may not have come to forget them
            self._fail(plan, error)
            return
        self._in_flight.append(InFlight(plan, handle, self.clock() - began))

    def _launch_halves(self, plan: StepPlan, error: OutOfDeviceMemory) -> list[InFlight]:
        """Launch a step that did not fit into memory in two parts, once. A part that fails takes its requests along.

        Raises:
            OutOfDeviceMemory: it can't be divided.
        """
        parts = halves(plan)
        if not parts:
            raise error
        logger.warning("step %d: %s; it is launched again in %d parts", plan.step, error, len(parts))
        self.recorder.record(StepRetried(self.clock(), plan.step, describe(error), len(parts)))
        launched = []
        for half in parts:
            part = without_void(half)
            if not part.sequences:
                continue
            try:
                launched.append(InFlight(part, self.runner.launch(part), 0))
            except Exception as again:
                self._fail(part, again)
        return launched

    def _read(self, flight: InFlight) -> StepResult:
        """What a launched step gave, in parts or not."""
        if not isinstance(flight.handle, list):
            return self.runner.collect(flight.handle)
        return join_results(flight.plan, [(part.plan, self.runner.collect(part.handle)) for part in flight.handle])

    def _collect(self) -> None:
        flight = self._in_flight.popleft()
        plan, launch_ns = flight.plan, flight.launch_ns
        began = self.clock()
        try:
            result = self._read(flight)
        except BaseException as error:
            self._fail(plan, error)
            return
        if result.moved:
            self.scheduler.residency.finished(result.moved, plan.step)
        read = self.clock()
        # Recorded before what follows from its tokens, completed after it: a record is encoded at flush only.
        event = StepFinished(
            read, plan.step, plan.plan_ns, launch_ns, result.device_ns, 0, plan.num_tokens, len(result.tokens), [],
            result.graph, result.padding, result.wait_ns,
        )  # fmt: skip
        self.recorder.record(event)
        if self.config.journal_content:
            sampled = [seq.seq_id for seq, samples in zip(plan.sequences, plan.samples, strict=True) if samples]
            self.recorder.record(TokensSampled(plan.step, sampled, list(result.tokens)))
        if plan.kind != "decode" and plan.sequences:
            compute_ns = result.device_ns or launch_ns + read - began
            self.scheduler.residency.measure_prefill(compute_ns / plan.num_tokens)
        self._reading = True
        try:
            event.wasted = self.book.take_tokens(plan, result, read)
            event.collect_ns = self.clock() - began
        except BaseException as error:  # not a callback's Exception: the rest of the step's tokens are lost
            self._fail(plan, error)
            raise
        finally:
            self._reading = False

    def _fail(self, plan: StepPlan, error: BaseException) -> None:
        """End the requests of a step that was not done. An interrupt passes on from here; a runner's fault stays.

        Where the device no longer computes, the engine ends with them.
        """
        message = f"step {plan.step} failed: {describe(error)}"
        logger.error("%s", message, exc_info=error)
        self.recorder.record(EngineError(self.clock(), plan.step, message))
        self.book.fail_batch(plan, message)
        if plan.moves:
            self._finish_moves()
            lost = [MoveResult(move.move, 0, 0, message) for move in plan.moves]
            self.scheduler.residency.finished(lost, plan.step)  # those that were never launched
        if not isinstance(error, Exception):
            raise error
        if not self.runner.is_sound():
            self.die(f"{message}; the device no longer computes")
