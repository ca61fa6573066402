"""SwiGLU's elementwise part in Triton: gate and up are read once, the product is written once."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .triton_launch import launch, launches_early, start_next, wait_for_inputs
from .triton_norm import as_rows


@triton.jit
def _silu_and_mul(gate_up_ptr, out_ptr, row_stride, inner, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    start_next(EARLY)
    wait_for_inputs(EARLY)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < inner
    gate = tl.load(gate_up_ptr + row * row_stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * row_stride + inner + column, mask=inside, other=0.0).to(tl.float32)
    product = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * inner + column, product.to(out_ptr.dtype.element_ty), mask=inside)


def silu_and_mul(gate_up: Tensor, *, block: int = 1024, num_warps: int = 4) -> Tensor:
    """See kernels/activation.py. `block`: columns of a program, a power of two; 1024 for 4 warps are 16-byte loads."""
    inner = gate_up.shape[-1] // 2
    rows = as_rows(gate_up)
    out = torch.empty((*gate_up.shape[:-1], inner), dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        early = launches_early(rows)
        launch(_silu_and_mul, (rows.shape[0], triton.cdiv(inner, block)),
            rows, out, rows.stride(0), inner, BLOCK=block, EARLY=early, num_warps=num_warps, launch_pdl=early
        )
    return out
