"""Gated activations of the feed-forward sublayer. Knows nothing of its projections."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """SwiGLU's elementwise part: silu(gate) * up (Shazeer 2020).

    Args:
        gate_up: [..., 2I], the gate's half first.

    Returns:
        [..., I], a new tensor in the dtype of `gate_up`.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
