"""Norms, activation and the joined QKV kernel in Triton, interpreted, against their torch references."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from poison import poisoned_memory
from triton_interpreter import load_interpreter

load_interpreter()

from nanolens.kernels import triton_activation, triton_norm, triton_qkv  # noqa: E402
from nanolens.kernels.activation import torch_silu_and_mul  # noqa: E402
from nanolens.kernels.norm import torch_add_rms_norm, torch_rms_norm  # noqa: E402
from nanolens.kernels.qkv import torch_split_norm_rope_store, torch_store_kv  # noqa: E402
from nanolens.kernels.rotary import rotary_tables  # noqa: E402

# A unit in the last place of values below 8: the references round twice where the kernels round once.
TOLERANCE = {torch.float32: 4e-6, torch.bfloat16: 4e-2, torch.float16: 5e-3}
DTYPES = list(TOLERANCE)
STRIDES = ["contiguous", "column_slice", "every_other"]


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    with poisoned_memory():
        yield


def make(kind: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random values, drawn afresh in each test, behind strides of a kind."""
    *outer, inner = shape
    if kind == "contiguous":
        return torch.randn(*shape).to(dtype)
    if kind == "column_slice":
        return torch.randn(*outer, inner + 5).to(dtype)[..., 2 : 2 + inner]
    return torch.randn(*outer, inner * 2).to(dtype)[..., ::2]


def assert_near(actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.float(), expected.float(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", STRIDES)
@pytest.mark.parametrize("shape", [(0, 8), (1, 1), (3, 7), (5, 576), (2, 3, 64), (2, 1000)])
def test_rms_norm(shape: tuple[int, ...], kind: str, dtype: torch.dtype) -> None:
    x, weight = make(kind, *shape, dtype=dtype), make("contiguous", shape[-1], dtype=dtype)
    before = x.clone()
    assert_near(triton_norm.rms_norm(x, weight, 1e-5), torch_rms_norm(x, weight, 1e-5))
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", STRIDES)
@pytest.mark.parametrize("shape", [(0, 8), (1, 1), (7, 33), (2, 576), (2, 3, 64)])
def test_add_rms_norm(shape: tuple[int, ...], kind: str, dtype: torch.dtype) -> None:
    x, residual = make(kind, *shape, dtype=dtype), make("column_slice", *shape, dtype=dtype)
    weight = make("contiguous", shape[-1], dtype=dtype)
    before = x.clone(), residual.clone()
    normed, total = triton_norm.add_rms_norm(x, residual, weight, 1e-6)
    expected, expected_total = torch_add_rms_norm(x, residual, weight, 1e-6)
    if dtype == torch.bfloat16:  # the interpreter cuts off what a GPU rounds
        assert_near(total, expected_total)
    else:
        assert torch.equal(total, expected_total)
    assert_near(normed, expected)
    assert torch.equal(x, before[0]) and torch.equal(residual, before[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_norm_is_of_the_sum_as_it_is_stored(dtype: torch.dtype) -> None:
    # The unrounded sum gives a norm at most a unit or two away, so only equal bits tell them apart.
    x, residual = make("contiguous", 3, 576, dtype=dtype), make("contiguous", 3, 576, dtype=dtype)
    weight = make("contiguous", 576, dtype=dtype)
    normed, total = triton_norm.add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(normed, triton_norm.rms_norm(total, weight, 1e-6))


def test_rms_norm_of_large_float16_values_does_not_overflow() -> None:
    x = torch.full((1, 64), 3000.0, dtype=torch.float16)  # its squares exceed float16
    assert torch.equal(triton_norm.rms_norm(x, torch.ones(64, dtype=torch.float16), 1e-6), torch.ones_like(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", STRIDES)
@pytest.mark.parametrize("shape", [(0, 8), (1, 2), (4, 10), (3, 192), (2, 3, 64)])
def test_silu_and_mul(shape: tuple[int, ...], kind: str, dtype: torch.dtype) -> None:
    x = make(kind, *shape, dtype=dtype)
    assert_near(triton_activation.silu_and_mul(x, block=64), torch_silu_and_mul(x))


def test_silu_of_very_negative_gates_is_zero() -> None:
    x = torch.tensor([[-200.0, -1e30, 3.0, 4.0]])
    assert triton_activation.silu_and_mul(x).abs().max() == 0


class Pages:
    """Caches of four pages that hold NaN, each between two guard pages, for a write at slot -1 to land on."""

    def __init__(self, head_dim: int, num_kv_heads: int, block_size: int, dtype: torch.dtype) -> None:
        self._guarded = torch.full((2, 6, block_size, num_kv_heads, head_dim), float("nan"), dtype=dtype)
        self.caches = self._guarded[:, 1:5].unbind()

    def assert_guards_untouched(self) -> None:
        assert self._guarded[:, [0, 5]].isnan().all()


def check_qkv(
    heads: tuple[int, int], head_dim: int, slots: list[int], dtype: torch.dtype, norms: str, block_size: int = 16
) -> None:
    """Compare queries and both caches with the reference's, from one draw of inputs."""
    hq, hkv = heads
    tokens = len(slots)
    qkv = make("column_slice", tokens, (hq + 2 * hkv) * head_dim, dtype=dtype)
    table = rotary_tables(100.0 ** -(torch.arange(0, head_dim, 2) / head_dim), 1.25, 50)
    positions, slot_mapping = torch.randint(0, 50, (tokens,)), torch.tensor(slots, dtype=torch.int64)
    q_norm = make("contiguous", head_dim, dtype=dtype) if "q" in norms else None
    k_norm = make("contiguous", head_dim, dtype=dtype) if "k" in norms else None
    ours, theirs = Pages(head_dim, hkv, block_size, dtype), Pages(head_dim, hkv, block_size, dtype)
    shape = hq, hkv, head_dim
    arguments = qkv, positions, table, q_norm, k_norm, 1e-6
    query = triton_qkv.split_norm_rope_store(*arguments, *ours.caches, slot_mapping, *shape, heads=4)
    ours.assert_guards_untouched()
    # The reference takes only whole rows.
    expected = torch_split_norm_rope_store(qkv.contiguous(), *arguments[1:], *theirs.caches, slot_mapping, *shape)
    assert query.is_contiguous()
    assert_near(query, expected)
    for cache, reference in zip(ours.caches, theirs.caches, strict=True):
        assert torch.equal(cache.isnan(), reference.isnan())  # nothing else was written
        assert_near(cache.nan_to_num(), reference.nan_to_num())


@pytest.mark.parametrize("head_dim", [2, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("heads", [(1, 1), (3, 1), (14, 2), (9, 3)])
def test_qkv_of_any_head_count_and_size(heads: tuple[int, int], head_dim: int) -> None:
    check_qkv(heads, head_dim, [5, -1, 63, 0, 31], torch.float32, "qk")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norms", ["", "q", "k", "qk"])
def test_qkv_with_and_without_norms(norms: str, dtype: torch.dtype) -> None:
    check_qkv((4, 2), 64, [17, 16, 15], dtype, norms)


@pytest.mark.parametrize("block_size", [16, 32, 256])
@pytest.mark.parametrize("slots", [[], [0], [-1], [-1, -1, 3]])
def test_qkv_of_empty_and_padded_steps(slots: list[int], block_size: int) -> None:
    check_qkv((2, 1), 64, slots, torch.float32, "qk", block_size)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", STRIDES)
@pytest.mark.parametrize("num_kv_heads, head_dim", [(1, 64), (3, 80), (9, 24)])
def test_store_kv(num_kv_heads: int, head_dim: int, kind: str, dtype: torch.dtype) -> None:
    slots = torch.tensor([40, -1, 0, 63, 15])
    key, value = (make(kind, 5, num_kv_heads, head_dim, dtype=dtype) for _ in range(2))
    ours, theirs = Pages(head_dim, num_kv_heads, 16, dtype), Pages(head_dim, num_kv_heads, 16, dtype)
    triton_qkv.store_kv(key, value, *ours.caches, slots)
    ours.assert_guards_untouched()
    torch_store_kv(key, value, *theirs.caches, slots)
    for cache, reference in zip(ours.caches, theirs.caches, strict=True):
        torch.testing.assert_close(cache, reference, rtol=0, atol=0, equal_nan=True)


def test_store_kv_takes_heads_cut_out_of_a_joined_projection() -> None:
    joined = torch.randn(3, 8, 64)
    ours, theirs = Pages(64, 2, 16, torch.float32), Pages(64, 2, 16, torch.float32)
    slots = torch.tensor([1, 2, 50])
    triton_qkv.store_kv(joined[:, 4:6], joined[:, 6:], *ours.caches, slots)
    torch_store_kv(joined[:, 4:6], joined[:, 6:], *theirs.caches, slots)
    torch.testing.assert_close(torch.stack(ours.caches), torch.stack(theirs.caches), rtol=0, atol=0, equal_nan=True)
