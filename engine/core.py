"""The engine's core: the step loop and the commands that reach it. Knows token ids, not text; one thread owns it."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Items

from ..errors import InvalidRequest, shown
from ..telemetry.events import (
    RequestArrived,
)
from .interrupts import HeldInterrupts
from .request import Request
from .self_audit import audit_engine
from .sequence import Sequence, SequenceStatus
from .step_loop import StepLoop

logger = logging.getLogger("nanolens.engine")


class EngineCore(StepLoop):
    """The step loop and the commands that reach it. `__init__` is StepLoop's.

    Every public method is whole to a Ctrl-C in the main thread: it comes out of them at their end.
    """

    def look(self) -> None:
        """Make sure that a step could be computed, where none is in flight; costs little.

        Raises:
            EngineDead: the engine was closed, or ends now, for its runner has failed meanwhile.
        """
        self.require_open()
        if self._in_flight or self.book.num_callbacks:
            return
        with HeldInterrupts():
            fault = self.runner.look()
            if fault:
                self.die(fault)
        self.require_open()

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
            raise InvalidRequest("request_id", f"request_id={shown(request.request_id)}: a live request has this id")
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
        hashes = self._hash_prompt(request.sequences) if self.recorder.on else b""
        self.recorder.record(
            RequestArrived(
                now, request.request_id, [seq.seq_id for seq in request.sequences], len(request.prompt_token_ids),
                request.sequences[0].max_tokens, params.priority, record, request.traceparent,
                request.prompt_token_ids if self.config.journal_content else None, hashes, request.route,
            )
        )  # fmt: skip
        for seq in request.sequences:
            self.scheduler.add(seq)

    def _hash_prompt(self, sequences: Items[Sequence]) -> bytes:
        """The hashes of the prompt's full blocks, worked out once for all the sequences that begin with it."""
        hashes = self.blocks.prefixes.hashes_of(sequences[0])
        for seq in sequences[1:]:
            seq.block_hashes = list(sequences[0].block_hashes)
        return hashes

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
            found = False
            for seq in sequences:
                if seq.status in (SequenceStatus.RUNNING, SequenceStatus.WAITING):  # a sibling's callback may end it
                    self.book.pause(seq, reason)
                    found = True
            self.flush()
        return found

    def resume(self, sequences: Items[Sequence], token_ids: list[int], max_tokens: Items[int]) -> None:
        """Let paused sequences go on, after these tokens, up to so many generated tokens in all, one figure each."""
        with HeldInterrupts():
            for seq, limit in zip(sequences, max_tokens, strict=True):
                if seq.status is SequenceStatus.PAUSED:
                    self.book.resume(seq, token_ids, limit, self.config.journal_content)
            self.flush()

    def finish(self, sequences: Items[Sequence]) -> None:
        """End paused sequences in order: what they gave is delivered."""
        with HeldInterrupts():
            for seq in sequences:
                if seq.status is SequenceStatus.PAUSED:
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

    def watch(self, predicate: str, action: str) -> int:
        """Set a breakpoint; its number.

        Raises:
            InvalidRequest: the predicate or the action can't be understood, or nothing is recorded.
        """
        if not self.recorder.on:
            raise InvalidRequest("predicate", "breakpoints look at recorded events: this engine has recording=False")
        self.flush()  # what has happened before does not count
        number = self.breakpoints.add(predicate, action)
        if len(self.breakpoints.listed) == 1:
            self.recorder.subscribe(self._check)
        return number

    def unwatch(self, number: int) -> bool:
        """Remove a breakpoint; False when there is none of this number."""
        found = self.breakpoints.remove(number)
        if not self.breakpoints:
            self.recorder.unsubscribe(self._check)
        return found

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

    def leave(self, reason: str) -> None:
        """Count as closed in a fork of the engine's process: record nothing, and use nothing that both hold."""
        self._closed, self._left = reason, True
        self.recorder.leave()

    def audit(self) -> None:
        """Check every invariant of sequences, queues and blocks.

        Raises:
            AuditError: the first violation.
        """
        audit_engine(self)
