"""How many replicas a fleet should have, by how long requests wait in their queues. Knows Ray's context by shape."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

QUEUE_AGE = "queue_age_s"  # what each replica says of itself


class ScalingContext(Protocol):
    """What is used of ray.serve.config.AutoscalingContext."""

    target_num_replicas: int

    @property
    def aggregated_metrics(self) -> Mapping[str, Mapping[Any, float]] | None:
        """Of what replicas say, by name and replica, over the window that Ray looks back at."""

    @property
    def total_num_requests(self) -> float:
        """That they hold, all together."""


class ByQueueAge:
    """A scaling policy: more replicas while requests wait too long, fewer once nobody waits.

    Args:
        scale_queue_s: that a request may wait.
        max_num_seqs: requests that a replica runs at once.
    """

    def __init__(self, scale_queue_s: float, max_num_seqs: int) -> None:
        self._limit_s, self._most = scale_queue_s, max_num_seqs

    def __call__(self, ctx: ScalingContext) -> tuple[int, dict[str, Any]]:
        """How many there should be, and no state."""
        ages = (ctx.aggregated_metrics or {}).get(QUEUE_AGE, {})
        wanted = wanted_replicas(
            ctx.target_num_replicas, list(ages.values()), ctx.total_num_requests, self._limit_s, self._most
        )
        return wanted, {}


def wanted_replicas(now: int, ages_s: Sequence[float], requests: float, limit_s: float, max_num_seqs: int) -> int:
    """How many replicas there should be: by the ratio of the mean wait to its limit, at most twice as many; or one less
    where nobody has waited and those that are left would be at most half full.

    Args:
        now: as many there are.
        ages_s: how long the longest wait at each of them is.
        requests: that they hold, all together.
        limit_s: that a wait may be.
        max_num_seqs: requests that one of them runs at once.
    """
    mean_s = sum(ages_s) / len(ages_s) if ages_s else 0.0
    if mean_s > limit_s:
        return max(now + 1, min(2 * now, math.ceil(now * mean_s / limit_s)))
    if now > 1 and not any(ages_s) and requests <= 0.5 * max_num_seqs * (now - 1):
        return now - 1
    return now
