"""A device that takes time for a fake engine: each step as long as a cost model says, one after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fake_engine import Clock, FakeEngine
from nanolens.engine.plan import StepPlan, StepResult
from nanolens.telemetry.step_costs import StepCostModel, pairs_of

COSTS = StepCostModel(
    fixed=2_000_000.0, prefill_token=150_000.0, prefill_pair=900.0, decode=300_000.0, decode_context=4_000.0
)


class TimedDevice:
    """Moves the clock of a fake engine when a step is read, to when a device would have been done with it.

    A row of one token counts as a decode.

    Args:
        engine: its runner is changed.
        clock: the engine's.
        costs: of a step, in nanoseconds.
        stretch: plan -> factor on its cost.
    """

    def __init__(
        self,
        engine: FakeEngine,
        clock: Clock,
        costs: StepCostModel = COSTS,
        stretch: Callable[[StepPlan], float] = lambda plan: 1.0,
    ) -> None:
        self.clock, self.costs, self.stretch = clock, costs, stretch
        self.idle_t = 0  # when the device is done with what it was given
        self._launch, self._collect = engine.runner.launch, engine.runner.collect
        engine.runner.launch = self.launch  # type: ignore[method-assign]
        engine.runner.collect = self.collect  # type: ignore[method-assign]

    def launch(self, plan: StepPlan) -> Any:
        handle = self._launch(plan)
        cost = int(self._cost(plan) * self.stretch(plan))
        self.idle_t = max(self.idle_t, self.clock.now) + cost
        return handle, cost, self.idle_t

    def collect(self, handle: Any) -> StepResult:
        own, cost, done_t = handle
        wait = max(0, done_t - self.clock.now)
        self.clock.now += wait
        return replace(self._collect(own), device_ns=cost, wait_ns=wait)

    def _cost(self, plan: StepPlan) -> float:
        tokens = pairs = decodes = context = 0
        for start, count in zip(plan.starts, plan.counts, strict=True):
            if count == 1:
                decodes, context = decodes + 1, context + start + 1
            else:
                tokens, pairs = tokens + count, pairs + pairs_of(start, count)
        return self.costs.predict(tokens, pairs, decodes, context)


def timed_engine(**options: Any) -> tuple[FakeEngine, Clock]:
    """A fake engine on a timed device, and its clock. `costs` and `stretch` go to the device."""
    clock = Clock()
    of_device = {name: options.pop(name) for name in ("costs", "stretch") if name in options}
    engine = FakeEngine(clock=clock, **options)
    TimedDevice(engine, clock, **of_device)
    return engine, clock
