"""Builds one rank's runner: its part of the model on its own device, and the way to the other ranks."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import time
from datetime import timedelta

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ...errors import EngineDead, InvalidConfig
from ...models import load_model
from ...models.collectives import join
from ...models.parallel import Shard
from ..config import EngineConfig
from .launched import LaunchedStep
from .load import pick_device
from .model_runner import ModelRunner
from .split_head import SplitHead
from .swap_file import path_of_rank
from .tensor_parallel_rank import BuiltRank, RankSetup

HOST = "127.0.0.1"  # ranks share a machine
MEET_S = 600.0  # for ranks to find each other


def build(setup: RankSetup) -> BuiltRank:
    """Load this rank's part, meet the other ranks, and agree on the pool.

    Raises:
        InvalidConfig, UnknownModel, ModelLoadError: what is wrong, in words.
        EngineDead: the others did not come.
    """
    device = rank_device(setup.config.device, setup.rank, setup.size)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    shard = Shard(setup.rank, setup.size)
    config = rank_config(setup.config, setup.rank)
    patience_s = max(MEET_S, 2 * config.rank_timeout_s)  # the driver, which can name a rank, comes first
    setup.enter(2)
    began = time.monotonic()
    try:
        collectives = join(shard, _meet(setup, patience_s), device, patience_s, setup.move_on)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        within = f" within {patience_s:g} s" if time.monotonic() - began >= patience_s else ""
        raise EngineDead(f"could not meet the other ranks{within}: {reason}") from error
    setup.enter(3)
    model = load_model(config.model, config.dtype, device, shard, collectives)
    setup.enter(4)
    split = SplitHead(model, collectives, setup.num_tokens) if setup.size > 1 else None
    runner = ModelRunner(
        model, config, device, num_valid_tokens=setup.num_tokens, agree=setup.agree, waited=collectives.waited,
        split=split,
    )  # fmt: skip
    return BuiltRank(
        runner, device.type == "cuda", _is_done, runner.num_filed, collectives.close, collectives.came_ns,
        waited_ns=int(collectives.waited()),
    )  # fmt: skip


def _is_done(handle: LaunchedStep | None) -> bool:
    return handle is None or handle.readback.is_done()


def rank_device(name: str, rank: int, size: int) -> torch.device:
    """The device of a rank: its own GPU, or the CPU.

    Raises:
        InvalidConfig: there are fewer GPUs than ranks.
    """
    kind = pick_device(name, torch.cuda.is_available())
    if kind == "cpu":
        return torch.device("cpu")
    if torch.cuda.device_count() < size:
        raise InvalidConfig(
            f"tensor_parallel_size={size}: torch sees {torch.cuda.device_count()} GPUs, and each rank needs its own"
        )
    return torch.device("cuda", rank)


def rank_config(config: EngineConfig, rank: int) -> EngineConfig:
    """The settings with what can't be shared made the rank's own: its swap file stands beside that of rank 0."""
    if config.swap_path is None:
        return config
    return dataclasses.replace(config, swap_path=path_of_rank(config.swap_path, rank))


def _meet(setup: RankSetup, timeout_s: float) -> TCPStore:
    """Where the ranks find each other: at rank 0, on a free port that only this machine sees."""
    timeout = timedelta(seconds=timeout_s)
    if setup.rank == 0:
        with contextlib.closing(socket.socket()) as listener:
            listener.bind((HOST, 0))
            port = listener.getsockname()[1]
            store = TCPStore(
                HOST, port, setup.size, is_master=True, timeout=timeout, wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )  # fmt: skip
        setup.publish(str(port))
        return store
    return TCPStore(HOST, int(setup.address()), setup.size, is_master=False, timeout=timeout)
