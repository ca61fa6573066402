"""Ranks that share one GPU, for tests where there is only one: they take turns on it, so nothing can be timed.

NCCL refuses two ranks on a GPU: gloo lets them meet, and carries what is too large for our kernels, never in a graph.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from nanolens.engine.runner import tensor_parallel_model
from nanolens.engine.runner.tensor_parallel_rank import BuiltRank, RankSetup

TARGET = "one_gpu:build"


def share_gpu() -> torch.device:
    """The GPU for this process's rank, whichever it is; `models.collectives.join` then takes it from several."""
    os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    init = dist.init_process_group

    def init_gloo(backend: str, **options: Any) -> None:
        init("gloo", **(options | {"device_id": None}))

    dist.init_process_group = init_gloo
    return torch.device("cuda", 0)


def build(setup: RankSetup) -> BuiltRank:
    """The rank that the model's would be."""
    device = share_gpu()
    tensor_parallel_model.rank_device = lambda name, rank, size: device
    return tensor_parallel_model.build(setup)
