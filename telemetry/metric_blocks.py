"""How long blocks and steps took, folded from events into histograms. Knows no requests."""

from __future__ import annotations

from collections.abc import Iterable

from .events import AnyEvent, BlocksAllocated, BlocksFreed, BlocksSwapped, EngineStarted, StepFinished, StepPlanned
from .metric_families import PREFIX
from .metric_histogram import Histograms
from .state import EngineState
from .totals import STEP_KINDS


class BlockTimes:
    """Times of blocks on the device. What happened before this reader joined is not known, and not observed.

    Args:
        histograms: where to observe.
        state: the projection that gets the same events; it is only read.
    """

    def __init__(self, histograms: Histograms, state: EngineState) -> None:
        self._state = state
        self._lifetime = histograms.of(PREFIX + "block_lifetime_seconds")
        self._idle = histograms.of(PREFIX + "block_idle_before_eviction_seconds")
        self._gap = histograms.of(PREFIX + "block_reuse_gap_seconds")
        self.forget()

    def forget(self) -> None:
        """The times known so far hold no more: events were missed, or another run begins."""
        # Block -> clock nanoseconds. A block that is not named has not been seen there.
        self._taken: dict[int, int] = {}  # from the free list, and still in a table
        self._used: dict[int, int] = {}  # last allocated, or found in the cache
        self._released: dict[int, int] = {}  # by the last who held it

    def before(self, event: AnyEvent) -> None:
        """Take an event that the state has not got yet."""
        if isinstance(event, BlocksAllocated):
            self._take(event.cached, event.new, event.evicted, event.t)
        elif isinstance(event, BlocksSwapped):
            still_there = set(event.cached)
            new = [entry for entry in event.targets if entry >= 0 and entry not in still_there]
            self._take(event.cached, new, event.evicted, event.t)

    def after(self, event: AnyEvent) -> None:
        """Take the same event once the state has it."""
        if isinstance(event, BlocksFreed):
            self._release(event.blocks, event.t)
        elif isinstance(event, BlocksSwapped):
            self._release(event.sources, event.t)

    def _take(self, cached: Iterable[int], new: Iterable[int], evicted: Iterable[int], t: int) -> None:
        taken, used, released, refs = self._taken, self._used, self._released, self._state.pool.refs
        for block in evicted:
            if block in released:
                self._idle.observe(t - released[block])
        for block in cached:
            if block in used:
                self._gap.observe(t - used[block])
            used[block] = t
            if not refs[block]:
                taken[block] = t
        for block in new:
            taken[block] = used[block] = t

    def _release(self, entries: Iterable[int], t: int) -> None:
        refs = self._state.pool.refs
        for entry in entries:
            if entry >= 0 and not refs[entry]:
                self._released[entry] = t
                since = self._taken.pop(entry, None)
                if since is not None:
                    self._lifetime.observe(t - since)


class StepTimes:
    """Times and sizes of steps.

    Attributes:
        last_t: when the tokens of the newest step were read, in clock nanoseconds; 0: none yet.
    """

    def __init__(self, histograms: Histograms) -> None:
        self._seconds = {kind: histograms.of(PREFIX + "step_seconds", kind) for kind in STEP_KINDS}
        self._host = histograms.of(PREFIX + "step_host_seconds")
        self._tokens = histograms.of(PREFIX + "batch_tokens")
        self._planned: dict[int, StepPlanned] = {}
        self.last_t = 0

    def apply(self, event: AnyEvent) -> None:
        """Take one event."""
        if isinstance(event, StepPlanned):
            self._planned[event.step] = event
        elif isinstance(event, StepFinished):
            self._finished(event)
        elif isinstance(event, EngineStarted):
            self._planned.clear()
            self.last_t = 0

    def _finished(self, e: StepFinished) -> None:
        self.last_t = e.t
        plan = self._planned.pop(e.step, None)
        for step in [step for step in self._planned if step < e.step]:
            del self._planned[step]  # it failed: steps are read in their order
        self._host.observe(e.plan_ns + e.launch_ns + e.collect_ns - e.wait_ns)
        self._tokens.observe(e.num_tokens)
        if plan is not None and plan.kind in self._seconds:
            self._seconds[plan.kind].observe(e.t - plan.t + e.plan_ns)
