"""A sequence and its five states. `Sequence.transition` is the one place where a status changes.

A sequence knows its tokens, its block table and its place in life; it knows neither the queues nor the pool.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable

from ..errors import IllegalTransition
from ..telemetry.block_table import residency_of
from ..telemetry.clock import Clock
from ..telemetry.events import AnyEvent, SequenceSnapshot, StatusChanged
from .sampling_params import SamplingParams

logger = logging.getLogger("nanolens.sequence")


class SequenceStatus(enum.Enum):
    """Where a sequence is in its life."""

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    FINISHED = "FINISHED"
    ERROR = "ERROR"

    @property
    def is_final(self) -> bool:
        """FINISHED and ERROR are never left again."""
        return self in (SequenceStatus.FINISHED, SequenceStatus.ERROR)


_W, _R, _P = SequenceStatus.WAITING, SequenceStatus.RUNNING, SequenceStatus.PAUSED
_F, _E = SequenceStatus.FINISHED, SequenceStatus.ERROR

# (from, to) -> the reasons allowed. What is not here is refused; None is "not yet alive".
TRANSITIONS: dict[tuple[SequenceStatus | None, SequenceStatus], frozenset[str]] = {
    (None, _W): frozenset({"arrived"}),
    (_W, _R): frozenset({"admitted", "readmitted", "resumed"}),
    (_W, _P): frozenset({"operator"}),
    (_W, _F): frozenset({"aborted"}),
    (_W, _E): frozenset({"error"}),
    (_R, _W): frozenset({"preempted"}),
    (_R, _P): frozenset({"prefill_complete", "stop", "length", "await_input", "operator", "breakpoint"}),
    (_R, _F): frozenset({"stop", "length", "aborted"}),
    (_R, _E): frozenset({"error"}),
    (_P, _R): frozenset({"resumed"}),
    (_P, _W): frozenset({"resumed"}),
    (_P, _F): frozenset({"delivered", "aborted", "expired"}),
    (_P, _E): frozenset({"error"}),
}


class Sequence:
    """One stream of tokens: a prompt and what was generated after it.

    Args:
        seq_id: unique within the run, rising with arrival.
        request_id: the request it belongs to (n > 1: several sequences share one).
        token_ids: the prompt.
        params: its sampling parameters, resolved (seed and limits set).
        seed: the seed of this sequence's random numbers, 0 <= seed < 2**63.
        arrived_t: arrival, in clock nanoseconds.
        record: takes each event (the recorder's `record`).
        clock: gives the time of a transition.
        leader: the sibling whose prompt blocks this sequence will share (n > 1), or None.
    """

    __slots__ = (
        "seq_id", "request_id", "token_ids", "num_prompt_tokens", "params", "seed", "status", "status_t", "reason",
        "wait_reason", "num_computed_tokens", "num_pending", "num_cached_tokens", "prefill_target", "max_tokens",
        "block_table", "block_hashes", "num_registered_blocks", "parent_content", "priority", "num_preemptions",
        "epoch", "leader", "arrived_t", "first_scheduled_t", "first_token_t", "last_token_t", "finished_t",
        "finish_reason", "stop_reason", "max_total_tokens", "stop_token_ids", "bad_words_ids", "num_appended_tokens",
        "appended", "output_start", "queue_key", "move_in", "decode_paused_ns", "_record", "_clock",
    )  # fmt: skip

    def __init__(
        self,
        seq_id: int,
        request_id: str,
        token_ids: list[int],
        params: SamplingParams,
        seed: int,
        arrived_t: int,
        record: Callable[[AnyEvent], None],
        clock: Clock,
        max_total_tokens: int,
        leader: Sequence | None = None,
    ) -> None:
        self.seq_id = seq_id
        self.request_id = request_id
        self.token_ids = list(token_ids)  # the tokens known to the host
        self.num_prompt_tokens = len(token_ids)
        self.params = params
        self.seed = seed
        self.status: SequenceStatus | None = None
        self.status_t = arrived_t
        self.reason = ""
        self.wait_reason = ""
        self.num_computed_tokens = 0  # tokens whose KV a planned step has written or will write
        self.num_pending = 0  # tokens sampled by launched steps and not read yet
        self.num_cached_tokens: int | None = None  # prompt tokens found cached at first admission
        self.prefill_target = self.num_prompt_tokens  # the prefill phase ends here
        self.max_tokens = params.max_tokens if params.max_tokens is not None else max_total_tokens
        self.max_total_tokens = max_total_tokens  # max_model_len
        self.block_table: list[int] = []
        self.block_hashes: list[bytes] = []  # chain hashes of its full blocks, worked out so far
        self.num_registered_blocks = 0  # leading blocks that entered the cache, or were found there
        self.parent_content = 0  # content id of the last registered block
        self.priority = params.priority
        self.num_preemptions = 0
        self.epoch = 0  # rises when launched work of this sequence becomes void
        self.leader = leader
        self.arrived_t = arrived_t
        self.first_scheduled_t = 0
        self.first_token_t = 0
        self.last_token_t = 0
        self.finished_t = 0
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.stop_token_ids: frozenset[int] = frozenset()  # the model's EOS ids included, unless it ignores them
        self.bad_words_ids: list[list[int]] = []
        self.num_appended_tokens = 0
        self.appended: list[tuple[int, int]] = []  # positions [first, end) of tokens that `append` put in
        self.output_start = self.num_prompt_tokens  # where the present run of generated tokens began
        self.queue_key: tuple[int, ...] = (seq_id,)  # its place in the order of the policy
        self.move_in = 0  # the move that brings its blocks back to the device, while it is under way
        self.decode_paused_ns = 0  # PAUSED between its first token and its last
        self._record = record
        self._clock = clock

    def transition(
        self, to: SequenceStatus, reason: str, step: int = 0, *, kept: int = 0, cause: Sequence | None = None
    ) -> None:
        """Change the status and record it; the only place where this happens.

        `kept` tokens of KV stay when it leaves RUNNING for PAUSED; `cause` is the sibling that drew it into its error.
        At level DEBUG the logger `nanolens.sequence` tells each change, its fields also as attributes of the record.

        Raises:
            IllegalTransition: the table does not hold (status, to, reason); nothing has changed.
        """
        if reason not in TRANSITIONS.get((self.status, to), frozenset()):
            old = self.status.value if self.status else "(new)"
            raise IllegalTransition(f"sequence {self.seq_id}: {old} -> {to.value} ({reason}) is not allowed")
        old_value = self.status.value if self.status else ""
        now = self._clock()
        if self.status is SequenceStatus.PAUSED and self.first_token_t and not to.is_final:
            self.decode_paused_ns += now - self.status_t
        self.status, self.status_t, self.reason, self.wait_reason = to, now, reason, ""
        request = self.request_id if not old_value else ""
        culprit = -1 if cause is None or cause is self else cause.seq_id
        self._record(StatusChanged(now, step, self.seq_id, old_value, to.value, reason, request, kept, culprit))
        if logger.isEnabledFor(logging.DEBUG):
            fields = {"seq": self.seq_id, "request": self.request_id, "step": step, "reason": reason}
            fields |= {"from_status": old_value, "to_status": to.value}
            logger.debug(" ".join(f"{name}={value}" for name, value in fields.items()), extra=fields)

    @property
    def num_tokens(self) -> int:
        """Tokens known to the host, plus those that are still on the device."""
        return len(self.token_ids) + self.num_pending

    @property
    def num_output_tokens(self) -> int:
        """Generated tokens, those still on the device included."""
        return len(self.token_ids) + self.num_pending - self.num_prompt_tokens - self.num_appended_tokens

    @property
    def num_read_output_tokens(self) -> int:
        """Generated tokens that the host has read."""
        return len(self.token_ids) - self.num_prompt_tokens - self.num_appended_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """Generated tokens that the host has read; what was appended between them is left out."""
        ids, first = [], self.num_prompt_tokens
        for start, end in self.appended:
            ids += self.token_ids[first:start]
            first = end
        return ids + self.token_ids[first:]

    @property
    def given_token_ids(self) -> list[int]:
        """The tokens that it did not generate: its prompt and what was appended."""
        ids = self.token_ids[: self.num_prompt_tokens]
        for start, end in self.appended:
            ids += self.token_ids[start:end]
        return ids

    def append(self, token_ids: list[int]) -> None:
        """Put given tokens after those that it has; they are to be computed, and count as no output."""
        start = len(self.token_ids)
        self.token_ids += token_ids
        self.appended.append((start, len(self.token_ids)))
        self.num_appended_tokens += len(token_ids)
        self.output_start = len(self.token_ids)

    @property
    def is_resident(self) -> bool:
        """Whether all the KV that it has is on the device now."""
        return not self.move_in and min(self.block_table, default=0) >= 0

    @property
    def phase(self) -> str:
        """"prefill" until all tokens that it had at its (re)admission are computed, then "decode"."""
        return "prefill" if self.num_computed_tokens < self.prefill_target else "decode"

    @property
    def is_live(self) -> bool:
        """Whether it has arrived and not ended."""
        return self.status is not None and not self.status.is_final

    def snapshot(self, host_blocks: int = 0) -> SequenceSnapshot:
        """This sequence as a keyframe holds it; `host_blocks` tells host memory from the swap file."""
        return SequenceSnapshot(
            seq=self.seq_id,
            request=self.request_id,
            status=self.status.value if self.status else "",
            phase=self.phase,
            reason=self.reason,
            wait_reason=self.wait_reason,
            residency=residency_of(self.block_table, host_blocks),
            priority=self.priority,
            arrived_t=self.arrived_t,
            status_t=self.status_t,
            num_prompt_tokens=self.num_prompt_tokens,
            num_output_tokens=self.num_read_output_tokens,
            num_computed_tokens=self.num_computed_tokens,
            num_cached_tokens=self.num_cached_tokens or 0,
            prefill_target=self.prefill_target,
            max_tokens=self.max_tokens,
            num_preemptions=self.num_preemptions,
            block_table=list(self.block_table),
            first_token_t=self.first_token_t,
            last_token_t=self.last_token_t,
            num_appended_tokens=self.num_appended_tokens,
        )
