"""Rotary frequencies of each RoPE kind. Knows no positions and no model.

Each function's result equals that of the function of transformers' modeling_rope_utils named in its docstring.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .rope_config import RopeConfig


def rope_frequencies(rope: RopeConfig, head_dim: int) -> tuple[Tensor, float]:
    """Angles per position, and the factor on cos and sin.

    Args:
        rope: the rotary config.
        head_dim: D, even.

    Returns:
        (inv_freq [D/2] float32 on the CPU, radians per position; attention scale, 1.0 but for "yarn").
    """
    plain = 1.0 / _wavelengths(rope.theta, head_dim)
    if rope.kind == "linear":
        return plain / rope.factor, 1.0
    if rope.kind == "llama3":
        return _llama3(plain, rope), 1.0
    if rope.kind == "yarn":
        return _yarn(rope, head_dim), _yarn_attention_scale(rope)
    return plain, 1.0


def _wavelengths(theta: float, head_dim: int) -> Tensor:
    """theta ** (2i / D), positions per radian of pair i (Su et al. 2021, arXiv 2104.09864)."""
    return theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)


def _llama3(plain: Tensor, rope: RopeConfig) -> Tensor:
    """Llama 3.1's bands (arXiv 2407.21783; `_compute_llama3_parameters`).

    Waves that turn often within the original context stay, those that hardly turn are stretched by `factor`,
    and in between the two are blended.
    """
    turns = rope.original_max_position_embeddings * plain / (2 * math.pi)
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    keep = blend.clamp(0.0, 1.0)
    return (1 - keep) * plain / rope.factor + keep * plain


def _yarn(rope: RopeConfig, head_dim: int) -> Tensor:
    """NTK-by-parts interpolation of YaRN (Peng et al. 2023, arXiv 2309.00071; `_compute_yarn_parameters`)."""

    def pair_that_turns(turns: float) -> float:
        """The index of the pair that makes `turns` turns over the original context."""
        return (
            head_dim
            * math.log(rope.original_max_position_embeddings / (turns * 2 * math.pi))
            / (2 * math.log(rope.theta))
        )

    low, high = pair_that_turns(rope.beta_fast), pair_that_turns(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # the ramp becomes a step
    stretch = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    wavelengths = _wavelengths(rope.theta, head_dim)
    return stretch / (rope.factor * wavelengths) + (1 - stretch) / wavelengths


def _yarn_attention_scale(rope: RopeConfig) -> float:
    """YaRN's temperature as a factor on cos and sin, 0.1 ln(factor) + 1 unless the config says otherwise."""
    if rope.attention_factor is not None:
        return rope.attention_factor

    def scale(weight: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * weight * math.log(rope.factor) + 1.0

    if rope.mscale and rope.mscale_all_dim:
        return scale(rope.mscale) / scale(rope.mscale_all_dim)
    return scale(1.0)
