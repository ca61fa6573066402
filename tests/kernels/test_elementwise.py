"""Norms, activation and rotation against float64, whatever the strides and the dtype, without touching the inputs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from nanolens.kernels.activation import silu_and_mul
from nanolens.kernels.norm import add_rms_norm, rms_norm
from nanolens.kernels.rotary import apply_rotary, rotary_tables

# Half a unit in the last place of values around 4, and a little for the intermediate steps.
TOLERANCE = {torch.float32: 4e-6, torch.bfloat16: 3e-2, torch.float16: 4e-3}
DTYPES = list(TOLERANCE)


def norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x, weight = x.double(), weight.double()
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def make_strided(kind: str, *shape: int) -> Tensor:
    """Random values behind strides of a kind."""
    generator = torch.Generator().manual_seed(sum(shape))
    *outer, inner = shape
    if kind == "contiguous":
        return torch.randn(*shape, generator=generator)
    if kind == "column_slice":
        return torch.randn(*outer, inner + 5, generator=generator)[..., 2 : 2 + inner]
    return torch.randn(*outer, inner * 2, generator=generator)[..., ::2]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["contiguous", "column_slice", "every_other"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (16, 576), (5, 3, 64)])
def test_rms_norm_equals_float64(shape: tuple[int, ...], kind: str, dtype: torch.dtype) -> None:
    x = make_strided(kind, *shape).to(dtype)
    weight = torch.linspace(0.5, 1.5, shape[-1]).to(dtype)
    before = x.clone()
    out = rms_norm(x, weight, 1e-5)
    assert out.dtype == dtype
    assert (out.double() - norm_reference(x, weight, 1e-5)).abs().max() <= TOLERANCE[dtype]
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype, half_unit", [(torch.bfloat16, 2.0**-8), (torch.float16, 2.0**-11)])
def test_rms_norm_rounds_once(dtype: torch.dtype, half_unit: float) -> None:
    x, weight = make_strided("contiguous", 8, 200).to(dtype), torch.linspace(0.5, 1.5, 200).to(dtype)
    expected = norm_reference(x, weight, 1e-5)
    assert ((rms_norm(x, weight, 1e-5).double() - expected) / expected).abs().max() <= 1.02 * half_unit


def test_rms_norm_of_large_float16_values_does_not_overflow() -> None:
    x = torch.full((1, 64), 3000.0, dtype=torch.float16)  # its squares exceed float16
    assert torch.equal(rms_norm(x, torch.ones(64, dtype=torch.float16), 1e-6), torch.ones_like(x))


def test_rms_norm_of_zeros_is_zero() -> None:
    assert torch.equal(rms_norm(torch.zeros(2, 8), torch.ones(8), 1e-6), torch.zeros(2, 8))


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm_returns_norm_and_sum_and_leaves_its_inputs(dtype: torch.dtype) -> None:
    x, residual = make_strided("every_other", 7, 33).to(dtype), make_strided("column_slice", 7, 33).to(dtype)
    weight = torch.linspace(-1, 1, 33).to(dtype)
    kept = x.clone(), residual.clone()
    normed, total = add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(total, x + residual)
    assert (normed.double() - norm_reference(total, weight, 1e-6)).abs().max() <= TOLERANCE[dtype]
    assert torch.equal(x, kept[0]) and torch.equal(residual, kept[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["contiguous", "column_slice", "every_other"])
@pytest.mark.parametrize("inner", [1, 5, 96])
def test_silu_and_mul_takes_the_gate_first(inner: int, kind: str, dtype: torch.dtype) -> None:
    x = make_strided(kind, 4, 2 * inner).to(dtype)
    before = x.clone()
    gate, up = x.double()[:, :inner], x.double()[:, inner:]
    error = silu_and_mul(x).double() - gate / (1 + (-gate).exp()) * up
    assert error.abs().max() <= TOLERANCE[dtype]
    assert torch.equal(x, before)


def rotary_reference(x: Tensor, inv_freq: Tensor, positions: Tensor, attention_scale: float) -> Tensor:
    """As complex numbers: the pair (i, i + D/2) is multiplied by exp(i * position * frequency)."""
    half = x.shape[-1] // 2
    pairs = torch.complex(x.double()[..., :half], x.double()[..., half:])
    angles = torch.outer(positions.double(), inv_freq.double())
    turned = pairs * torch.polar(torch.full_like(angles, attention_scale), angles)[:, None]
    return torch.cat((turned.real, turned.imag), dim=-1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads, head_dim", [(1, 2), (3, 64), (9, 10)])
def test_apply_rotary_turns_half_split_pairs(heads: int, head_dim: int, dtype: torch.dtype) -> None:
    inv_freq = 100.0 ** -(torch.arange(0, head_dim, 2) / head_dim)
    positions = torch.tensor([0, 17, 3, 3, 99])
    x = make_strided("every_other", 5, heads, head_dim).to(dtype)
    before = x.clone()
    out = apply_rotary(x, rotary_tables(inv_freq, 1.25, 100), positions)
    error = out.double() - rotary_reference(x, inv_freq, positions, 1.25)
    assert out.dtype == dtype and error.abs().max() <= max(TOLERANCE[dtype], 3e-5)  # float32 angles up to 99
    assert torch.equal(x, before)


def test_rotary_tables_hold_cosines_then_sines() -> None:
    table = rotary_tables(torch.tensor([0.0, 0.5]), 2.0, 4)
    assert table.shape == (4, 4) and table.dtype == torch.float32
    angles = (0.0, 1.5)
    expected = [2 * math.cos(a) for a in angles] + [2 * math.sin(a) for a in angles]
    torch.testing.assert_close(table[3], torch.tensor(expected))
