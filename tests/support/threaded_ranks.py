"""Ranks of one model as threads of one process, which meet at a barrier in each collective."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from nanolens.models.parallel import Collectives, Shard

PATIENCE_S = 60
Result = TypeVar("Result")


class _Meeting:
    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=PATIENCE_S)
        self.brought = [torch.empty(0)] * size


class ThreadCollectives:
    """One thread's side."""

    def __init__(self, rank: int, meeting: _Meeting) -> None:
        self.rank, self.meeting = rank, meeting
        self.calls: list[tuple[str, tuple[int, ...]]] = []

    def all_reduce(self, x: Tensor) -> Tensor:
        self.calls.append(("all_reduce", tuple(x.shape)))
        return x.copy_(torch.stack(self._exchange(x)).sum(0))

    def all_gather(self, x: Tensor) -> Tensor:
        self.calls.append(("all_gather", tuple(x.shape)))
        return torch.stack(self._exchange(x))

    def waited(self) -> Tensor:
        return torch.zeros(1, dtype=torch.int64)

    def _exchange(self, x: Tensor) -> list[Tensor]:
        meeting = self.meeting
        meeting.brought[self.rank] = x.clone()
        meeting.barrier.wait()
        found = list(meeting.brought)
        meeting.barrier.wait()
        return found


def on_ranks(size: int, work: Callable[[Shard, Collectives], Result]) -> list[Result]:
    """What `work` returns on each rank. Where it raises on one, the others give up too."""
    meeting = _Meeting(size)

    def one(rank: int) -> Result:
        try:
            return work(Shard(rank, size), ThreadCollectives(rank, meeting))
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as threads:
        futures = [threads.submit(one, rank) for rank in range(size)]
    errors = [error for error in (each.exception() for each in futures) if error is not None]
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [each.result() for each in futures]
