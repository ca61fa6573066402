"""Norms, activation and the joined QKV kernel on a GPU against float64."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from gpu_checks import BOUNDS, assert_close_to_float64, need_gpu
from nanolens.kernels.activation import silu_and_mul, torch_silu_and_mul
from nanolens.kernels.norm import add_rms_norm, rms_norm
from nanolens.kernels.qkv import split_norm_rope_store, store_kv
from nanolens.kernels.rotary import rotary_tables
from poison import poisoned_memory

pytestmark = pytest.mark.gpu
need_gpu()

DTYPES = list(BOUNDS)


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    with poisoned_memory():
        yield


def make(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def norm64(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    if weight is None:
        return x.double()
    return x.double() * (x.double().pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, size", [(1, 1024), (256, 1024), (3, 576), (2, 1), (5, 5120), (16385, 64)])
def test_norms(rows: int, size: int, dtype: torch.dtype) -> None:
    x, residual, weight = (
        make(rows, size + 8, dtype=dtype)[:, :size],
        make(rows, size, dtype=dtype),
        make(size, dtype=dtype),
    )
    assert_close_to_float64(rms_norm(x, weight, 1e-6), norm64(x, weight, 1e-6))
    normed, total = add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(total, x + residual)
    assert_close_to_float64(normed, norm64(total, weight, 1e-6))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, inner", [(1, 3072), (256, 3072), (7, 1), (3, 1536), (70000, 96)])
def test_silu_and_mul(rows: int, inner: int, dtype: torch.dtype) -> None:
    x = make(rows, 2 * inner + 3, dtype=dtype)[:, : 2 * inner]
    assert_close_to_float64(silu_and_mul(x), torch_silu_and_mul(x.double()))


def rotate64(x: Tensor, cos_sin: Tensor, positions: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angles = cos_sin.double()[positions][:, None]
    low, high, cos, sin = x[..., :half], x[..., half:], angles[..., :half], angles[..., half:]
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("hq, hkv", [(16, 8), (9, 3), (14, 2), (1, 1)])
@pytest.mark.parametrize("block_size", [16, 256])
def test_qkv(block_size: int, hq: int, hkv: int, head_dim: int, has_norms: bool, dtype: torch.dtype) -> None:
    tokens, pages = 33, 1024 // block_size
    qkv = make(tokens, (hq + 2 * hkv) * head_dim, dtype=dtype)
    q_norm, k_norm = (make(head_dim, dtype=dtype) for _ in range(2)) if has_norms else (None, None)
    table = rotary_tables(1e4 ** -(torch.arange(0, head_dim, 2) / head_dim), 1.0, 4096, "cuda")
    positions = torch.randint(0, 4096, (tokens,), device="cuda")
    slots = torch.randperm(1024, device="cuda")[:tokens]
    slots[::5] = -1
    key_cache, value_cache = (torch.empty(pages, block_size, hkv, head_dim, dtype=dtype, device="cuda") for _ in "kv")
    query = split_norm_rope_store(
        qkv, positions, table, q_norm, k_norm, 1e-6, key_cache, value_cache, slots, hq, hkv, head_dim
    )
    q, k, v = qkv.view(tokens, -1, head_dim).split((hq, hkv, hkv), dim=1)
    assert query.is_contiguous()
    assert_close_to_float64(query, rotate64(norm64(q, q_norm, 1e-6), table, positions))
    stored = slots >= 0
    for cache, expected in (
        (key_cache, rotate64(norm64(k, k_norm, 1e-6), table, positions)),
        (value_cache, v.double()),
    ):
        assert_close_to_float64(cache.view(-1, hkv, head_dim)[slots[stored]], expected[stored])
        assert cache.view(1024, -1).isnan().all(dim=1).sum() == 1024 - stored.sum()  # nothing else was written


@pytest.mark.parametrize("dtype", DTYPES)
def test_store_kv_beyond_two_to_the_31st_element(dtype: torch.dtype) -> None:
    hkv, head_dim, block_size = 8, 128, 16
    blocks = 2**31 // (hkv * head_dim * block_size) + 2
    if torch.cuda.mem_get_info()[0] < 3 * blocks * block_size * hkv * head_dim * dtype.itemsize:
        pytest.skip("needs the memory for two such caches")
    caches = [torch.zeros(blocks, block_size, hkv, head_dim, dtype=dtype, device="cuda") for _ in "kv"]
    key, value = make(3, hkv, head_dim, dtype=dtype), make(3, hkv, head_dim, dtype=dtype)
    slots = torch.tensor([blocks * block_size - 1, -1, 0], device="cuda")
    store_kv(key, value, caches[0], caches[1], slots)
    for cache, new in zip(caches, (key, value), strict=True):
        assert torch.equal(cache[-1, -1], new[0]) and torch.equal(cache[0, 0], new[2])
        assert cache[1, 0].abs().max() == 0


def test_a_captured_graph_gives_what_eager_calls_give() -> None:
    x, residual, weight = (make(*shape, dtype=torch.bfloat16) for shape in ((4, 1024), (4, 1024), (1024,)))

    def step() -> Tensor:
        normed, total = add_rms_norm(x, residual, weight, 1e-6)
        return silu_and_mul(torch.cat((rms_norm(total, weight, 1e-6), normed), dim=-1))

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    x.copy_(make(4, 1024, dtype=torch.bfloat16))
    graph.replay()
    assert torch.equal(out, step())
