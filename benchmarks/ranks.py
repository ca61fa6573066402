"""Models that several ranks share: the whole model's shape, and figures from what steps took on each rank."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..telemetry.events import AnyEvent, StepPlanned, StepRanks
from ..telemetry.rank_skew import rank_skew
from .stats import Distribution

if TYPE_CHECKING:
    import torch

    from ..engine.config import EngineConfig
    from ..models.config import ModelConfig

_NS_PER_US, _NS_PER_S = 1e3, 1e9


@dataclass(frozen=True)
class StepFigures:
    """Of many steps, in microseconds.

    Attributes:
        device_us: of a step on the rank that took longest.
        collective_us: of it, in collectives; the mean over the ranks.
        skew_us: how far apart the ranks lie (`telemetry.rank_skew`): how much longer one computed, its collectives
            aside, than another, or, on CPUs, how much later it came to them.
    """

    device_us: Distribution
    collective_us: Distribution
    skew_us: Distribution

    @classmethod
    def of(cls, steps: Sequence[StepRanks]) -> StepFigures:
        """Of any number of steps."""
        return cls(
            Distribution.of([max(step.device_ns) / _NS_PER_US for step in steps]),
            Distribution.of([sum(step.collective_ns) / len(step.collective_ns) / _NS_PER_US for step in steps]),
            Distribution.of([_skew_ns(step) / _NS_PER_US for step in steps]),
        )


@dataclass(frozen=True)
class RankFigures:
    """What a run's steps took on its ranks.

    Attributes:
        num_steps: that told it.
        device_s: all steps together, each on the rank that took longest.
        collective_share: of the ranks' time on their devices, in collectives: the exchange, and waiting for the others.
        exchange_share: the same where each step counts only the rank that spent least there: it waited for nobody.
        decode: of steps that only decode.
        all: of every step.
    """

    num_steps: int
    device_s: float
    collective_share: float
    exchange_share: float
    decode: StepFigures
    all: StepFigures

    @classmethod
    def of(cls, events: Sequence[AnyEvent]) -> RankFigures | None:
        """From a run's events; None where no step tells of ranks."""
        decodes = {event.step for event in events if isinstance(event, StepPlanned) and event.kind == "decode"}
        steps = [event for event in events if isinstance(event, StepRanks)]
        if not steps:
            return None
        size, on_device = len(steps[0].device_ns), sum(sum(step.device_ns) for step in steps) or 1
        return cls(
            num_steps=len(steps),
            device_s=sum(max(step.device_ns) for step in steps) / _NS_PER_S,
            collective_share=sum(sum(step.collective_ns) for step in steps) / on_device,
            exchange_share=size * sum(min(step.collective_ns) for step in steps) / on_device,
            decode=StepFigures.of([step for step in steps if step.step in decodes]),
            all=StepFigures.of(steps),
        )


def _skew_ns(step: StepRanks) -> int:
    skew = rank_skew(step)
    return 0 if skew is None else skew.spread_ns


def shape_of(config: EngineConfig, device: torch.device) -> ModelConfig:
    """The shape of the whole model that `config` names, with the dtype that it runs in on `device`; loads no weights.

    Raises:
        UnknownModel, ModelLoadError: as `load_model`.
    """
    from ..models import DummyModel, load_config, resolve_model
    from ..models.loader import Checkpoint, stored_dtype

    shape = load_config(config.model)
    if config.dtype != "auto" or device.type == "cpu":
        return dataclasses.replace(shape, dtype="float32" if config.dtype == "auto" else config.dtype)
    found = resolve_model(config.model)
    if shape.dtype is not None or isinstance(found, DummyModel):
        return shape
    with Checkpoint(found) as checkpoint:
        return dataclasses.replace(shape, dtype=stored_dtype(checkpoint))
