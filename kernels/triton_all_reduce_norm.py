"""The sum over GPUs of a sublayer's output, its addition to the residual stream and the norm, in one kernel.

A program takes a row: it shows its own, meets the others' programs of that row, and reads their rows. What it rounds,
and how it adds, is what `triton_all_reduce` and `triton_norm` do one after the other, so that the bits are theirs.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# mypy: disable-error-code="assignment, unreachable"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import globaltimer

from .triton_all_reduce import MAX_ROWS, ROW_BYTES, Peers, meet, rows_offset
from .triton_launch import launch, launches_early, start_next, wait_for_inputs
from .triton_norm import as_rows, scaled, warps_for


@triton.jit
def _sum_add_norm(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    total_ptr,
    addresses_ptr,
    turns_ptr,
    waited_ptr,
    x_stride,
    residual_stride,
    size,
    rank,
    eps,
    SIZE: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
    PROGRAMS: tl.constexpr,
    OFFSET: tl.constexpr,
    ROW_BYTES: tl.constexpr,
    EARLY: tl.constexpr,
):
    program = tl.program_id(0)
    row = program.to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < size
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    start_next(EARLY)
    wait_for_inputs(EARLY)
    began = globaltimer()
    turn = tl.load(turns_ptr + program) + 1
    # As in `_exchange`: this program alone has this place, two times, for its turns by turns.
    place = OFFSET + ((turn & 1) * PROGRAMS + program) * ROW_BYTES
    own = tl.load(addresses_ptr + rank)
    shown = tl.multiple_of((own + place).to(tl.pointer_type(x_ptr.dtype.element_ty)), 16)
    brought = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0)
    tl.store(shown + column, brought, mask=inside)
    residual = tl.load(residual_ptr + row * residual_stride + column, mask=inside, other=0.0)
    meet(own, addresses_ptr, turn, rank, SIZE, LANES, PROGRAMS)
    x = tl.zeros((BLOCK,), dtype=tl.float32)
    for peer in tl.static_range(SIZE):
        address = tl.load(addresses_ptr + peer) + place
        seen = tl.multiple_of(address.to(tl.pointer_type(x_ptr.dtype.element_ty)), 16)
        value = tl.load(seen + column, mask=inside & (rank != peer), other=0.0)
        x += tl.where(rank == peer, brought, value).to(tl.float32)
    # Rounded twice, as where the sum is stored before it is added.
    x = x.to(x_ptr.dtype.element_ty).to(tl.float32) + residual.to(tl.float32)
    total = x.to(total_ptr.dtype.element_ty)
    tl.store(total_ptr + row * size + column, total, mask=inside)
    out = scaled(total.to(tl.float32), weight, size, eps).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * size + column, out, mask=inside)
    tl.store(turns_ptr + program, turn)
    if program == 0:
        tl.store(waited_ptr, tl.load(waited_ptr) + (globaltimer() - began))


def fits(x: Tensor) -> bool:
    """Whether `all_reduce_add_norm` takes `x` [..., H]: not empty, rows neither too many nor too long, H in 16s.

    Rows of other lengths begin anywhere, and a norm of those adds in another order.
    """
    size = x.shape[-1]
    return x.numel() > 0 and size % 16 == 0 and size * x.element_size() <= ROW_BYTES and x.numel() // size <= MAX_ROWS


def all_reduce_add_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, peers: Peers) -> tuple[Tensor, Tensor]:
    """`add_rms_norm` of the sum of all ranks' `x`, with the bits that `all_reduce` and `add_rms_norm` give.

    Args:
        x: [..., H] of which `fits` is true, this rank's; all ranks' are alike. It is left as it is.
        residual: [..., H], the same on all ranks.
        weight: [H].
        eps: as in `rms_norm`.
        peers: the ranks' memory.

    Returns:
        (normalised sum, sum), both new tensors in the dtype of `x`, the same bits on all ranks.
    """
    size, ranks = x.shape[-1], peers.addresses.shape[0]
    rows, residual_rows = as_rows(x), as_rows(residual)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = torch.empty_like(out)
    block, early = triton.next_power_of_2(size), launches_early(x)
    launch(_sum_add_norm, (rows.shape[0],),
        rows, residual_rows, weight, out, total, peers.addresses, peers.turns, peers.waited,
        rows.stride(0), residual_rows.stride(0), size, peers.rank, eps,
        SIZE=ranks, LANES=triton.next_power_of_2(ranks), BLOCK=block, PROGRAMS=MAX_ROWS, OFFSET=rows_offset(ranks),
        ROW_BYTES=ROW_BYTES, EARLY=early, num_warps=warps_for(block), launch_pdl=early,
    )  # fmt: skip
    return out, total
