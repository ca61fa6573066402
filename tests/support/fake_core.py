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
from nanolens.engine.outputs import Delta
from nanolens.engine.plan import StepPlan
from nanolens.errors import AuditError, UnknownModel

# The first token of a prompt that does this in its first step.
EXITS, HANGS, BREAKS_AUDIT = 997, 998, 999
# A resume with this appended gives a piece of text at once, as one does whose pause held text back.
HELD_BACK = 996
MODEL = "fake"  # "fake:0.05" takes 50 ms a step


class FragileEngine(FakeEngine):
    """One that takes its time for each step, and that some prompts break."""

    def __init__(self, pace_s: float, **options: Any) -> None:
        super().__init__(block_size=4, **options)
        self.pace_s = pace_s
        self.is_broken = False
        self.runner.fail_launch = self._before

    def step(self) -> bool:
        found = super().step()
        if self.is_broken:
            raise AuditError("block 7 is free and referenced")
        return found

    def resume(
        self, request_id: str, append: Any = None, max_tokens: int | None = None, index: int | None = None
    ) -> None:
        super().resume(request_id, append, max_tokens, index)
        on_output = self.core.requests[request_id].on_output
        if append == [HELD_BACK] and on_output is not None:
            on_output(Delta(0, "held back", []))

    def _before(self, plan: StepPlan) -> Exception | None:
        time.sleep(self.pace_s)
        first = {seq.token_ids[0] for seq in plan.sequences}
        if EXITS in first:
            os._exit(3)
        if HANGS in first:
            time.sleep(1000)
        self.is_broken |= BREAKS_AUDIT in first
        return None


def build(config: EngineConfig) -> FragileEngine:
    """The engine of the process."""
    name, _, pace = config.model.partition(":")
    if name != MODEL:
        raise UnknownModel(f"{name}: not the fake model")
    recorder = make_recorder(config, "test")
    return FragileEngine(float(pace or 0), num_blocks=config.num_blocks or 64, recorder=recorder)


def main(connection: Connection) -> None:
    """The program of the process."""
    sys.exit(run(connection, build))


def exit_at_once(connection: Connection) -> None:
    """A process that ends before it is ready."""
    os._exit(7)


def sleep_long(connection: Connection) -> None:
    """A process that never gets ready."""
    time.sleep(1000)


class FakeAsyncEngine(AsyncEngine):
    """`FakeAsyncEngine()`: 64 blocks of 4 tokens, the vocabulary and the tokens of FakeEngine."""

    _main = staticmethod(main)

    def __init__(self, model: str = MODEL, **options: Any) -> None:
        super().__init__(model, **options)
