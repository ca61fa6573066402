"""Live requests: tokens in, outputs out, and how a request ends. Knows neither runner nor step loop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from ..telemetry.clock import Clock
from ..telemetry.events import CallbackFailed, RequestFinished
from ..telemetry.recorder import NullRecorder, Recorder
from .block_manager import BlockManager
from .outputs import Delta
from .plan import StepPlan, StepResult, TokenLogprobs
from .request import Request, finish_reason_of
from .scheduler import Scheduler
from .sequence import Sequence, SequenceStatus

T = TypeVar("T")

logger = logging.getLogger("nanolens.engine")


def describe(error: BaseException) -> str:
    """An error's type and message, as text that the journal can hold whatever the message is."""
    try:
        message = str(error)
    except Exception:
        message = "(its message can't be read)"
    return f"{type(error).__name__}: {message}".encode(errors="backslashreplace").decode()


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

    def take_tokens(self, plan: StepPlan, result: StepResult, now: int) -> list[int]:
        """Give each sequence its token and end those that are done; the ids whose token came too late."""
        wasted: list[int] = []
        tokens, size = iter(result.tokens), self._blocks.block_size
        for seq, start, count, samples, epoch in zip(
            plan.sequences, plan.starts, plan.counts, plan.samples, plan.epochs, strict=True
        ):
            token = next(tokens) if samples else -1
            if seq.epoch != epoch:
                if samples:
                    wasted.append(seq.seq_id)
                continue
            if seq.seq_id in result.failed:
                if samples:
                    wasted.append(seq.seq_id)
                self.fail(self._owner[seq.seq_id][0], f"sequence {seq.seq_id}: {result.failed[seq.seq_id]}")
                continue
            if samples:
                seq.num_pending -= 1
                seq.token_ids.append(token)
                seq.first_token_t = seq.first_token_t or now
                seq.last_token_t = now
            if (start + count) // size > seq.num_registered_blocks:
                self._blocks.register(seq, start + count, plan.step)
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
            return "stop", None if token in self._eos_token_ids and not seq.params.ignore_eos else token
        if num_output >= seq.max_tokens or len(seq.token_ids) >= seq.max_total_tokens:
            return "length", None
        return "", None

    def _end(self, seq: Sequence, to: SequenceStatus, reason: str) -> None:
        self._scheduler.remove(seq, to, reason)
        seq.finished_t = seq.status_t
        seq.finish_reason = finish_reason_of(seq)

    def fail(self, request: Request, message: str) -> None:
        """End a whole request in ERROR; its blocks go back and its caller is told."""
        request.error = message
        self._end_all(request, SequenceStatus.ERROR, "error")

    def _end_all(self, request: Request, to: SequenceStatus, reason: str) -> None:
        """End the sequences of a request that are left; the text that was held back goes out with the reason."""
        for index, seq in enumerate(request.sequences):
            if not seq.is_live:
                continue
            text, _ = request.close_stream(index)
            self._end(seq, to, reason)
            if request.on_output is not None:
                self._call(request, request.on_output, Delta(index, text, [], seq.finish_reason))
        self._settle(request)

    def fail_batch(self, plan: StepPlan, message: str) -> None:
        """End in ERROR the requests of a step that the runner could not do; the others go on."""
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
        self._record(
            RequestFinished(
                self._clock(), request.request_id, reason, len(request.prompt_token_ids), num_output,
                request.sequences[0].num_cached_tokens or 0, request.error,
            )
        )  # fmt: skip
        for seq in request.sequences:
            del self._owner[seq.seq_id]
        if request.on_finish is not None:
            self._call(request, request.on_finish, request.output(self._wall_offset_ns))

    def _call(self, request: Request, callback: Callable[[T], None], value: T) -> None:
        """Call a user's callback; its failure is recorded and touches nothing else."""
        try:
            callback(value)
        except Exception as error:
            logger.exception("a callback of request %s failed", request.request_id)
            self._record(CallbackFailed(self._clock(), request.request_id, describe(error)))
