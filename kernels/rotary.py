"""Rotary position embeddings: the table of angles and its application. Knows no scaling scheme; it gets frequencies."""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_tables(
    inv_freq: Tensor, attention_scale: float, max_positions: int, device: torch.device | str | None = None
) -> Tensor:
    """Tabulate cosines and sines for all positions (Su et al. 2021).

    Args:
        inv_freq: [D/2], radians a position for each rotated pair.
        attention_scale: factor on both halves of the table (YaRN's; 1.0 elsewhere).
        max_positions: rows of the table.
        device: where the table lies; None: where `inv_freq` does.

    Returns:
        [max_positions, D] float32: D/2 cosines, then D/2 sines.
    """
    target = torch.device(device) if device is not None else inv_freq.device
    angles = torch.outer(
        torch.arange(max_positions, dtype=torch.float32, device=target), inv_freq.to(target, torch.float32)
    )
    return torch.cat((angles.cos(), angles.sin()), dim=-1).mul_(attention_scale)


def apply_rotary(x: Tensor, cos_sin: Tensor, positions: Tensor) -> Tensor:
    """Rotate pairs (i, i + D/2) of each head by the angles of its token's position.

    Args:
        x: [T, H, D], any strides.
        cos_sin: [max_positions, D], from `rotary_tables`.
        positions: [T] int64.

    Returns:
        [T, H, D], a new tensor in the dtype of `x`; computed in float32.
    """
    half = x.shape[-1] // 2
    cos_and_sin = cos_sin.index_select(0, positions).view(-1, 1, 2, half)
    cos, sin = cos_and_sin[:, :, :1], cos_and_sin[:, :, 1]
    pairs = x.float().view(*x.shape[:-1], 2, half)
    rotated = pairs * cos
    rotated[:, :, 0].addcmul_(pairs[:, :, 1], sin, value=-1)
    rotated[:, :, 1].addcmul_(pairs[:, :, 0], sin)
    return rotated.flatten(-2).to(x.dtype)
