"""How far apart the ranks of a model lie in a step: the one that computed longest, and by how much. Knows no requests.

A rank's own work is its device time without the collectives, in which it waits for the others. Where it is known how
late ranks came to the collectives, that counts instead: it tells of what kept a rank between steps and kernels, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from .events import StepRanks


@dataclass(frozen=True, slots=True)
class RankSkew:
    """One step.

    Attributes:
        slowest: the rank that computed longest, or came last; of several the first.
        spread_ns: how much longer than the one that computed least, or later than the one that came first.
        excess_ns: the same beside the median rank: what the step would have been spared, had it been like that. Of an
            even number of ranks the lower of the two in the middle, so that of two it is the other one.
    """

    slowest: int
    spread_ns: int
    excess_ns: int


def own_ns(e: StepRanks) -> list[int]:
    """What each rank computed itself, in nanoseconds."""
    return [max(0, device - waited) for device, waited in zip(e.device_ns, e.collective_ns, strict=False)]


def is_lateness_known(e: StepRanks) -> bool:
    """Whether ranks are compared by how late they came to the collectives, and not by their own work."""
    return len(e.late_ns) == len(e.device_ns)


def rank_skew(e: StepRanks) -> RankSkew | None:
    """The skew of a step; None where fewer than two ranks tell of it."""
    lag = e.late_ns if is_lateness_known(e) else own_ns(e)
    if len(lag) < 2:
        return None
    ranked = sorted(lag)
    longest = ranked[-1]
    return RankSkew(lag.index(longest), longest - ranked[0], longest - ranked[(len(lag) - 1) // 2])
