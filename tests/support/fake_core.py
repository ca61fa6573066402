"""An AsyncEngine whose process runs a FakeEngine: it starts without torch, and some prompts break it on purpose."""

from __future__ import annotations

import os
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

from fake_engine import FakeEngine
from nanolens.engine.async_engine import AsyncEngine
from nanolens.engine.build import make_recorder
from nanolens.engine.config import EngineConfig
from nanolens.engine.core_process import run
from nanolens.engine.plan import StepPlan
from nanolens.errors import AuditError, UnknownModel

# The first token of a prompt that does this in its first step.
EXITS, HANGS, BREAKS_AUDIT = 997, 998, 999
MODEL = "fake"  # "fake:0.05" takes 50 ms a step


def build(config: EngineConfig) -> FakeEngine:
    """The engine of the process."""
    name, _, pace = config.model.partition(":")
    if name != MODEL:
        raise UnknownModel(f"{name}: not the fake model")
    engine = FakeEngine(
        num_blocks=config.num_blocks or 64, block_size=4, max_num_seqs=config.max_num_seqs,
        recorder=make_recorder(config, "test"),
    )  # fmt: skip

    def before(plan: StepPlan) -> Exception | None:
        time.sleep(float(pace or 0))
        first = {seq.token_ids[0] for seq in plan.sequences}
        if EXITS in first:
            os._exit(3)
        if HANGS in first:
            time.sleep(1000)
        if BREAKS_AUDIT in first:
            engine.core.audit = broken_audit  # type: ignore[method-assign]
        return None

    engine.runner.fail_launch = before
    return engine


def broken_audit() -> None:
    raise AuditError("block 7 is free and referenced")


def main(connection: Connection) -> None:
    """The program of the process."""
    sys.exit(run(connection, build))


class FakeAsyncEngine(AsyncEngine):
    """`FakeAsyncEngine()`: 64 blocks of 4 tokens, the vocabulary and the tokens of FakeEngine."""

    _main = staticmethod(main)

    def __init__(self, model: str = MODEL, **options: Any) -> None:
        super().__init__(model, **options)
