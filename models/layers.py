"""The parts of a decoder that hold weights, and where each tensor of a checkpoint goes in them.

A part joins projections that share an input (q, k, v; gate, up) into one weight; `targets` lists, for each tensor of
the checkpoint, the view that it fills. These parts know nothing of files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..kernels.activation import silu_and_mul
from ..kernels.attention import paged_attention
from ..kernels.linear import linear, pack_linear
from ..kernels.qkv import split_norm_rope_store
from .batch import ForwardBatch
from .config import ModelConfig


@dataclass(frozen=True)
class Target:
    """One tensor of a checkpoint, or a part of it, and the place in a parameter that it fills.

    Attributes:
        name: the tensor's name in the checkpoint.
        shape: its whole shape there.
        view: what it fills, contiguous; its shape is that of the part.
        part: the slice of each leading dimension that is read; () reads all. A rank that holds some rows or columns
            of a weight reads only those.
    """

    name: str
    shape: tuple[int, ...]
    view: Tensor
    part: tuple[slice, ...] = ()


@dataclass(frozen=True)
class Placement:
    """Where parameters lie and in which dtype."""

    dtype: torch.dtype
    device: torch.device

    def empty(self, *shape: int) -> nn.Parameter:
        """A parameter without a value yet."""
        return nn.Parameter(torch.empty(*shape, dtype=self.dtype, device=self.device), requires_grad=False)


class Linear(nn.Module):
    """Projections of one input, joined: weight [sum(rows), inputs], bias [sum(rows)] or none.

    Args:
        prefix: what precedes the projections' names in the checkpoint, `model.layers.0.self_attn.`.
        projections: name and rows of each, in the order in which they are joined.
        inputs: width of the input.
        bias: whether each has a bias.
        place: of the parameters.
    """

    def __init__(self, prefix: str, projections: dict[str, int], inputs: int, bias: bool, place: Placement) -> None:
        super().__init__()
        rows = sum(projections.values())
        self.weight = place.empty(rows, inputs)
        self.bias = place.empty(rows) if bias else None
        self.prefix, self.projections = prefix, projections
        self._apply_weight: Callable[[Tensor], Tensor] = self._plain

    def targets(self) -> Iterator[Target]:
        """Where the projections' weights and biases go."""
        start = 0
        for name, rows in self.projections.items():
            kept = slice(start, start + rows)
            yield Target(f"{self.prefix}{name}.weight", (rows, self.weight.shape[1]), self.weight.detach()[kept])
            if self.bias is not None:
                yield Target(f"{self.prefix}{name}.bias", (rows,), self.bias.detach()[kept])
            start += rows

    def pack(self) -> None:
        """Take the loaded weight into its device's fastest layout; the plain one is let go where they differ."""
        packed = pack_linear(self.weight.detach(), None if self.bias is None else self.bias.detach())
        self._apply_weight = packed
        if packed.is_packed:
            del self.weight

    def _plain(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[T, inputs] -> [T, sum(rows)]."""
        return self._apply_weight(x)


class Norm(nn.Module):
    """The weight [size] of one RMSNorm; the decoder joins the norm itself with its neighbours."""

    def __init__(self, name: str, size: int, place: Placement) -> None:
        super().__init__()
        self.weight = place.empty(size)
        self.name = name

    def targets(self) -> Iterator[Target]:
        """Where the weight goes."""
        yield Target(f"{self.name}.weight", tuple(self.weight.shape), self.weight.detach())


class Attention(nn.Module):
    """Grouped-query attention over the paged cache (Vaswani et al. 2017; Ainslie et al. 2023, arXiv 2305.13245)."""

    def __init__(self, config: ModelConfig, layer: int, place: Placement) -> None:
        super().__init__()
        prefix = f"model.layers.{layer}.self_attn."
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        rows = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
        self.qkv_proj = Linear(prefix, rows, config.hidden_size, config.attention_bias, place)
        self.o_proj = Linear(prefix, {"o_proj": config.hidden_size}, queries, config.output_bias, place)
        self.q_norm = Norm(f"{prefix}q_norm", config.head_dim, place) if config.qk_norm else None
        self.k_norm = Norm(f"{prefix}k_norm", config.head_dim, place) if config.qk_norm else None
        self.layer = layer
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        self.eps = config.rms_norm_eps
        self.scale = config.head_dim**-0.5

    def forward(self, x: Tensor, positions: Tensor, cos_sin: Tensor, batch: ForwardBatch) -> Tensor:
        """[T, H] -> [T, H]; writes this layer's K and V of the step's tokens to the cache."""
        out: Tensor = self.o_proj(self.attend(self.qkv_proj(x), positions, cos_sin, batch))
        return out

    def attend(self, qkv: Tensor, positions: Tensor, cos_sin: Tensor, batch: ForwardBatch) -> Tensor:
        """What lies between the projections: [T, (Hq + 2 * Hkv) * D] -> [T, Hq * D]."""
        keys, values = batch.kv_caches[self.layer]
        q = split_norm_rope_store(
            qkv,
            positions,
            cos_sin,
            self.q_norm.weight if self.q_norm is not None else None,
            self.k_norm.weight if self.k_norm is not None else None,
            self.eps,
            keys,
            values,
            batch.slot_mapping,
            self.num_heads,
            self.num_kv_heads,
            self.head_dim,
        )
        return paged_attention(q, keys, values, batch.attention, self.scale).reshape(qkv.shape[0], -1)


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)) (Shazeer 2020, arXiv 2002.05202)."""

    def __init__(self, config: ModelConfig, layer: int, place: Placement) -> None:
        super().__init__()
        prefix, inner = f"model.layers.{layer}.mlp.", config.intermediate_size
        rows = {"gate_proj": inner, "up_proj": inner}
        self.gate_up_proj = Linear(prefix, rows, config.hidden_size, config.mlp_bias, place)
        self.down_proj = Linear(prefix, {"down_proj": config.hidden_size}, inner, config.mlp_bias, place)

    def forward(self, x: Tensor) -> Tensor:
        """[T, H] -> [T, H]."""
        out: Tensor = self.down_proj(silu_and_mul(self.gate_up_proj(x)))
        return out
