"""What ranks compute together: over gloo between CPUs; between GPUs of one host by kernels of our own, or NCCL.

Knows tensors and ranks; nothing of models.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from ..kernels.dispatch import on_gpu
from .parallel import Shard

if TYPE_CHECKING:
    from ..kernels.triton_all_reduce import Peers

logger = logging.getLogger(__name__)

# Our kernel reads each peer's whole tensor, so that beyond so many bytes in all NCCL, which reads shares, is faster.
_MAX_READ_BYTES = 4 << 20

# torch 2.13 has given the one a new name, and warns of the old one.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def _nothing() -> None:
    pass


def join(
    shard: Shard,
    store: Store,
    device: torch.device,
    timeout_s: float = 600.0,
    on_call: Callable[[], None] = _nothing,
) -> GroupCollectives:
    """Meet the other ranks; returns when all are there. One group a process; `close` leaves it.

    Args:
        shard: this rank, and how many there are.
        store: where ranks find each other: a FileStore or TCPStore that only they use.
        device: where this rank's model lies; a GPU with its index, no two ranks the same. It becomes the current one.
        timeout_s: how long ranks wait for each other here, and on a CPU in each collective.
        on_call: called whenever this rank comes to a collective, before it waits for others.

    Raises:
        RuntimeError: a rank did not come in time, or the backend can't start.
    """
    names = {name for _, name in socket.if_nameindex()}
    loopback = next((name for name in ("lo", "lo0") if name in names), None)
    if loopback is not None:  # ranks share a host: no port of theirs need be seen from outside
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", loopback)
    is_gpu = device.type == "cuda"
    if is_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if is_gpu else "gloo",
        store=store,
        rank=shard.rank,
        world_size=shard.size,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if is_gpu else None,
    )
    return GpuCollectives(shard, device, on_call) if is_gpu else GroupCollectives(shard, on_call)


class GroupCollectives:
    """`Collectives` of this process's group, on CPUs; from `join`."""

    def __init__(self, shard: Shard, on_call: Callable[[], None]) -> None:
        self._size = shard.size
        self._on_call = on_call
        self._waited_ns = self._came_ns = 0

    def all_reduce(self, x: Tensor) -> Tensor:
        """See `Collectives`; in place."""
        self._on_call()
        began = time.monotonic_ns()
        self._came_ns += began
        dist.all_reduce(x)
        self._waited_ns += time.monotonic_ns() - began
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """See `Collectives`."""
        self._on_call()
        began = time.monotonic_ns()
        self._came_ns += began
        out = _gather(x, self._size)
        self._waited_ns += time.monotonic_ns() - began
        return out

    def waited(self) -> Tensor:
        """See `Collectives`."""
        return torch.tensor([self._waited_ns])

    def came_ns(self) -> int:
        """The sum of the times (CLOCK_MONOTONIC) at which this rank has come to its collectives so far; 0 on GPUs."""
        return self._came_ns

    def close(self) -> None:
        """Leave the group."""
        dist.destroy_process_group()


class GpuCollectives(GroupCollectives):
    """The same between GPUs: small tensors by a kernel over shared memory, large ones by NCCL."""

    def __init__(self, shard: Shard, device: torch.device, on_call: Callable[[], None]) -> None:
        super().__init__(shard, on_call)
        self._waited = torch.zeros(1, dtype=torch.int64, device=device)
        self._small = _MAX_READ_BYTES // (shard.size - 1)
        self._memory, self._peers = _show_memory(shard, device, self._waited)

    def all_reduce(self, x: Tensor) -> Tensor:
        """See `Collectives`; in place."""
        self._on_call()
        if self._peers is not None and 0 < x.nbytes <= self._small:
            out: Tensor = on_gpu("triton_all_reduce", "all_reduce")(x, self._peers)
            return out
        stamp = on_gpu("triton_all_reduce", "stamp")
        stamp(self._waited, is_end=False)
        dist.all_reduce(x)
        stamp(self._waited, is_end=True)
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """See `Collectives`."""
        self._on_call()
        x = x.contiguous()
        if self._peers is not None and 0 < x.nbytes <= self._small:
            out: Tensor = on_gpu("triton_all_reduce", "all_gather")(x, self._peers)
            return out
        stamp = on_gpu("triton_all_reduce", "stamp")
        stamp(self._waited, is_end=False)
        out = _gather(x, self._size)
        stamp(self._waited, is_end=True)
        return out

    def waited(self) -> Tensor:
        """See `Collectives`."""
        return self._waited.clone()

    def close(self) -> None:
        """Leave the group. What was captured with these collectives can't be replayed afterwards."""
        self._memory = self._peers = None
        super().close()


def _gather(x: Tensor, size: int) -> Tensor:
    out = x.new_empty((size * x.shape[0], *x.shape[1:]))
    _all_gather(out, x.contiguous())
    return out.view(size, *x.shape)


def _show_memory(shard: Shard, device: torch.device, waited: Tensor) -> tuple[Tensor | None, Peers | None]:
    """Memory of this GPU that all others see, and theirs; (None, None) on all ranks where one can't share."""
    import torch.distributed._symmetric_memory as symmetric

    from ..kernels.triton_all_reduce import Peers, buffer_bytes

    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")  # of no use here, and not everywhere allowed
    agreed = torch.ones(1, device=device)
    addresses: list[int] = []
    memory: Tensor | None = None
    try:
        memory = symmetric.empty(buffer_bytes(shard.size), dtype=torch.uint8, device=device)
        handle = symmetric.rendezvous(memory, cast(dist.ProcessGroup, dist.group.WORLD))
        offset = memory.data_ptr() - handle.buffer_ptrs[shard.rank]
        addresses = [each + offset for each in handle.buffer_ptrs]
        memory.zero_()
    except RuntimeError as error:
        logger.warning("rank %d can't show its memory to others, so NCCL carries everything: %s", shard.rank, error)
        agreed.zero_()
    dist.all_reduce(agreed, dist.ReduceOp.MIN)  # after it every buffer is zero
    if memory is None or not agreed.item():
        return None, None
    return memory, Peers.of(addresses, shard.rank, waited)
