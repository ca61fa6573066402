"""Histograms of the ranks that share a model: how far apart they lie, and what each spends in collectives.

A run on one rank has none of these series.
"""

from __future__ import annotations

from .events import AnyEvent, EngineStarted, Keyframe, StepRanks
from .metric_families import PREFIX
from .metric_histogram import Histograms
from .rank_skew import rank_skew

SKEW, COLLECTIVE = PREFIX + "rank_skew_seconds", PREFIX + "rank_collective_seconds"


class RankTimes:
    """Times of steps by rank.

    Args:
        histograms: where they are observed.
    """

    def __init__(self, histograms: Histograms) -> None:
        self._histograms = histograms

    def apply(self, event: AnyEvent) -> None:
        """Take one event."""
        if isinstance(event, StepRanks):
            self._observe(event)
        elif isinstance(event, EngineStarted):
            self._histograms.forget_ranks()
            self._expect(event)
        elif isinstance(event, Keyframe):
            self._expect(event.started)

    def _expect(self, started: EngineStarted) -> None:
        size = started.config.get("tensor_parallel_size")
        if isinstance(size, int) and size > 1:
            self._histograms.add_ranks(size)

    def _observe(self, e: StepRanks) -> None:
        skew = rank_skew(e)
        if skew is None:
            return
        self._histograms.add_ranks(len(e.device_ns))
        self._histograms.of(SKEW, str(skew.slowest)).observe(skew.spread_ns)
        for rank, waited in enumerate(e.collective_ns):
            self._histograms.of(COLLECTIVE, str(rank)).observe(waited)
