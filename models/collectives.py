"""What ranks compute together, over torch.distributed: gloo between CPUs, NCCL between GPUs of one host.

Knows tensors and ranks; nothing of models.
"""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from .parallel import Shard


def join(shard: Shard, store: Store, device: torch.device, timeout_s: float = 600.0) -> GroupCollectives:
    """Meet the other ranks; returns when all are there. One group a process; `close` leaves it.

    Args:
        shard: this rank, and how many there are.
        store: where ranks find each other: a FileStore or TCPStore that only they use.
        device: where this rank's model lies; on a GPU with its index, no two ranks the same.
        timeout_s: how long ranks wait for each other here, and on a CPU in each collective.

    Raises:
        RuntimeError: a rank did not come in time, or the backend can't start.
    """
    names = {name for _, name in socket.if_nameindex()}
    loopback = next((name for name in ("lo", "lo0") if name in names), None)
    if loopback is not None:  # ranks share a host: no port of theirs need be seen from outside
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", loopback)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=shard.rank,
        world_size=shard.size,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if device.type == "cuda" else None,
    )
    return GroupCollectives(shard, device)


class GroupCollectives:
    """`Collectives` of this process's group; from `join`."""

    def __init__(self, shard: Shard, device: torch.device) -> None:
        self._size = shard.size
        self._device = device
        self._waited_ns = 0

    def all_reduce(self, x: Tensor) -> Tensor:
        """See `Collectives`; in place."""
        began = time.monotonic_ns()
        dist.all_reduce(x)
        self._waited_ns += time.monotonic_ns() - began
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """See `Collectives`."""
        began = time.monotonic_ns()
        out = x.new_empty((self._size * x.shape[0], x.shape[1]))
        dist.all_gather_into_tensor(out, x.contiguous())
        self._waited_ns += time.monotonic_ns() - began
        return out.view(self._size, *x.shape)

    def waited(self) -> Tensor:
        """See `Collectives`."""
        return torch.tensor([self._waited_ns], device=self._device)

    def close(self) -> None:
        """Leave the group."""
        dist.destroy_process_group()
