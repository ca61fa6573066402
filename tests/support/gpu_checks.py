"""What tests on a GPU share: the bounds that every kernel keeps against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

BOUNDS = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}


def need_gpu() -> None:
    """Skip the calling module where there is no CUDA device."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device", allow_module_level=True)


def assert_close_to_float64(actual: Tensor, expected: Tensor) -> None:
    """The norm of the difference over the norm, within the bound of the dtype; both without NaN."""
    assert actual.shape == expected.shape
    assert not actual.isnan().any()
    if expected.numel():
        error = (actual.double() - expected).norm() / expected.norm()
        assert error < BOUNDS[actual.dtype], f"relative error {error.item():.2e}"
