"""The order of the waiting queue under each policy, from what a journal says. Knows no events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Union

from .sequence_state import SequenceState

DEFAULT_AGING_S = 10.0  # of a journal that does not name it

QueueKey = tuple[int, int]


class QueueOrder:
    """Places in the queue of one run.

    A place is worked out when a sequence begins to wait, or when its priority changes, and kept until it leaves: "sjf"
    goes by the tokens to compute and to generate as they were then.

    Args:
        config: the settings in the run's first event.
    """

    def __init__(self, config: Mapping[str, Union[str, int, float, bool, None]]) -> None:
        aging_s = config.get("aging_s")
        self._aging_ns = int((aging_s if isinstance(aging_s, int | float) else DEFAULT_AGING_S) * 1e9)
        self._policy = config.get("policy")

    def key(self, seq: SequenceState) -> QueueKey:
        """The place of a sequence that begins to wait now; a smaller one is further ahead."""
        if self._policy == "priority":
            return seq.priority * self._aging_ns + seq.arrived_t, seq.seq
        if self._policy == "sjf":
            remaining = seq.num_tokens - seq.num_computed_tokens + seq.max_tokens - seq.num_output_tokens
            return remaining * self._aging_ns // 1000 + seq.arrived_t, seq.seq
        return 0, seq.seq

    def is_sure(self, seq: SequenceState) -> bool:
        """Whether `key` gives the place that a waiting sequence was given, though it has waited for some time.

        Under "sjf" it may not, where KV that it had when its wait began may have been dropped since.
        """
        return self._policy != "sjf" or seq.num_computed_tokens > 0 or seq.reason == "arrived"

    def keys(self, waiting: Iterable[SequenceState]) -> dict[int, QueueKey]:
        """The places of a whole queue in its order, as a keyframe gives it.

        The order given holds, whatever the keys say: a sequence that lost its KV while it waited has more tokens to
        compute than when its place was worked out, so that its key is bounded by that of the next in the queue.
        """
        keys: list[tuple[int, QueueKey]] = []
        for seq in reversed(list(waiting)):
            key = self.key(seq)
            keys.append((seq.seq, min(key, keys[-1][1]) if keys else key))
        return dict(reversed(keys))
