"""Products joined with the norm before them, or with the gate or the addition after them, for a few rows on a GPU.

With so few rows a decoder layer waits for its weights and for launches; these forms leave it one launch a product.
`has_few_rows` in kernels/linear.py says when they pay.
"""

from __future__ import annotations

from torch import Tensor

from .activation import torch_silu_and_mul
from .dispatch import on_gpu
from .linear import linear
from .norm import torch_rms_norm


def norm_linear(x: Tensor, norm_weight: Tensor, eps: float, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """rms_norm(x) @ weight.T + bias.

    Args:
        x: [T, in].
        norm_weight: [in].
        eps: of the norm.
        weight: [out, in]. A GPU may read it before the kernel ahead has ended: it is a constant, never a result.
        bias: [out] or None.

    Returns:
        [T, out] in the dtype of `x`.
    """
    if x.is_cuda:
        out: Tensor = on_gpu("triton_linear", "norm_linear")(x, norm_weight, eps, weight, bias)
        return out
    return linear(torch_rms_norm(x, norm_weight, eps), weight, bias)


def norm_gated_linear(x: Tensor, norm_weight: Tensor, eps: float, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """silu(gate) * up, where gate and up are the halves of `norm_linear`'s result.

    Args:
        x: [T, in].
        norm_weight: [in].
        eps: of the norm.
        weight: [2 * out, in], the gate's rows first; a constant, as in `norm_linear`.
        bias: [2 * out] or None.

    Returns:
        [T, out] in the dtype of `x`.
    """
    if x.is_cuda:
        out: Tensor = on_gpu("triton_linear", "norm_gated_linear")(x, norm_weight, eps, weight, bias)
        return out
    return torch_silu_and_mul(linear(torch_rms_norm(x, norm_weight, eps), weight, bias))


def linear_add(x: Tensor, weight: Tensor, residual: Tensor, bias: Tensor | None = None) -> Tensor:
    """residual + x @ weight.T + bias.

    Args:
        x: [T, in].
        weight: [out, in]; a constant, as in `norm_linear`.
        residual: [T, out], left as it is.
        bias: [out] or None.

    Returns:
        [T, out], a new tensor in the dtype of `x`.
    """
    if x.is_cuda:
        out: Tensor = on_gpu("triton_linear", "linear_add")(x, weight, residual, bias)
        return out
    return residual + linear(x, weight, bias)
