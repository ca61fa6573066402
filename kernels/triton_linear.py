"""Products of a few rows with a weight in Triton, and the forms that join their neighbours: decode at batch 1 to 4.

Such a product costs the reading of its weight. A program takes a few rows of the weight and all of their columns; its
threads hold whole tiles in registers, so that nearly all of the weight is requested at once, and sum in float32. There
are no atomics: the same inputs give the same bits.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# mypy: disable-error-code="assignment, unreachable"
from __future__ import annotations

from typing import TypedDict, Unpack

import torch
import triton
import triton.language as tl
from torch import Tensor

from .triton_launch import launch, launches_early, start_next, wait_for_inputs

_MAX_TILES = 4  # of a weight row, requested before the first is used; more would spill registers at 4 tokens


@triton.jit
def _few_rows(
    x_ptr,
    weight_ptr,
    bias_ptr,
    norm_ptr,
    residual_ptr,
    out_ptr,
    num_tokens,
    num_outputs,
    x_stride,
    weight_stride,
    residual_stride,
    eps,
    K: tl.constexpr,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
    LANES: tl.constexpr,
    EARLY: tl.constexpr,
):
    output = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = tl.arange(0, TOKENS)
    # Rows past the end read the last row again; only the store is masked.
    weight_row = tl.minimum(output, num_outputs - 1).to(tl.int64)[None, :, None]
    x_row = tl.minimum(token, num_tokens - 1)[:, None, None]
    x_base = x_ptr + x_row * x_stride
    weight_base = weight_ptr + weight_row * weight_stride
    up_base = weight_ptr + (weight_row + num_outputs) * weight_stride
    acc = tl.zeros((TOKENS, ROWS, TILE // LANES), dtype=tl.float32)
    up_acc = acc
    squares = tl.zeros((TOKENS, 1, TILE // LANES), dtype=tl.float32)
    start_next(EARLY)
    for first in range(0, K, TILE * TILES):
        weights = ()
        ups = ()
        for tile in tl.static_range(TILES):
            column = first + tile * TILE + tl.arange(0, TILE)[None, None, :]
            weights = weights + (_load(weight_base + column, column, K, TILE * TILES),)  # noqa: RUF005, Triton has no *
            if GATED:
                ups = ups + (_load(up_base + column, column, K, TILE * TILES),)  # noqa: RUF005
        wait_for_inputs(EARLY)  # in any case a barrier that keeps the loads above ahead of those below
        for tile in tl.static_range(TILES):
            column = first + tile * TILE + tl.arange(0, TILE)[None, None, :]
            x = _load(x_base + column, column, K, TILE * TILES).to(tl.float32)
            if NORM:
                squares += _fold(x * x, LANES)
                x *= _load(norm_ptr + column, column, K, TILE * TILES).to(tl.float32)
            acc += _fold(weights[tile].to(tl.float32) * x, LANES)
            if GATED:
                up_acc += _fold(ups[tile].to(tl.float32) * x, LANES)
    y = tl.sum(acc, axis=2)
    up = tl.sum(up_acc, axis=2)
    if NORM:
        scale = tl.rsqrt(tl.sum(squares, axis=2) / K + eps)
        y *= scale
        up *= scale
    inside = (token[:, None] < num_tokens) & (output[None, :] < num_outputs)
    if BIAS:
        y += tl.load(bias_ptr + output, mask=output < num_outputs, other=0.0).to(tl.float32)[None, :]
        if GATED:
            ups_bias = tl.load(bias_ptr + num_outputs + output, mask=output < num_outputs, other=0.0)
            up += ups_bias.to(tl.float32)[None, :]
    if GATED:
        y = y / (1.0 + tl.exp(-y)) * up
    if RESIDUAL:
        residual = residual_ptr + token[:, None] * residual_stride + output[None, :]
        y += tl.load(residual, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + token[:, None] * num_outputs + output[None, :], y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _load(ptr, column, K: tl.constexpr, STEP: tl.constexpr):
    if K % STEP == 0:
        return tl.load(ptr)
    else:
        return tl.load(ptr, mask=column < K, other=0.0)


@triton.jit
def _fold(x, LANES: tl.constexpr):
    """Sum the values that one thread loaded: [A, B, C] -> [A, B, C / LANES], without talking to other threads."""
    return tl.sum(tl.reshape(x, (x.shape[0], x.shape[1], x.shape[2] // LANES, LANES)), axis=3)


class Tunables(TypedDict, total=False):
    """What can be measured: outputs and warps of a program, powers of two, and `early`, see triton_launch."""

    rows: int
    num_warps: int
    early: bool


def skinny_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, **tunables: Unpack[Tunables]) -> Tensor:
    """See `linear` in kernels/linear.py: [T, in] -> [T, out], T up to about 8."""
    return _launch(x, weight, bias, weight.shape[0], **tunables)


def norm_linear(
    x: Tensor, norm_weight: Tensor, eps: float, weight: Tensor, bias: Tensor | None = None, **tunables: Unpack[Tunables]
) -> Tensor:
    """See kernels/fused_linear.py."""
    return _launch(x, weight, bias, weight.shape[0], norm_weight=norm_weight, eps=eps, **tunables)


def norm_gated_linear(
    x: Tensor, norm_weight: Tensor, eps: float, weight: Tensor, bias: Tensor | None = None, **tunables: Unpack[Tunables]
) -> Tensor:
    """See kernels/fused_linear.py."""
    return _launch(x, weight, bias, weight.shape[0] // 2, norm_weight=norm_weight, eps=eps, gated=True, **tunables)


def linear_add(
    x: Tensor, weight: Tensor, residual: Tensor, bias: Tensor | None = None, **tunables: Unpack[Tunables]
) -> Tensor:
    """See kernels/fused_linear.py."""
    return _launch(x, weight, bias, weight.shape[0], residual=residual, **tunables)


def _launch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    outputs: int,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    residual: Tensor | None = None,
    rows: int | None = None,
    num_warps: int | None = None,
    early: bool | None = None,
) -> Tensor:
    """One product in one of its forms; None for a tunable: by the shapes."""
    tokens, size = x.shape
    x = x if x.stride(1) == 1 else x.contiguous()
    weight = weight if weight.stride(1) == 1 else weight.contiguous()
    residual = residual if residual is None or residual.stride(1) == 1 else residual.contiguous()
    out = torch.empty((tokens, outputs), dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    lanes = 16 // x.element_size()
    num_warps = num_warps or min(max(triton.next_power_of_2(size) // (32 * lanes), 1), 4)
    tile = 32 * lanes * num_warps  # one 16-byte load a thread and row
    rows = rows or _rows_for(outputs)
    early = launches_early(x) if early is None else early
    launch(_few_rows, (triton.cdiv(outputs, rows),),
        x,
        weight,
        weight if bias is None else bias,
        weight if norm_weight is None else norm_weight,
        x if residual is None else residual,
        out,
        tokens,
        outputs,
        x.stride(0),
        weight.stride(0),
        0 if residual is None else residual.stride(0),
        eps,
        K=size,
        NORM=norm_weight is not None,
        GATED=gated,
        BIAS=bias is not None,
        RESIDUAL=residual is not None,
        TOKENS=triton.next_power_of_2(tokens),
        ROWS=rows,
        TILE=tile,
        TILES=min(triton.cdiv(size, tile), _MAX_TILES // 2 if gated else _MAX_TILES),
        LANES=lanes,
        EARLY=early,
        num_warps=num_warps,
        launch_pdl=early,
    )
    return out


def _rows_for(outputs: int) -> int:
    """Outputs of a program: as many as leave two programs to each of 132 multiprocessors, up to 4; 8 for a head."""
    if outputs >= 16384:
        return 8
    return 4 if outputs >= 1024 else 2 if outputs >= 512 else 1
