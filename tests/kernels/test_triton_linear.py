"""Products of a few rows in Triton, interpreted, alone and joined with their neighbours, against torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from poison import poisoned_memory
from triton_interpreter import load_interpreter

load_interpreter()

from nanolens.kernels import fused_linear, triton_linear  # noqa: E402

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
DTYPES = list(TOLERANCE)
# in, out: below one tile, tiles that do not divide the columns, more columns than one turn of the loop, odd outputs.
SHAPES = [(24, 1), (576, 9), (1024, 6), (4608, 3)]


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    with poisoned_memory():
        yield


def make(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape) * scale).to(dtype)


def assert_near(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert actual.dtype == dtype and actual.shape == expected.shape
    if expected.numel():
        assert (actual.double() - expected).norm() <= TOLERANCE[dtype] * expected.norm()


def double(*tensors: Tensor | None) -> list[Tensor | None]:
    return [None if tensor is None else tensor.double() for tensor in tensors]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size, outputs", SHAPES)
@pytest.mark.parametrize("tokens", [0, 1, 2, 3, 4, 8])
def test_skinny_linear(tokens: int, size: int, outputs: int, dtype: torch.dtype) -> None:
    x, weight = make(tokens, size, dtype=dtype), make(outputs, size, dtype=dtype)
    assert_near(triton_linear.skinny_linear(x, weight), x.double() @ weight.double().T, dtype)


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
def test_skinny_linear_with_any_rows_a_program(rows: int) -> None:
    x, weight, bias = (make(*shape, dtype=torch.float32) for shape in ((3, 200), (13, 200), (13,)))
    out = triton_linear.skinny_linear(x, weight, bias, rows=rows)
    assert_near(out, x.double() @ weight.double().T + bias.double(), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("size, outputs", SHAPES)
@pytest.mark.parametrize("tokens", [1, 3])
def test_joined_products(tokens: int, size: int, outputs: int, has_bias: bool, dtype: torch.dtype) -> None:
    x, norm_weight = make(tokens, size, dtype=dtype, scale=3), make(size, dtype=dtype)
    weight = make(2 * outputs, size, dtype=dtype, scale=size**-0.5)
    bias = make(2 * outputs, dtype=dtype) if has_bias else None
    residual = make(tokens, 2 * outputs, dtype=dtype)
    x64, norm64, weight64, bias64, residual64 = double(x, norm_weight, weight, bias, residual)
    for name in ("norm_linear", "norm_gated_linear"):
        out = getattr(triton_linear, name)(x, norm_weight, 1e-5, weight, bias)
        assert_near(out, getattr(fused_linear, name)(x64, norm64, 1e-5, weight64, bias64), dtype)
    out = triton_linear.linear_add(x, weight, residual, bias)
    assert_near(out, fused_linear.linear_add(x64, weight64, residual64, bias64), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["norm_linear", "norm_gated_linear"])
def test_the_norm_of_a_row_near_zero_is_held_down_by_eps(name: str, dtype: torch.dtype) -> None:
    x, norm_weight, weight = make(2, 64, dtype=dtype, scale=1e-4), make(64, dtype=dtype), make(8, 64, dtype=dtype)
    expected = getattr(fused_linear, name)(x.double(), norm_weight.double(), 1e-5, weight.double())
    assert_near(getattr(triton_linear, name)(x, norm_weight, 1e-5, weight), expected, dtype)


def test_strided_inputs_and_weights() -> None:
    x, residual = torch.randn(3, 80)[:, ::2], torch.randn(40, 3).T
    weight, norm_weight = torch.randn(40, 90)[:, 7:47], torch.randn(40)
    expected = residual + x @ weight.T
    torch.testing.assert_close(triton_linear.linear_add(x, weight, residual), expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(triton_linear.skinny_linear(x, weight.T.contiguous().T), x @ weight.T)
    expected = fused_linear.norm_linear(x, norm_weight, 1e-5, weight)
    torch.testing.assert_close(triton_linear.norm_linear(x, norm_weight, 1e-5, weight), expected, rtol=1e-5, atol=1e-4)


def test_inputs_stay_as_they_are() -> None:
    x, weight, residual = torch.randn(2, 64), torch.randn(8, 64), torch.randn(2, 8)
    before = x.clone(), weight.clone(), residual.clone()
    triton_linear.linear_add(x, weight, residual)
    assert all(torch.equal(a, b) for a, b in zip((x, weight, residual), before, strict=True))
