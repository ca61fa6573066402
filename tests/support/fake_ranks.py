"""Ranks whose processes compute with the fake runner, each on its own pages: no model, no torch, started at once."""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import sys
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

from fake_engine import MAX_MODEL_LEN, FakeEngine, FakeRunner
from nanolens import errors
from nanolens.engine.config import EngineConfig
from nanolens.engine.plan import StepPlan, StepResult
from nanolens.engine.runner.swap_file import SwapFile, path_of_rank
from nanolens.engine.runner.tensor_parallel import TensorParallelRunner
from nanolens.engine.runner.tensor_parallel_rank import BuiltRank, RankSetup
from nanolens.errors import EngineDead, InvalidConfig

WARM_UP_NS = 7_000  # spent in collectives before the first step


class FakeRankRunner(FakeRunner):
    """Moves take one step longer on each rank than on the one before it."""

    def __init__(self, setup: RankSetup) -> None:
        config = setup.config
        num_blocks = setup.agree((config.num_blocks or 1) + setup.rank)
        super().__init__(num_blocks, config.block_size, config.host_blocks, config.disk_blocks)
        self.max_model_len = min(MAX_MODEL_LEN, num_blocks * config.block_size)
        self.startup = {"rank": setup.rank, f"of_rank_{setup.rank}": 1}
        self.rank, self.move_on = setup.rank, setup.move_on
        self.steps = 0
        self.computing: deque[bool] = deque()  # of the launched plans: whether there is anything to compute

    def launch(self, plan: StepPlan) -> Any:
        if plan.moves:
            self.move_delay = self.rank
        if plan.step == int(os.environ.get("FAKE_RANK_FAILS_AT", "-1")) and self.rank == 1:
            raise vars(errors).get(os.environ.get("FAKE_RANK_FAILS_BY", ""), ValueError)("as asked")
        who, _, step = os.environ.get("FAKE_RANK_HANGS", "").partition(":")
        if step == str(plan.step) and who in ("all", str(self.rank)):
            hang_for_ever()
        handle = super().launch(plan)
        self.computing.append(bool(plan.sequences))
        return handle

    def collect(self, handle: Any) -> StepResult:
        for part in os.environ.get("FAKE_RANK_SLEEPS", "0").split():
            time.sleep(float(part))
            self.move_on()
        result = super().collect(handle)
        if not self.computing.popleft():
            return result  # as the torch runner's: the device tells nothing
        self.steps += 1
        result.device_ns = 1000 * self.steps + self.rank
        result.collective_ns = WARM_UP_NS + 100 * self.steps * (self.rank + 1)
        return result


def hang_for_ever() -> None:
    """Sleep on the thread that calls; others go on."""
    while True:
        time.sleep(1000)


def build(setup: RankSetup) -> BuiltRank:
    """A fake rank, after it has met the others."""
    if setup.rank == 0:
        setup.publish("here")
    elif setup.address() != "here":
        raise RuntimeError("another address than rank 0's")
    return BuiltRank(FakeRankRunner(setup), waited_ns=WARM_UP_NS)


def build_filing(setup: RankSetup) -> BuiltRank:
    """A fake rank whose swap file is always busy."""
    beats = itertools.count()
    return dataclasses.replace(build(setup), num_filed=lambda: next(beats))


def build_refused(setup: RankSetup) -> BuiltRank:
    """A rank that can't work with its settings; the others wait for it."""
    if setup.rank == 1:
        raise InvalidConfig("num_blocks=7: must be something else")
    setup.agree(1)
    raise AssertionError("never agreed")


def build_dying(setup: RankSetup) -> BuiltRank:
    """A rank that dies while it starts."""
    if setup.rank == 1:
        os._exit(3)
    setup.agree(1)
    raise AssertionError("never agreed")


def build_stopped(setup: RankSetup) -> BuiltRank:
    """A rank whose process is stopped while it starts."""
    if setup.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    return build(setup)


def build_busy(setup: RankSetup) -> BuiltRank:
    """A rank that lets no other thread of its process run for a while."""
    if setup.rank == 1:
        sys.setswitchinterval(100.0)
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            pass
        sys.setswitchinterval(0.005)
    return build(setup)


def build_alone(setup: RankSetup) -> BuiltRank:
    """Rank 0 gives up waiting for the others."""
    if setup.rank == 0:
        setup.enter(2)
        raise EngineDead("could not meet the other ranks within 600 s: wait timeout")
    hang_for_ever()
    raise AssertionError("never comes here")


def build_broken(setup: RankSetup) -> BuiltRank:
    """A rank that fails while it starts."""
    if setup.rank == 1:
        raise ValueError("as asked")
    return build(setup)


def build_swapping(setup: RankSetup) -> BuiltRank:
    """A fake rank with a swap file, rank 0's first."""
    path = setup.config.swap_path or ""
    if setup.rank > 0:
        setup.address()
    file = SwapFile(path_of_rank(path, setup.rank), 4, 64)
    if setup.rank == 0:
        setup.publish("here")
    return BuiltRank(FakeRankRunner(setup), close=file.close, waited_ns=WARM_UP_NS)


def make_ranks(config: EngineConfig, target: str = "build") -> TensorParallelRunner:
    """The runner of an engine on fake ranks."""
    return TensorParallelRunner(config, 1000, f"fake_ranks:{target}")


def ranks_engine(size: int = 2, target: str = "build", **options: Any) -> FakeEngine:
    """An engine on fake ranks."""
    return FakeEngine(make_runner=partial(make_ranks, target=target), tensor_parallel_size=size, **options)


def is_running(pid: int) -> bool:
    """Whether there is such a process, a zombie aside."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def shared_descriptors() -> list[str]:
    """The descriptors of this process to memory that ranks share."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(entry)
        except OSError:
            continue
        if "nanolens-ranks" in target:
            found.append(target)
    return found
