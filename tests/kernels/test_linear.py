"""Plain and packed products against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nanolens.kernels import linear as linear_module
from nanolens.kernels.linear import linear, pack_linear

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.15, torch.float16: 2e-2}


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("tokens", [0, 1, 2, 5, 64])
def test_packed_and_plain_products_equal_float64(tokens: int, has_bias: bool, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(tokens)
    weight = torch.randn(37, 24, generator=generator).to(dtype)
    bias = torch.randn(37, generator=generator).to(dtype) if has_bias else None
    x = torch.randn(tokens, 24, generator=generator).to(dtype)
    expected = x.double() @ weight.double().T + (bias.double() if bias is not None else 0.0)
    for out in (linear(x, weight, bias), pack_linear(weight, bias)(x)):
        assert out.dtype == dtype and out.shape == expected.shape
        torch.testing.assert_close(out.double(), expected, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("make", [lambda x: x.T.contiguous().T, lambda x: x.repeat(1, 2)[:, :24], lambda x: x[::2]])
def test_packed_product_takes_strided_inputs(make: Callable[[Tensor], Tensor]) -> None:
    weight, x = torch.randn(8, 24), make(torch.randn(6, 24))
    torch.testing.assert_close(pack_linear(weight)(x), x @ weight.T, rtol=0, atol=1e-5)


def test_packed_weight_is_a_copy_of_its_own() -> None:
    weight = torch.randn(8, 24)
    packed = pack_linear(weight)
    if not packed.is_packed:
        pytest.skip("this build of torch packs no weights")
    x = torch.randn(3, 24)
    expected = x @ weight.T
    weight.fill_(float("nan"))
    torch.testing.assert_close(packed(x), expected, rtol=0, atol=1e-5)


def test_without_the_packing_operator_the_plain_product_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> torch.Tensor:
        raise AttributeError("no such operator")

    monkeypatch.setattr(linear_module, "_packed_product", missing)
    weight, x = torch.randn(8, 24), torch.randn(3, 24)
    plain = pack_linear(weight)
    assert not plain.is_packed
    assert torch.equal(plain(x), linear(x, weight))
