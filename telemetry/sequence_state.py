"""One sequence, one request and the block pool, as projections of the journal hold them. Knows no events' order."""

from __future__ import annotations

from dataclasses import dataclass, field

from .events import BlocksAllocated, BlocksCached, BlocksFreed, Keyframe, SequenceSnapshot

HASH_BYTES = 8  # of a block's hash in the journal


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
    """A sequence. Fields have the meaning of `SequenceSnapshot`'s; the last four belong to the state projection."""

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
            s.num_preemptions, s.first_token_t, s.last_token_t, list(s.block_table),
        )  # fmt: skip

    @property
    def phase(self) -> str:
        """Prefill until all tokens that it had at its (re)admission are computed, then decode."""
        return "prefill" if self.num_computed_tokens < self.prefill_target else "decode"

    @property
    def num_unread_tokens(self) -> int:
        """Tokens sampled in steps in flight: without any, the newest token is always still to be computed."""
        return max(0, self.num_computed_tokens - self.num_prompt_tokens - self.num_output_tokens + 1)

    def take(self, count: int, t: int) -> None:
        """Count output tokens, the last of them read at `t`."""
        self.num_output_tokens += count
        self.first_token_t = self.first_token_t or t
        self.last_token_t = t

    def snapshot(self) -> SequenceSnapshot:
        """As a keyframe holds it."""
        return SequenceSnapshot(
            self.seq, self.request, self.status, self.phase, self.reason, self.wait_reason,
            "device" if self.block_table else "none", self.priority, self.arrived_t, self.status_t,
            self.num_prompt_tokens, self.num_output_tokens, self.num_computed_tokens, self.num_cached_tokens,
            self.prefill_target, self.max_tokens, self.num_preemptions, list(self.block_table), self.first_token_t,
            self.last_token_t,
        )  # fmt: skip


class PoolState:
    """The block pool.

    Attributes:
        num_blocks: its size.
        free: the free list in order; the first is reused next, released blocks go to the end.
        refs: references of each block.
        cached: block -> (hash, filling sequence) for blocks with cached content.
        referenced: number of blocks with references.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.free: dict[int, None] = dict.fromkeys(range(num_blocks))
        self.refs = [0] * num_blocks
        self.cached: dict[int, tuple[bytes, int]] = {}
        self.referenced = 0

    @classmethod
    def from_keyframe(cls, keyframe: Keyframe) -> PoolState:
        """The pool of a keyframe."""
        pool = cls(keyframe.started.num_blocks)
        pool.free = dict.fromkeys(keyframe.free_blocks)
        for seq in keyframe.sequences:
            for block in seq.block_table:
                pool.refs[block] += 1
        pool.referenced = sum(1 for count in pool.refs if count)
        for index, block in enumerate(keyframe.cached_blocks):
            content = keyframe.cached_hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES]
            pool.cached[block] = (content, keyframe.cached_by[index])
        return pool

    def allocate(self, e: BlocksAllocated) -> None:
        """Reference `cached`, take `new`, forget what `evicted` held."""
        refs, free = self.refs, self.free
        for block in e.cached:
            if not refs[block]:
                del free[block]
                self.referenced += 1
            refs[block] += 1
        for block in e.new:
            del free[block]
            refs[block] = 1
        for block in e.evicted:
            del self.cached[block]
        self.referenced += len(e.new)

    def cache(self, e: BlocksCached) -> None:
        """Give blocks their cached content."""
        for index, block in enumerate(e.blocks):
            self.cached[block] = (e.hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES], e.seq)

    def release(self, e: BlocksFreed) -> None:
        """Drop references; a block without any goes to the end of the free list."""
        refs, free = self.refs, self.free
        for block in e.blocks:
            refs[block] -= 1
            if not refs[block]:
                free[block] = None
                self.referenced -= 1
