"""A fake engine on a timed device that several ranks share, each slower than the first one by what a test plants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fake_engine import Clock, FakeEngine
from nanolens.engine.plan import RankTimes, StepPlan, StepResult
from timed_engine import timed_engine

EXCHANGE = 200_000  # nanoseconds of a step that each rank exchanges, beside waiting

Delays = Callable[[StepPlan], Sequence[int]]


class SkewedRanks:
    """Makes each step as much longer as its slowest rank is slower.

    Args:
        engine: its runner is changed.
        delays: of a plan, nanoseconds that each rank computes longer than the model of the device's costs says.
        late: what ranks took is told with the next step.
    """

    def __init__(self, engine: FakeEngine, delays: Delays, late: bool) -> None:
        self._delays, self._late = delays, late
        self._untold: list[RankTimes] = []
        self._launch, self._collect = engine.runner.launch, engine.runner.collect
        engine.runner.launch = self.launch  # type: ignore[method-assign]
        engine.runner.collect = self.collect  # type: ignore[method-assign]

    def launch(self, plan: StepPlan) -> Any:
        handle, cost, done_t = self._launch(plan)
        delays = list(self._delays(plan))
        device = self._launch.__self__  # type: ignore[attr-defined]
        device.idle_t += max(delays) + EXCHANGE
        return (handle, cost + max(delays) + EXCHANGE, done_t + max(delays) + EXCHANGE), delays, plan.step

    def collect(self, handle: Any) -> StepResult:
        inner, delays, step = handle
        result = self._collect(inner)
        waited = [EXCHANGE + max(delays) - delay for delay in delays]
        times = RankTimes(step, [result.device_ns] * len(delays), waited)
        told, self._untold = (self._untold, [times]) if self._late else ([times], [])
        return replace(result, ranks=told)


def skewed_engine(delays: Delays, late: bool = True, **options: Any) -> tuple[FakeEngine, Clock]:
    """The engine, and its clock."""
    engine, clock = timed_engine(**options)
    SkewedRanks(engine, delays, late)
    return engine, clock
