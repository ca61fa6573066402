"""Live requests: tokens in, outputs out, and how a request ends. Knows neither runner nor step loop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from ..telemetry.clock import Clock
from ..telemetry.events import CallbackFailed, RequestFinished, SequenceResumed
from ..telemetry.recorder import NullRecorder, Recorder
from . import faults
from .block_manager import BlockManager
from .outputs import Delta
from .plan import StepPlan, StepResult, TokenLogprobs
from .request import Request, describe, finish_reason_of
from .scheduler import Scheduler
from .sequence import Sequence, SequenceStatus

T = TypeVar("T")

logger = logging.getLogger("nanolens.engine")


class RequestBook:
    """The requests that have not ended, by id, and what each token means for them.

    Args:
        scheduler: lets go of a sequence that ends.
        blocks: is told which blocks have been computed.
        recorder: takes each event.
        clock: gives the time of an event.
        eos_token_ids: the model's ends; such an end has no stop reason of its own.
        wall_offset_ns: for the times in outputs.

    Attributes:
        requests: live requests by id.
        num_callbacks: callbacks that are under way, one in another.
        finish_moves: waits for the moves of blocks that are under way; the core sets it.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        blocks: BlockManager,
        recorder: Recorder | NullRecorder,
        clock: Clock,
        eos_token_ids: frozenset[int],
        wall_offset_ns: int,
    ) -> None:
        self.requests: dict[str, Request] = {}
        self.num_callbacks = 0
        self.finish_moves: Callable[[], None] = lambda: None
        self._owner: dict[int, tuple[Request, int]] = {}  # live sequence id -> its request, its index there
        self._scheduler = scheduler
        self._blocks = blocks
        self._record = recorder.record
        self._clock = clock
        self._eos_token_ids = eos_token_ids
        self._wall_offset_ns = wall_offset_ns

    @property
    def live_sequences(self) -> list[Sequence]:
        """Every sequence that has not ended, in the order of arrival of their requests."""
        return [seq for request in self.requests.values() for seq in request.sequences if seq.is_live]

    def add(self, request: Request) -> None:
        """Take in a request with its sequences made."""
        self.requests[request.request_id] = request
        for index, seq in enumerate(request.sequences):
            self._owner[seq.seq_id] = (request, index)

    def abort(self, request_id: str) -> bool:
        """End a live request; False (and nothing else) when there is none of this id."""
        request = self.requests.get(request_id)
        if request is None:
            return False
        self._end_all(request, SequenceStatus.FINISHED, "aborted")
        return True

    def live_sequence(self, seq_id: int) -> Sequence | None:
        """The live sequence of this id, if there is one."""
        owner = self._owner.get(seq_id)
        if owner is None:
            return None
        seq = owner[0].sequences[owner[1]]
        return seq if seq.is_live else None

    # Pauses

    def pause(self, seq: Sequence, reason: str) -> None:
        """Pause a sequence that runs or waits, and tell its caller."""
        request, index = self._owner[seq.seq_id]
        self._pause(request, seq, reason)
        if seq.is_live:
            self._tell_pause(request, seq, Delta(index, "", [], pause_reason=seq.reason))

    def resume(self, seq: Sequence, token_ids: list[int], max_tokens: int, keep_content: bool) -> None:
        """Let a paused sequence go on: after these tokens, up to so many generated ones in all."""
        request, index = self._owner[seq.seq_id]
        hashes = b""
        if token_ids:
            first = (len(seq.token_ids) - 1) // self._blocks.block_size
            seq.append(token_ids)
            hashes = self._blocks.prefixes.hashes_of(seq, first)
        seq.max_tokens = max_tokens
        seq.stop_reason = None
        self._record(
            SequenceResumed(
                self._clock(), self._scheduler.step, seq.seq_id, len(token_ids), max_tokens,
                list(token_ids) if keep_content else None, hashes,
            )
        )  # fmt: skip
        try:
            text = request.go_on(index, bool(token_ids))
        except Exception as error:
            self.fail(request, f"sequence {seq.seq_id}: decoding its text failed: {describe(error)}", seq)
            return
        self._scheduler.resume(seq)
        if text and request.on_output is not None:
            self._call(request, request.on_output, Delta(index, text, []))

    def deliver(self, seq: Sequence) -> None:
        """End a paused sequence in order; it ends with what it was paused by, where that was its length."""
        self._end_paused(seq, "delivered", "length" if seq.reason == "length" else "stop")

    def expire(self, seq: Sequence) -> None:
        """End a sequence that has been paused for too long."""
        self._end_paused(seq, "expired", "abort")

    def _end_paused(self, seq: Sequence, reason: str, finish_reason: str) -> None:
        request, index = self._owner[seq.seq_id]
        text = request.held_back(index)
        self._end(seq, SequenceStatus.FINISHED, reason)
        seq.finish_reason = finish_reason
        if request.on_output is not None:
            self._call(request, request.on_output, Delta(index, text, [], finish_reason, seq.stop_reason))
        self._settle(request)

    def _pause(self, request: Request, seq: Sequence, reason: str) -> None:
        self._scheduler.pause(seq, reason)
        try:
            request.keep_text()
        except Exception as error:
            self.fail(request, f"sequence {seq.seq_id}: decoding its text failed: {describe(error)}", seq)

    def _tell_pause(self, request: Request, seq: Sequence, delta: Delta) -> None:
        if request.on_output is not None:
            self._call(request, request.on_output, delta)
        if seq.status is SequenceStatus.PAUSED:
            self._tell_rest(request)

    def _tell_rest(self, request: Request) -> None:
        if request.on_pause is not None and request.at_rest:
            self._call(request, request.on_pause, request.final_output(self._wall_offset_ns))

    # Tokens

    def take_tokens(self, plan: StepPlan, result: StepResult, now: int) -> list[int]:
        """Give each sequence its token and end those that are done; the ids whose token came too late."""
        wasted: list[int] = []
        tokens, size = iter(result.tokens), self._blocks.block_size
        for seq, start, count, samples, epoch in zip(
            plan.sequences, plan.starts, plan.counts, plan.samples, plan.epochs, strict=True
        ):
            token = next(tokens) if samples else -1
            if seq.seq_id in result.prompt_logprobs and seq.is_live:  # also of one that has paused meanwhile
                self._owner[seq.seq_id][0].take_prompt_logprobs(start, result.prompt_logprobs[seq.seq_id])
            if seq.epoch != epoch:
                if samples:
                    wasted.append(seq.seq_id)
                continue
            if seq.seq_id in result.failed:
                if samples:
                    wasted.append(seq.seq_id)
                message = f"sequence {seq.seq_id}: {result.failed[seq.seq_id]}"
                self.fail(self._owner[seq.seq_id][0], message, seq)
                continue
            if samples:
                seq.num_pending -= 1
                seq.token_ids.append(token)
                seq.first_token_t = seq.first_token_t or now
                seq.last_token_t = now
            if (start + count) // size > seq.num_registered_blocks:
                self._blocks.register(seq, start + count, plan.step)
            if samples:
                self._deliver(seq, token, result.logprobs.get(seq.seq_id))
        return wasted

    def _deliver(self, seq: Sequence, token: int, logprobs: TokenLogprobs | None) -> None:
        """Pass a token on, and end or pause its sequence if this was the last one."""
        request, index = self._owner[seq.seq_id]
        reason, stop_reason = self._why_end(seq, token)
        text = ""
        if request.streams:
            try:
                faults.reach("decode_text")
                text, reason, stop_reason = self._read_text(request, index, token, reason, stop_reason)
            except Exception as error:  # a tokenizer that fails takes one request along, not the step
                self.fail(request, f"sequence {seq.seq_id}: decoding its text failed: {describe(error)}", seq)
                return
        if logprobs is not None:
            request.logprobs[index].append(logprobs)
        pauses = ""
        if reason and request.params.on_stop == "pause":
            pauses = reason
        elif not reason and request.params.pause_after_prefill and seq.num_read_output_tokens == 1:
            pauses = "prefill_complete"
        if reason:
            seq.stop_reason = stop_reason
        entries = None if logprobs is None else [logprobs]
        if pauses:
            self._pause(request, seq, pauses)
            if seq.is_live:
                delta = Delta(index, text, [token], None, seq.stop_reason, entries, pauses)
                self._tell_pause(request, seq, delta)
            return
        if reason:
            self._end(seq, SequenceStatus.FINISHED, reason)
        if request.on_output is not None:
            delta = Delta(index, text, [token], seq.finish_reason, seq.stop_reason, entries)
            self._call(request, request.on_output, delta)
        if reason:
            self._settle(request)
            self._tell_rest(request)  # its siblings may all be paused already

    @staticmethod
    def _read_text(
        request: Request, index: int, token: int, reason: str, stop_reason: int | str | None
    ) -> tuple[str, str, int | str | None]:
        """The text of a token that may be the last one for `reason`; with the reasons, should a stop string end it."""
        text = ""
        if reason != "stop" or request.params.include_stop_str_in_output:
            text, stop_string = request.push(index, token)
            if stop_string is not None:
                reason, stop_reason = "stop", stop_string
        if reason == "stop" or (reason and request.params.on_stop != "pause"):
            rest, stop_string = request.close_stream(index)
            if stop_string is not None:
                reason, stop_reason = "stop", stop_string
            text += rest
        return text, reason, stop_reason

    def _why_end(self, seq: Sequence, token: int) -> tuple[str, int | str | None]:
        """Whether the sequence ends with this token: its reason ("" if not), and the stop token if it was one."""
        num_output = len(seq.token_ids) - seq.num_prompt_tokens - seq.num_appended_tokens
        if token in seq.stop_token_ids and num_output >= seq.params.min_tokens:
            return "stop", None if token in self._eos_token_ids and not seq.params.ignore_eos else token
        if num_output >= seq.max_tokens or len(seq.token_ids) >= seq.max_total_tokens:
            return "length", None
        return "", None

    def _end(self, seq: Sequence, to: SequenceStatus, reason: str, cause: Sequence | None = None) -> None:
        if seq.move_in:
            self.finish_moves()  # its blocks can't go to others while data is on its way into them
        self._scheduler.remove(seq, to, reason, cause)
        seq.finished_t = seq.status_t
        seq.finish_reason = finish_reason_of(seq)

    def fail(self, request: Request, message: str, cause: Sequence | None = None) -> None:
        """End a whole request in ERROR; its blocks go back and its caller is told. `cause`: which of its sequences."""
        request.error = message
        self._end_all(request, SequenceStatus.ERROR, "error", cause)

    def _end_all(self, request: Request, to: SequenceStatus, reason: str, cause: Sequence | None = None) -> None:
        """End the sequences of a request that are left; the text that was held back goes out with the reason."""
        for index, seq in enumerate(request.sequences):
            if not seq.is_live:
                continue
            text = request.held_back(index)
            self._end(seq, to, reason, cause)
            if request.on_output is not None:
                self._call(request, request.on_output, Delta(index, text, [], seq.finish_reason))
        self._settle(request)

    def fail_batch(self, plan: StepPlan, message: str) -> None:
        """End in ERROR the requests of a step that the runner could not do; the others go on."""
        for seq, epoch in zip(plan.sequences, plan.epochs, strict=True):
            if seq.epoch == epoch:
                self.fail(self._owner[seq.seq_id][0], message, seq)

    def _settle(self, request: Request) -> None:
        """Let go of a request whose sequences have all ended, and tell its caller."""
        if not request.finished or self.requests.pop(request.request_id, None) is None:
            return
        reasons = {seq.finish_reason or "" for seq in request.sequences}
        reason = next(r for r in ("error", "abort", "length", "stop") if r in reasons)
        num_output = sum(seq.num_read_output_tokens for seq in request.sequences)
        self._record(
            RequestFinished(
                self._clock(), request.request_id, reason, len(request.prompt_token_ids), num_output,
                request.sequences[0].num_cached_tokens or 0, request.error,
            )
        )  # fmt: skip
        for seq in request.sequences:
            del self._owner[seq.seq_id]
        if request.on_finish is not None:
            self._call(request, request.on_finish, request.final_output(self._wall_offset_ns))

    def _call(self, request: Request, callback: Callable[[T], None], value: T) -> None:
        """Call a user's callback; its failure is recorded and touches nothing else."""
        self.num_callbacks += 1
        try:
            callback(value)
        except Exception as error:
            logger.exception("a callback of request %s failed", request.request_id)
            self._record(CallbackFailed(self._clock(), request.request_id, describe(error)))
        finally:
            self.num_callbacks -= 1
