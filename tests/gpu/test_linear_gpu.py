"""Products of a few rows on a GPU against float64, alone and joined with their neighbours, eager and in a graph."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from gpu_checks import BOUNDS, assert_close_to_float64, need_gpu
from nanolens.kernels import fused_linear
from nanolens.kernels.linear import MAX_FEW_ROWS, pack_linear
from poison import poisoned_memory

pytestmark = pytest.mark.gpu
need_gpu()

# Qwen3-0.6B's products, SmolLM2's widths, more columns than one turn of the loop, odd sizes.
SHAPES = [(1024, 4096), (2048, 1024), (1024, 6144), (3072, 1024), (576, 960), (1536, 576), (14336, 64), (33, 6)]


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    with poisoned_memory():
        yield


def make(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape, device="cuda") * scale).to(dtype)


@pytest.mark.parametrize("dtype", list(BOUNDS))
@pytest.mark.parametrize("size, outputs", SHAPES)
@pytest.mark.parametrize("tokens", range(MAX_FEW_ROWS + 2))
def test_packed_linear(tokens: int, size: int, outputs: int, dtype: torch.dtype) -> None:
    x, weight, bias = make(tokens, size, dtype=dtype), make(outputs, size, dtype=dtype), make(outputs, dtype=dtype)
    assert_close_to_float64(pack_linear(weight, bias)(x), x.double() @ weight.double().T + bias.double())


def test_packed_linear_of_a_head() -> None:
    x, weight = make(1, 1024, dtype=torch.bfloat16), make(151936, 1024, dtype=torch.bfloat16)
    assert_close_to_float64(pack_linear(weight)(x), x.double() @ weight.double().T)


@pytest.mark.parametrize("dtype", list(BOUNDS))
@pytest.mark.parametrize("size, outputs", SHAPES)
@pytest.mark.parametrize("tokens", range(1, MAX_FEW_ROWS + 1))
@pytest.mark.parametrize("has_bias", [False, True])
def test_joined_products(has_bias: bool, tokens: int, size: int, outputs: int, dtype: torch.dtype) -> None:
    x, norm_weight = make(tokens, size, dtype=dtype, scale=3), make(size, dtype=dtype)
    weight, residual = make(outputs, size, dtype=dtype, scale=size**-0.5), make(tokens, outputs, dtype=dtype)
    bias = make(outputs, dtype=dtype) if has_bias else None
    on_cpu = [None if t is None else t.cpu().double() for t in (x, norm_weight, weight, bias, residual)]
    x64, norm64, weight64, bias64, residual64 = on_cpu
    for name in ("norm_linear", "norm_gated_linear"):
        expected = getattr(fused_linear, name)(x64, norm64, 1e-6, weight64, bias64)
        assert_close_to_float64(getattr(fused_linear, name)(x, norm_weight, 1e-6, weight, bias), expected.cuda())
    expected = fused_linear.linear_add(x64, weight64, residual64, bias64)
    assert_close_to_float64(fused_linear.linear_add(x, weight, residual, bias), expected.cuda())


def test_a_chain_of_products_waits_for_each_result_and_repeats_its_bits() -> None:
    size, kind = 1024, torch.float32
    norm_weight = make(size, dtype=kind)
    gated = [make(2 * size, size, dtype=kind, scale=size**-0.5) for _ in range(20)]
    plain = [make(size, size, dtype=kind, scale=size**-0.5) for _ in range(20)]
    start = make(1, size, dtype=kind)

    def chain() -> Tensor:
        x = start
        for up, down in zip(gated, plain, strict=True):
            x = fused_linear.linear_add(fused_linear.norm_gated_linear(x, norm_weight, 1e-6, up), down, x)
        return x

    expected = start.cpu().double()
    for up, down in zip(gated, plain, strict=True):
        inner = fused_linear.norm_gated_linear(expected, norm_weight.cpu().double(), 1e-6, up.cpu().double())
        expected = fused_linear.linear_add(inner, down.cpu().double(), expected)
    first = chain()
    assert_close_to_float64(first, expected.cuda())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = chain()
    for _ in range(20):
        graph.replay()
        assert torch.equal(out, first)
        assert torch.equal(chain(), first)
