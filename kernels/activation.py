"""Gated activations of the feed-forward sublayer. Knows nothing of its projections."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from .dispatch import on_gpu


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """SwiGLU's elementwise part: silu(gate) * up (Shazeer 2020).

    Args:
        gate_up: [..., 2I], the gate's half first.

    Returns:
        [..., I], a new tensor in the dtype of `gate_up`.
    """
    if gate_up.is_cuda:
        product: Tensor = on_gpu("triton_activation", "silu_and_mul")(gate_up)
        return product
    return torch_silu_and_mul(gate_up)


def torch_silu_and_mul(gate_up: Tensor) -> Tensor:
    """`silu_and_mul` in torch, on any device."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
