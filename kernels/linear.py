"""Matrix products with weights, plain or packed for the CPU. Knows nothing of layers."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias.

    Args:
        x: [..., in].
        weight: [out, in].
        bias: [out] or None.

    Returns:
        [..., out] in the dtype of `x`.
    """
    return F.linear(x, weight, bias)


class PackedLinear:
    """A weight in the layout that is fastest for its device, with `linear`'s result for each call."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return F.linear(x, self.weight, self.bias)


def pack_linear(weight: Tensor, bias: Tensor | None = None) -> PackedLinear:
    """Prepare a weight for repeated use.

    Args:
        weight: [out, in]; kept by reference where no packed form pays.
        bias: [out] or None.
    """
    return PackedLinear(weight, bias)
