"""One sequence and one request, as projections of the journal hold them. Knows no events' order."""

from __future__ import annotations

from dataclasses import dataclass, field

from .block_table import residency_of
from .events import SequenceSnapshot


@dataclass(slots=True)
class RequestState:
    """A request that has not finished."""

    request: str
    arrived_t: int
    seqs: list[int]
    num_prompt_tokens: int
    max_tokens: int
    priority: int
    live: int  # sequences that have not ended
    num_output_tokens: int = 0  # of its sequences that have ended
    whole: bool = True  # False: joined by a keyframe, so that sequences which ended before are not known


@dataclass(slots=True)
class SequenceState:
    """A sequence. Fields have the meaning of `SequenceSnapshot`'s; the last three belong to the state projection."""

    seq: int
    request: str
    priority: int
    arrived_t: int
    num_prompt_tokens: int
    max_tokens: int
    prefill_target: int
    status: str = ""
    status_t: int = 0
    reason: str = ""
    wait_reason: str = ""
    num_output_tokens: int = 0
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    first_token_t: int = 0
    last_token_t: int = 0
    num_appended_tokens: int = 0
    block_table: list[int] = field(default_factory=list)
    decodes: bool = False  # counted together with all others that decode
    planned_base: int = 0  # steps with decodes that its own counts include, planned
    finished_base: int = 0  # and read

    @classmethod
    def arriving(cls, seq: int, request: RequestState) -> SequenceState:
        """A new sequence of a request."""
        prompt = request.num_prompt_tokens
        return cls(seq, request.request, request.priority, request.arrived_t, prompt, request.max_tokens, prompt)

    @classmethod
    def from_snapshot(cls, s: SequenceSnapshot) -> SequenceState:
        """The sequence of a keyframe."""
        return cls(
            s.seq, s.request, s.priority, s.arrived_t, s.num_prompt_tokens, s.max_tokens, s.prefill_target, s.status,
            s.status_t, s.reason, s.wait_reason, s.num_output_tokens, s.num_computed_tokens, s.num_cached_tokens,
            s.num_preemptions, s.first_token_t, s.last_token_t, s.num_appended_tokens, list(s.block_table),
        )  # fmt: skip

    @property
    def phase(self) -> str:
        """Prefill until all tokens that it had at its (re)admission are computed, then decode."""
        return "prefill" if self.num_computed_tokens < self.prefill_target else "decode"

    @property
    def num_tokens(self) -> int:
        """Tokens that the host knows: the prompt, what was sampled and read, what was appended."""
        return self.num_prompt_tokens + self.num_output_tokens + self.num_appended_tokens

    @property
    def num_unread_tokens(self) -> int:
        """Tokens sampled in steps in flight: without any, the newest token is always still to be computed."""
        return max(0, self.num_computed_tokens - self.num_tokens + 1)

    def take(self, count: int, t: int) -> None:
        """Count output tokens, the last of them read at `t`."""
        self.num_output_tokens += count
        self.first_token_t = self.first_token_t or t
        self.last_token_t = t

    def snapshot(self, host_blocks: int) -> SequenceSnapshot:
        """As a keyframe holds it, where the first `host_blocks` slots of the swap space are in host memory."""
        return SequenceSnapshot(
            self.seq, self.request, self.status, self.phase, self.reason, self.wait_reason,
            residency_of(self.block_table, host_blocks), self.priority, self.arrived_t, self.status_t,
            self.num_prompt_tokens, self.num_output_tokens, self.num_computed_tokens, self.num_cached_tokens,
            self.prefill_target, self.max_tokens, self.num_preemptions, list(self.block_table), self.first_token_t,
            self.last_token_t, self.num_appended_tokens,
        )  # fmt: skip
