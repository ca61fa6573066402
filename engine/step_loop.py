"""The step loop: plan, launch, collect, and what follows, also where a step fails. Knows no text and no device."""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Sequence as Items

from ..errors import CalledBack, EngineDead, OutOfDeviceMemory
from ..telemetry.clock import Clock, monotonic_ns
from ..telemetry.events import (
    AnyEvent,
    EngineError,
    EngineStarted,
    EngineStopped,
    Keyframe,
    StepFinished,
    StepRanks,
    StepRetried,
    TokensSampled,
)
from ..telemetry.recorder import NullRecorder, Recorder
from .block_manager import BlockManager
from .breakpoint_hits import act_on_hits
from .breakpoints import Breakpoints, Hit
from .config import EngineConfig
from .interrupts import HeldInterrupts
from .plan import Runner, StepPlan, StepResult
from .request import Request, describe
from .request_book import RequestBook
from .scheduler import Scheduler
from .self_audit import audit_engine
from .sequence_queues import InFlight
from .slot_pool import SlotPool
from .snapshot import make_keyframe
from .step_halves import halves, run_parts

logger = logging.getLogger("nanolens.engine")


class StepLoop:
    """Sequences, queues, blocks and the step loop over one runner.

    Args:
        config: the engine's settings.
        runner: computes planned steps.
        recorder: takes every event.
        eos_token_ids: tokens that end a sequence unless it ignores them.
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
        self._depth = 1 if overlap else 0  # steps launched and not read, at most, when step() returns
        self._reading = False  # a step's tokens are being dealt with
        self._closed = ""  # why the engine can't be used any more
        self._left = False  # this is a fork of its process, perhaps made within a callback: the runner is not ours
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
        is_wanted = scheduler.waiting or scheduler.running or scheduler.residency.under_way or self._is_due()
        return bool(self._in_flight) or (not scheduler.paused and bool(is_wanted))

    @property
    def next_deadline(self) -> int | None:
        """When the next paused sequence expires, in clock nanoseconds; None while no time is set."""
        return None if self.scheduler.paused else self.scheduler.residency.next_deadline

    def require_outside(self, what: str) -> None:
        """Check that no callback is under way: what it belongs to is not done yet.

        Raises:
            CalledBack: one is.
        """
        if self.book.num_callbacks:
            raise CalledBack(f"{what}: not from within a callback; return from it first")

    def require_open(self) -> None:
        """Check that the engine can still be used.

        Raises:
            EngineDead: it was closed, or died.
        """
        if self._closed:
            raise EngineDead(self._closed)

    def step(self) -> bool:
        """Plan and launch the next step and read the one that is due; False when there was nothing to do.

        Raises:
            EngineDead: the engine was closed.
            CalledBack: this comes from within a callback.
        """
        self.require_open()
        self.require_outside("step")
        with HeldInterrupts():
            return self._step()

    def _step(self) -> bool:
        expired = self._expire()
        self.require_open()
        plan = self.scheduler.plan()
        if plan is not None:
            self._launch(plan)
        if self._in_flight and (plan is None or len(self._in_flight) > self._depth):
            self._collect()
        elif plan is None and self.scheduler.residency.under_way:
            self._finish_moves()  # nothing can run before one of them has arrived, or nobody is left to
        elif plan is None:
            self.flush()
            return expired
        if self.config.audit and not self._closed:
            audit_engine(self)
        self.flush()
        return True

    def _is_due(self) -> bool:
        """Whether a paused sequence has been paused for too long."""
        deadline = self.next_deadline
        return deadline is not None and self.clock() >= deadline

    def _expire(self) -> bool:
        """End the sequences that have been paused for too long; whether there were any."""
        found = False
        while self._is_due():
            self.book.expire(next(iter(self.scheduler.residency.paused.values())))
            found = True
        return found

    def _drain(self) -> None:
        while self._in_flight and self._in_flight[0].is_launched and not self._left:  # one may be half launched
            self._collect()

    def _finish_moves(self, lost: str = "the runner did not tell how it ended") -> None:
        if not self._left:
            self.scheduler.residency.settle(self.runner.finish_moves, lost, self.scheduler.step)

    def flush(self) -> None:
        """Hand what was recorded to the journal, as one frame.

        Not within a callback, nor while a step is read: a frame holds the whole of what a command or a step did.
        """
        if self._reading or self.book.num_callbacks:
            return
        self.recorder.flush(self.scheduler.step)
        if self._hits:
            hits, self._hits = self._hits, []
            act_on_hits(hits, self.recorder.record, self.clock, self.scheduler, self.book, self._drain)
            self.recorder.flush(self.scheduler.step)

    def _check(self, events: Items[AnyEvent]) -> None:
        self._hits += self.breakpoints.check(events)

    def close(self, reason: str = "closed") -> None:
        """Abort what is left, write the last event and give back the device. A second call does nothing.

        Raises:
            CalledBack: this comes from within a callback.
        """
        self.require_outside("close")
        with HeldInterrupts():
            if self._closed:
                return
            self._closed = "the engine is closed"
            try:
                for request_id in list(self.requests):
                    self.book.abort(request_id)
                    self.flush()
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
        if self._left:
            return
        self._reading = False
        self.recorder.unsubscribe(self._check)  # nothing pauses any more
        self.recorder.record(EngineStopped(self.clock(), reason))
        self.recorder.flush(self.scheduler.step)
        self.recorder.close()
        with contextlib.suppress(Exception) if reason == "error" else contextlib.nullcontext():
            self.runner.close()

    def keyframe(self) -> Keyframe:
        """The whole state now."""
        return make_keyframe(self)

    def _launch(self, plan: StepPlan) -> None:
        began, flight = self.clock(), InFlight(plan)
        self._in_flight.append(flight)
        try:
            try:
                flight.handle = self.runner.launch(plan)
            except OutOfDeviceMemory as error:
                flight.handle = self._run_halves(flight, error)
        except BaseException as error:
            if self._in_flight and self._in_flight[-1] is flight:
                self._in_flight.pop()
            self.scheduler.released[:0] = plan.released  # the runner may not have come to forget them
            self._fail(plan, error)
            return
        flight.launch_ns, flight.is_launched = self.clock() - began, True

    def _run_halves(self, flight: InFlight, error: OutOfDeviceMemory) -> StepResult:
        """Compute a step that did not fit into memory in two parts, once; raise the error where it can't be divided.

        A part that fails takes its requests along. Each is read at once, so that nothing takes memory beside it.
        """
        plan, parts = flight.plan, halves(flight.plan)
        if not parts:
            raise error
        logger.warning("step %d: %s; it is launched again in %d parts", plan.step, error, len(parts))
        self.recorder.record(StepRetried(self.clock(), plan.step, describe(error), len(parts)))
        while self._in_flight and self._in_flight[0] is not flight:
            self._collect()
        self.require_open()
        return run_parts(self.runner, plan, parts, self._fail)

    def _collect(self) -> None:
        flight = self._in_flight.popleft()
        plan, launch_ns, began = flight.plan, flight.launch_ns, self.clock()
        try:
            whole = not isinstance(flight.handle, StepResult)  # the parts of one that did not fit are read
            result = self.runner.collect(flight.handle) if whole else flight.handle
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
        for times in result.ranks:
            self.recorder.record(StepRanks(times.step, times.device_ns, times.collective_ns, times.late_ns))
        if self.config.journal_content:
            sampled = [seq.seq_id for seq, samples in zip(plan.sequences, plan.samples, strict=True) if samples]
            self.recorder.record(TokensSampled(plan.step, sampled, list(result.tokens)))
        if plan.kind != "decode" and plan.sequences:
            compute_ns = result.device_ns or launch_ns + result.wait_ns  # as the event tells them
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
        """End the requests of a step that was not done; the engine too, if its device is lost. Interrupts pass on."""
        if self._left:
            raise error
        message = f"step {plan.step} failed: {describe(error)}"
        logger.error("%s", message, exc_info=None if isinstance(error, EngineDead) else error)
        self.recorder.record(EngineError(self.clock(), plan.step, message))
        self.book.fail_batch(plan, message)
        if self.scheduler.residency.under_way:
            self._finish_moves(message)
        if not isinstance(error, Exception):
            raise error
        if not self.runner.is_sound():
            self.die(f"{message}; the device no longer computes")
