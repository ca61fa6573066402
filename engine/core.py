"""The engine's core: plan, launch, collect, and what follows from the tokens.

A pure function of arrivals, clock and tokens: it knows token ids, not text models or devices. One thread owns it.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from typing import Any

from ..errors import AuditError, EngineDead, InvalidRequest
from ..telemetry.clock import Clock, monotonic_ns
from ..telemetry.events import (
    EngineError,
    EngineStarted,
    EngineStopped,
    Keyframe,
    RequestArrived,
    StepFinished,
    TokensSampled,
)
from ..telemetry.recorder import NullRecorder, Recorder
from .block_manager import BlockManager
from .config import EngineConfig
from .interrupts import HeldInterrupts
from .plan import Runner, StepPlan
from .request import Request
from .request_book import RequestBook, describe
from .scheduler import Scheduler
from .sequence import Sequence, SequenceStatus
from .snapshot import make_keyframe

logger = logging.getLogger("nanolens.engine")


class EngineCore:
    """Sequences, queues, blocks and the step loop over one runner.

    `add`, `abort`, `step` and `close` are whole to a Ctrl-C in the main thread: it comes out of them at their end.

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
            runner.num_blocks, config.block_size, recorder.record, clock, secret, config.prefix_cache
        )
        self.scheduler = Scheduler(config, self.blocks, recorder.record, clock)
        self.book = RequestBook(
            self.scheduler, self.blocks, recorder, clock, eos_token_ids, started.wall_offset_ns
        )
        self._in_flight: deque[tuple[StepPlan, Any, int]] = deque()
        self._depth = 1 if overlap else 0  # steps launched and not read, at most, when step() returns
        self._reading = False  # a step's tokens are being dealt with
        self._closed = False
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
        """Whether a step would do anything."""
        return bool(self.requests or self._in_flight)

    def require_open(self) -> None:
        """Check that the engine can still be used.

        Raises:
            EngineDead: it was closed.
        """
        if self._closed:
            raise EngineDead("the engine is closed")

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

    def step(self) -> bool:
        """Plan and launch the next step and read the one that is due; False when there was nothing to do.

        Raises:
            EngineDead: the engine was closed.
        """
        self.require_open()
        with HeldInterrupts():
            return self._step()

    def _step(self) -> bool:
        plan = self.scheduler.plan()
        if plan is not None:
            self._launch(plan)
        if self._in_flight and (plan is None or len(self._in_flight) > self._depth):
            self._collect()
        elif plan is None:
            self.flush()
            return False
        if self.config.audit:
            self.audit()
        self.flush()
        return True

    def flush(self) -> None:
        """Hand what was recorded to the journal, as one frame.

        Not while a step is read: its record is complete only afterwards, and a callback may abort or be refused.
        """
        if not self._reading:
            self.recorder.flush(self.scheduler.step)

    def audit(self) -> None:
        """Check every invariant of sequences, queues and blocks.

        Raises:
            AuditError: the first violation.
        """
        live = self.book.live_sequences
        self.blocks.audit(live)
        for queue, status in ((self.scheduler.waiting, SequenceStatus.WAITING),
                              (self.scheduler.running, SequenceStatus.RUNNING)):  # fmt: skip
            ids = sorted(seq.seq_id for seq in live if seq.status is status)
            if ids != sorted(seq.seq_id for seq in queue):
                raise AuditError(f"{status.value} queue holds {[s.seq_id for s in queue]}, live sequences are {ids}")
        for seq in live:
            if seq.status is SequenceStatus.RUNNING and not (
                seq.num_computed_tokens <= len(seq.block_table) * self.config.block_size
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
            self._closed = True
            try:
                for request_id in list(self.requests):
                    self.abort(request_id)
                while self._in_flight:
                    self._collect()
            finally:  # a callback may have raised more than an Exception
                self.recorder.record(EngineStopped(self.clock(), reason))
                self.flush()
                self.recorder.close()
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
            handle = self.runner.launch(plan)
        except BaseException as error:
            self.scheduler.released[:0] = plan.released  # the runner may not have come to forget them
            self._fail(plan, error)
            return
        self._in_flight.append((plan, handle, self.clock() - began))

    def _collect(self) -> None:
        plan, handle, launch_ns = self._in_flight.popleft()
        began = self.clock()
        try:
            result = self.runner.collect(handle)
        except BaseException as error:
            self._fail(plan, error)
            return
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
        """End the requests of a step that was not done. An interrupt passes on from here; a runner's fault stays."""
        message = f"step {plan.step} failed: {describe(error)}"
        logger.error("%s", message, exc_info=error)
        self.recorder.record(EngineError(self.clock(), plan.step, message))
        self.book.fail_batch(plan, message)
        if not isinstance(error, Exception):
            raise error
