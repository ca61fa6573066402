"""The engine's core: plan, launch, collect, and what follows from the tokens.

A pure function of arrivals, clock and tokens: it knows token ids, not text models or devices. One thread owns it.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import AuditError, InvalidRequest
from ..telemetry.clock import Clock, monotonic_ns
from ..telemetry.events import (
    CallbackFailed,
    EngineError,
    EngineStarted,
    EngineStopped,
    Keyframe,
    RequestArrived,
    RequestFinished,
    StepFinished,
    TokensSampled,
)  # fmt: skip
from ..telemetry.recorder import NullRecorder, Recorder
from .block_manager import BlockManager
from .config import EngineConfig
from .outputs import Delta
from .plan import Runner, StepPlan, StepResult, TokenLogprobs
from .request import Request, finish_reason_of
from .scheduler import Scheduler
from .sequence import Sequence, SequenceStatus
from .snapshot import make_keyframe

T = TypeVar("T")

logger = logging.getLogger("nanolens.engine")


class EngineCore:
    """Sequences, queues, blocks and the step loop over one runner.

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
        self.wall_offset_ns = started.wall_offset_ns
        self.eos_token_ids = eos_token_ids
        self.blocks = BlockManager(
            runner.num_blocks, config.block_size, recorder.record, clock, secret, config.prefix_cache
        )
        self.scheduler = Scheduler(config, self.blocks, recorder.record, clock)
        self.requests: dict[str, Request] = {}
        self._owner: dict[int, tuple[Request, int]] = {}  # live sequence id -> its request, its index there
        self._in_flight: deque[tuple[StepPlan, Any, int]] = deque()
        self._depth = 1 if overlap else 0  # steps launched and not read, at most, when step() returns
        self._next_seq = 0
        self._random = random.Random(config.seed)
        recorder.make_keyframe = self.keyframe
        recorder.record(started)
        self.flush()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.requests or self._in_flight)

    def add(self, request: Request) -> None:
        """Take in a validated request: its sequences start WAITING.

        Raises:
            InvalidRequest: a live request has this id; nothing has changed.
        """
        if request.request_id in self.requests:
            raise InvalidRequest("request_id", f"request_id={request.request_id!r}: a live request has this id")
        params, now = request.params, self.clock()
        seed = params.seed if params.seed is not None else self._random.getrandbits(63)
        first = self._next_seq
        self._next_seq += params.n
        for i in range(params.n):
            request.sequences.append(self._new_sequence(request, first + i, (seed + i) % (1 << 63), now))
        request.open_streams()
        self.requests[request.request_id] = request
        record = params.as_record()
        record["seed"] = seed
        self.recorder.record(
            RequestArrived(
                now, request.request_id, [seq.seq_id for seq in request.sequences], len(request.prompt_token_ids),
                request.sequences[0].max_tokens, params.priority, record, request.traceparent,
                request.prompt_token_ids if self.config.journal_content else None,
            )
        )  # fmt: skip
        for index, seq in enumerate(request.sequences):
            self._owner[seq.seq_id] = (request, index)
            self.scheduler.add(seq)

    def abort(self, request_id: str) -> bool:
        """End a live request; False (and nothing else) when there is none of this id."""
        request = self.requests.get(request_id)
        if request is None:
            return False
        for seq in request.sequences:
            if seq.is_live:
                self._end(seq, SequenceStatus.FINISHED, "aborted")
        self._settle(request)
        self.flush()
        return True

    def step(self) -> bool:
        """Plan and launch the next step and read the one that is due; False when there was nothing to do."""
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
        """Hand what was recorded to the journal, as one frame."""
        self.recorder.flush(self.scheduler.step)

    def audit(self) -> None:
        """Check every invariant of sequences, queues and blocks.

        Raises:
            AuditError: the first violation.
        """
        live = [seq for request in self.requests.values() for seq in request.sequences if seq.is_live]
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
        """Abort what is left, write the last event and give back the device."""
        for request_id in list(self.requests):
            self.abort(request_id)
        while self._in_flight:
            _, handle, _ = self._in_flight.popleft()
            self.runner.collect(handle)
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
        except Exception as error:
            self._fail_batch(plan, error)
            return
        self._in_flight.append((plan, handle, self.clock() - began))

    def _collect(self) -> None:
        plan, handle, launch_ns = self._in_flight.popleft()
        began = self.clock()
        try:
            result = self.runner.collect(handle)
        except Exception as error:
            self._fail_batch(plan, error)
            return
        read = self.clock()
        # Recorded before what follows from its tokens, completed after it: a record is encoded at flush only.
        event = StepFinished(
            read, plan.step, plan.plan_ns, launch_ns, result.device_ns, 0, plan.num_tokens, len(result.tokens), [],
            result.graph, result.padding,
        )  # fmt: skip
        self.recorder.record(event)
        if self.config.journal_content:
            sampled = [seq.seq_id for seq, samples in zip(plan.sequences, plan.samples, strict=True) if samples]
            self.recorder.record(TokensSampled(plan.step, sampled, list(result.tokens)))
        event.wasted = self._take_tokens(plan, result, read)
        event.collect_ns = self.clock() - began

    def _take_tokens(self, plan: StepPlan, result: StepResult, now: int) -> list[int]:
        """Give each sequence its token and end those that are done; the ids whose token came too late."""
        wasted: list[int] = []
        tokens, size = iter(result.tokens), self.config.block_size
        for seq, start, count, samples, epoch in zip(
            plan.sequences, plan.starts, plan.counts, plan.samples, plan.epochs, strict=True
        ):
            token = next(tokens) if samples else -1
            if seq.epoch != epoch:
                if samples:
                    wasted.append(seq.seq_id)
                continue
            if seq.seq_id in result.failed:
                self.fail(self._owner[seq.seq_id][0], f"sequence {seq.seq_id}: {result.failed[seq.seq_id]}")
                continue
            if samples:
                seq.num_pending -= 1
                seq.token_ids.append(token)
                seq.first_token_t = seq.first_token_t or now
                seq.last_token_t = now
            if (start + count) // size > seq.num_registered_blocks:
                self.blocks.register(seq, start + count, plan.step)
            if seq.seq_id in result.prompt_logprobs:
                self._owner[seq.seq_id][0].take_prompt_logprobs(start, result.prompt_logprobs[seq.seq_id])
            if samples:
                self._deliver(seq, token, result.logprobs.get(seq.seq_id))
        return wasted

    def _deliver(self, seq: Sequence, token: int, logprobs: TokenLogprobs | None) -> None:
        """Pass a token on, and end its sequence if this was the last one."""
        request, index = self._owner[seq.seq_id]
        reason, stop_reason = self._why_end(seq, token)
        text = ""
        if request.streams and (reason != "stop" or request.params.include_stop_str_in_output):
            text, stop_string = request.push(index, token)
            if stop_string is not None:
                reason, stop_reason = "stop", stop_string
        if logprobs is not None:
            request.logprobs[index].append(logprobs)
        if reason:
            rest, stop_string = request.close_stream(index)
            if stop_string is not None:
                reason, stop_reason = "stop", stop_string
            text += rest
            seq.stop_reason = stop_reason
            self._end(seq, SequenceStatus.FINISHED, reason)
        if request.on_output is not None:
            entries = None if logprobs is None else [logprobs]
            delta = Delta(index, text, [token], seq.finish_reason, seq.stop_reason, entries)
            self._call(request, request.on_output, delta)
        if reason:
            self._settle(request)

    def _why_end(self, seq: Sequence, token: int) -> tuple[str, int | str | None]:
        """Whether the sequence ends with this token: its reason ("" if not), and the stop token if it was one."""
        num_output = len(seq.token_ids) - seq.num_prompt_tokens
        if token in seq.stop_token_ids and num_output >= seq.params.min_tokens:
            return "stop", None if token in self.eos_token_ids and not seq.params.ignore_eos else token
        if num_output >= seq.max_tokens or len(seq.token_ids) >= seq.max_total_tokens:
            return "length", None
        return "", None

    def _end(self, seq: Sequence, to: SequenceStatus, reason: str) -> None:
        self.scheduler.remove(seq, to, reason)
        seq.finished_t = seq.status_t
        seq.finish_reason = finish_reason_of(seq)

    def fail(self, request: Request, message: str) -> None:
        """End a whole request in ERROR; its blocks go back and its caller is told."""
        request.error = message
        for index, seq in enumerate(request.sequences):
            if not seq.is_live:
                continue
            text, _ = request.close_stream(index)
            self._end(seq, SequenceStatus.ERROR, "error")
            if request.on_output is not None:
                self._call(request, request.on_output, Delta(index, text, [], "error"))
        self._settle(request)

    def _fail_batch(self, plan: StepPlan, error: Exception) -> None:
        """A step that the runner could not do: its requests end in ERROR, the others go on."""
        message = f"step {plan.step} failed: {type(error).__name__}: {error}"
        logger.error("%s", message, exc_info=error)
        self.recorder.record(EngineError(self.clock(), plan.step, message))
        for seq, epoch in zip(plan.sequences, plan.epochs, strict=True):
            if seq.epoch == epoch:
                self.fail(self._owner[seq.seq_id][0], message)

    def _settle(self, request: Request) -> None:
        """Let go of a request whose sequences have all ended, and tell its caller."""
        if not request.finished or self.requests.pop(request.request_id, None) is None:
            return
        reasons = {seq.finish_reason or "" for seq in request.sequences}
        reason = next(r for r in ("error", "abort", "length", "stop") if r in reasons)
        num_output = sum(len(seq.token_ids) - seq.num_prompt_tokens for seq in request.sequences)
        self.recorder.record(
            RequestFinished(
                self.clock(), request.request_id, reason, len(request.prompt_token_ids), num_output,
                request.sequences[0].num_cached_tokens or 0, request.error,
            )
        )  # fmt: skip
        for seq in request.sequences:
            del self._owner[seq.seq_id]
        if request.on_finish is not None:
            self._call(request, request.on_finish, request.output(self.wall_offset_ns))

    def _call(self, request: Request, callback: Callable[[T], None], value: T) -> None:
        """Call a user's callback; its failure is recorded and touches nothing else."""
        try:
            callback(value)
        except Exception as error:
            logger.exception("a callback of request %s failed", request.request_id)
            message = f"{type(error).__name__}: {error}"
            self.recorder.record(CallbackFailed(self.clock(), request.request_id, message))
