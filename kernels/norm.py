"""RMS normalisation, alone and joined with the residual addition before it. Knows nothing of layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .dispatch import on_gpu


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each vector by the reciprocal of its root mean square (Zhang and Sennrich 2019), then by a weight.

    The mean is taken in float32 whatever the dtype; `x` is left as it is.

    Args:
        x: [..., H], any strides.
        weight: [H].
        eps: added to the mean square.

    Returns:
        [..., H] in the dtype of `x`.
    """
    if x.is_cuda:
        normed: Tensor = on_gpu("triton_norm", "rms_norm")(x, weight, eps)
        return normed
    return torch_rms_norm(x, weight, eps)


def torch_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`rms_norm` in torch, on any device."""
    if x.dtype == torch.float32 and weight.dtype == torch.float32:
        return F.rms_norm(x, (x.shape[-1],), weight, eps)
    normed = F.rms_norm(x.float(), (x.shape[-1],), None, eps)
    return (normed * weight.float()).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Add a sublayer's output to the residual stream and normalise the sum.

    Args:
        x: [..., H], the sublayer's output.
        residual: [..., H], the stream before it.
        weight: [H].
        eps: as in `rms_norm`.

    Returns:
        (normalised sum, sum), both new tensors in the dtype of `x`.
    """
    if x.is_cuda:
        both: tuple[Tensor, Tensor] = on_gpu("triton_norm", "add_rms_norm")(x, residual, weight, eps)
        return both
    return torch_add_rms_norm(x, residual, weight, eps)


def torch_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`add_rms_norm` in torch, on any device."""
    total = x + residual
    return torch_rms_norm(total, weight, eps), total
