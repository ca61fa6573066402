"""Who comes first: the order of each policy. A key is worked out when a sequence enters a queue, and stands."""

from __future__ import annotations

from collections.abc import Callable

from .config import EngineConfig
from .sequence import Sequence

QueueKey = tuple[int, ...]
TOKENS_PER_AGING = 1000  # under "sjf", waiting for `aging_s` weighs as much as this many tokens


def remaining_tokens(seq: Sequence) -> int:
    """Tokens that a sequence has still to compute at most: the rest of what it has and of its output."""
    return seq.num_tokens - seq.num_computed_tokens + seq.max_tokens - seq.num_output_tokens


def queue_order(config: EngineConfig) -> Callable[[Sequence], QueueKey]:
    """The key of the policy; lower goes first.

    Time counts by the arrival in the key: all who wait age alike, so that their order never changes, and whoever
    arrives `aging_s` later and one level more urgent stands level with those that were there. Nobody starves.
    """
    aging_ns = int(config.aging_s * 1e9)
    if config.policy == "priority":
        return lambda seq: (seq.priority * aging_ns + seq.arrived_t, seq.seq_id)
    if config.policy == "sjf":
        return lambda seq: (remaining_tokens(seq) * aging_ns // TOKENS_PER_AGING + seq.arrived_t, seq.seq_id)
    return lambda seq: (seq.seq_id,)
