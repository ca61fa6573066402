"""Ranks of a real model, one of which is slow at the first step, and then hangs at another, as the environment says."""

from __future__ import annotations

import os
import time

from fake_ranks import hang_for_ever
from nanolens.engine import faults
from nanolens.engine.runner import tensor_parallel_model
from nanolens.engine.runner.tensor_parallel_rank import BuiltRank, RankSetup


def build(setup: RankSetup) -> BuiltRank:
    """The rank that the model's would be.

    HANGING_RANK: which one, and at which step; SLOW_SUMS: seconds that each sum of its first step takes longer.
    """
    rank, step = map(int, os.environ["HANGING_RANK"].split(":"))
    slow_s = float(os.environ.get("SLOW_SUMS", "0"))
    steps = 0
    if setup.rank != rank:
        return tensor_parallel_model.build(setup)

    def forward() -> None:
        nonlocal steps
        steps += 1
        if steps == step:
            hang_for_ever()

    def slowly() -> None:
        if steps == 1:
            time.sleep(slow_s)
        move_on()

    move_on, setup.move_on = setup.move_on, slowly
    built = tensor_parallel_model.build(setup)
    faults._armed["forward"] = forward  # for as long as the process lives
    return built
