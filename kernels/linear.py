"""Matrix products with weights, plain or packed for the CPU. Knows nothing of layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .dispatch import on_gpu

# oneDNN picks a matrix layout for any batch above 1; a hint of 1 gives a layout that is half as fast everywhere.
_PACKING_BATCH = 16
# Above it cuBLAS is faster on a GPU: each row costs a multiply-add per weight on the plain cores.
MAX_FEW_ROWS = 4


def has_few_rows(x: Tensor) -> bool:
    """Whether a product of `x` [T, in] costs no more than reading the weight, on a GPU and by kernels of our own."""
    return x.is_cuda and x.dim() == 2 and 0 < x.shape[0] <= MAX_FEW_ROWS


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
    """A weight in the layout that is fastest for its device; calls give `linear`'s result.

    On a CPU the weight is copied into oneDNN's blocked layout, so that no call has to reorder it: on SmolLM2-135M's
    shapes in float32 this is about three times as fast as `F.linear`. Elsewhere, and where this build of torch lacks
    the operator, the weight is kept by reference.

    Args:
        weight: [out, in]; not needed any more once `is_packed` holds.
        bias: [out] or None, kept by reference.
    """

    __slots__ = ("_packed", "_weight", "bias")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.bias = bias
        self._packed = _pack(weight)
        self._weight = weight if self._packed is None else weight.new_empty(0)

    @property
    def is_packed(self) -> bool:
        """Whether the weight was copied into a layout of its own."""
        return self._packed is not None

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out], a new tensor in the dtype of `x`."""
        if self._packed is not None:
            return _packed_product(x, self._packed, self.bias)
        if has_few_rows(x):
            product: Tensor = on_gpu("triton_linear", "skinny_linear")(x, self._weight, self.bias)
            return product
        return F.linear(x, self._weight, self.bias)

    def into(self, x: Tensor, out: Tensor) -> Tensor:
        """[N, in] -> `out` [N, out], written in place."""
        if self._packed is not None or self.bias is not None or has_few_rows(x):
            return out.copy_(self(x))
        return torch.mm(x, self._weight.t(), out=out)


def pack_linear(weight: Tensor, bias: Tensor | None = None) -> PackedLinear:
    """Prepare a weight for repeated use.

    Args:
        weight: [out, in].
        bias: [out] or None.
    """
    return PackedLinear(weight, bias)


def _pack(weight: Tensor) -> Tensor | None:
    """The weight in oneDNN's layout, or None where that does not exist or does not support the dtype."""
    if weight.device.type != "cpu" or weight.dtype not in (torch.float32, torch.bfloat16):
        return None
    if not torch.backends.mkldnn.is_available():
        return None
    try:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), _PACKING_BATCH)
        probe = torch.zeros(1, weight.shape[1], dtype=weight.dtype)
        _packed_product(probe, packed, None)
    except (AttributeError, NotImplementedError, RuntimeError):
        return None
    return packed


def _packed_product(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """`linear` with a weight from `_pack`; the operator that torch's own compiler emits for a frozen Linear."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return product
