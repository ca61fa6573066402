"""Sums and gatherings of small tensors between the GPUs of one host, one kernel each, through memory that all can read.

Each GPU puts its tensor where the others see it, says so, waits until they have said so, and reads theirs: one trip
where a ring makes many. The host waits for nothing, so a CUDA graph can hold it.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# mypy: disable-error-code="assignment, unreachable"
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import globaltimer

from .triton_launch import launch

_REGION = 4096  # bytes that a program moves; always the same ones, so that its turns tell when they are free again
# Programs that wait for each other must run at the same time: so many do, 8 on each of an H200's 132 processors. On a
# smaller GPU they start in order, and the first of those that wait is met all the same.
_PROGRAMS = 1024
_WARPS = 4
CAPACITY = _REGION * _PROGRAMS  # bytes of the largest tensor


def buffer_bytes(size: int) -> int:
    """Of the memory that each of `size` ranks shows to the others: a flag a rank and program, and two tensors."""
    return 4 * size * _PROGRAMS + 2 * CAPACITY


@dataclass(frozen=True)
class Peers:
    """The memory that ranks show to each other, and where this rank stands.

    Attributes:
        addresses: [size] int64 on this GPU, where each rank's buffer of `buffer_bytes` lies. Buffers begin as zeros,
            on a multiple of 16 bytes.
        rank: this one.
        turns: [programs] int32, how often each program has run.
        waited: [1] int64, nanoseconds between begin and end of all calls so far.
    """

    addresses: Tensor
    rank: int
    turns: Tensor
    waited: Tensor

    @classmethod
    def of(cls, addresses: list[int], rank: int, waited: Tensor) -> Peers:
        """Before the first call, which every rank makes once all buffers are zero."""
        device = waited.device
        turns = torch.zeros(_PROGRAMS, dtype=torch.int32, device=device)
        return cls(torch.tensor(addresses, dtype=torch.int64, device=device), rank, turns, waited)


@triton.jit
def _exchange(
    x_ptr,
    out_ptr,
    addresses_ptr,
    turns_ptr,
    waited_ptr,
    numel,
    rank,
    SIZE: tl.constexpr,
    LANES: tl.constexpr,
    SUM: tl.constexpr,
    BLOCK: tl.constexpr,
    PROGRAMS: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    began = globaltimer()
    program = tl.program_id(0)
    turn = tl.load(turns_ptr + program) + 1
    # A buffer has two halves, used in turns. Who waits for the others in one turn knows that they have ended the turn
    # before, for kernels run one after the other: the half of that turn is free for the next.
    half = 4 * SIZE * PROGRAMS + (turn & 1) * CAPACITY
    element = program * BLOCK + tl.arange(0, BLOCK)
    inside = element < numel
    own = tl.load(addresses_ptr + rank)
    shown = tl.multiple_of((own + half).to(tl.pointer_type(x_ptr.dtype.element_ty)), 16)
    tl.store(shown + element, tl.load(x_ptr + element, mask=inside), mask=inside)
    tl.debug_barrier()
    lane = tl.arange(0, LANES)
    others = (lane < SIZE) & (lane != rank)
    theirs = tl.load(addresses_ptr + lane, mask=others, other=0) + 4 * (rank * PROGRAMS + program)
    tl.atomic_xchg(theirs.to(tl.pointer_type(tl.int32)), turn, mask=others, sem="release", scope="sys")
    for peer in tl.static_range(SIZE):
        flag = (own + 4 * (peer * PROGRAMS + program)).to(tl.pointer_type(tl.int32))
        if peer != rank:
            # A peer may be a turn ahead, and no more: its next turn waits for this rank's. Turns wrap around in days.
            while tl.atomic_add(flag, 0, sem="acquire", scope="sys") - turn < 0:
                pass
    tl.debug_barrier()
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for peer in tl.static_range(SIZE):
        address = tl.load(addresses_ptr + peer) + half
        seen = tl.multiple_of(address.to(tl.pointer_type(x_ptr.dtype.element_ty)), 16)
        value = tl.load(seen + element, mask=inside, other=0.0)
        if SUM:
            total += value.to(tl.float32)
        else:
            tl.store(out_ptr + peer * numel + element, value, mask=inside)
    if SUM:
        tl.store(out_ptr + element, total.to(out_ptr.dtype.element_ty), mask=inside)
    tl.store(turns_ptr + program, turn)
    if program == 0:
        tl.store(waited_ptr, tl.load(waited_ptr) + (globaltimer() - began))


@triton.jit
def _stamp(waited_ptr, SIGN: tl.constexpr):
    tl.store(waited_ptr, tl.load(waited_ptr) + SIGN * globaltimer())


def all_reduce(x: Tensor, peers: Peers) -> Tensor:
    """The sum of all ranks' `x`, in `x` itself: taken in float32 in the order of the ranks, so the same bits on each.

    `x` is contiguous, not empty, and of at most CAPACITY bytes; all ranks' are alike.
    """
    return _launch(x, x, peers, is_sum=True)


def all_gather(x: Tensor, peers: Peers) -> Tensor:
    """All ranks' `x` [...], of which holds what `all_reduce` says, as [size, ...] in the order of the ranks."""
    return _launch(x, x.new_empty((peers.addresses.shape[0], *x.shape)), peers, is_sum=False)


def stamp(waited: Tensor, is_end: bool) -> None:
    """Count the time on the stream between a call with `is_end` False and one with True into `waited` [1] int64."""
    launch(_stamp, (1,), waited, SIGN=1 if is_end else -1, num_warps=1)


def _launch(x: Tensor, out: Tensor, peers: Peers, is_sum: bool) -> Tensor:
    size, block = peers.addresses.shape[0], _REGION // x.element_size()
    launch(_exchange, (triton.cdiv(x.numel(), block),),
        x, out, peers.addresses, peers.turns, peers.waited, x.numel(), peers.rank,
        SIZE=size, LANES=triton.next_power_of_2(size), SUM=is_sum, BLOCK=block, PROGRAMS=_PROGRAMS, CAPACITY=CAPACITY,
        num_warps=_WARPS,
    )  # fmt: skip
    return out
