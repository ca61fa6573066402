"""RMSNorm in Triton, alone and joined with the residual addition: one program a row, one pass over memory."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .triton_launch import launch, launches_early, start_next, wait_for_inputs


@triton.jit
def _norm(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    total_ptr,
    x_stride,
    residual_stride,
    size,
    eps,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < size
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    start_next(EARLY)
    wait_for_inputs(EARLY)
    x = tl.load(x_ptr + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(residual_ptr + row * residual_stride + column, mask=inside, other=0.0).to(tl.float32)
        # The norm is that of the sum as it is stored, so that reading it back gives the same norm.
        total = x.to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + row * size + column, total, mask=inside)
        x = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / size + eps)
    tl.store(out_ptr + row * size + column, (x * scale * weight).to(out_ptr.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, num_warps: int | None = None) -> Tensor:
    """See kernels/norm.py. `num_warps`: of a program; None: 8 values a thread, one 16-byte load."""
    size = x.shape[-1]
    rows = as_rows(x)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if rows.shape[0]:
        block, early = triton.next_power_of_2(size), launches_early(x)
        launch(_norm, (rows.shape[0],),
            rows, rows, weight, out, out, rows.stride(0), 0, size, eps,
            ADD=False, BLOCK=block, EARLY=early, num_warps=num_warps or warps_for(block), launch_pdl=early,
        )  # fmt: skip
    return out


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, num_warps: int | None = None
) -> tuple[Tensor, Tensor]:
    """See kernels/norm.py. `num_warps`: as in `rms_norm`."""
    size = x.shape[-1]
    rows, residual_rows = as_rows(x), as_rows(residual)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = torch.empty_like(out)
    if rows.shape[0]:
        block, early = triton.next_power_of_2(size), launches_early(x)
        launch(_norm, (rows.shape[0],),
            rows, residual_rows, weight, out, total, rows.stride(0), residual_rows.stride(0), size, eps,
            ADD=True, BLOCK=block, EARLY=early, num_warps=num_warps or warps_for(block), launch_pdl=early,
        )  # fmt: skip
    return out, total


def as_rows(x: Tensor) -> Tensor:
    """[..., H] as [rows, H] whose last dimension is contiguous; a copy only where the strides demand it."""
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


def warps_for(block: int) -> int:
    """Warps for a program over `block` 16-bit values: 8 a thread, one 16-byte load, from 1 to 16 warps."""
    return min(max(block // 256, 1), 16)
