"""How far apart the ranks of a model lie in a step: the one that computed longest, and by how much. Knows no requests.

A rank's own work is its device time without the collectives, in which it waits for the others.
"""

from __future__ import annotations

from dataclasses import dataclass

from .events import StepRanks


@dataclass(frozen=True, slots=True)
class RankSkew:
    """One step.

    Attributes:
        slowest: the rank that computed longest; of several the first.
        spread_ns: how much longer than the one that computed least.
        excess_ns: how much longer than the median rank: what the step would have been spared, had it computed as long
            as that. Of an even number of ranks the lower of the two in the middle, so that of two it is the other one.
    """

    slowest: int
    spread_ns: int
    excess_ns: int


def own_ns(e: StepRanks) -> list[int]:
    """What each rank computed itself, in nanoseconds."""
    return [max(0, device - waited) for device, waited in zip(e.device_ns, e.collective_ns, strict=False)]


def rank_skew(e: StepRanks) -> RankSkew | None:
    """The skew of a step; None where fewer than two ranks tell of it."""
    own = own_ns(e)
    if len(own) < 2:
        return None
    ranked = sorted(own)
    longest = ranked[-1]
    return RankSkew(own.index(longest), longest - ranked[0], longest - ranked[(len(own) - 1) // 2])
