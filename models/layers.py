"""The parts of a decoder that hold weights, and where each tensor of a checkpoint goes in them.

A part joins projections that share an input (q, k, v; gate, up) into one weight; `targets` lists, for each tensor of
the checkpoint, the view that it fills. Where ranks share a model, each holds its rows or columns and targets ask for
no more. These parts know nothing of files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..kernels.activation import silu_and_mul
from ..kernels.attention import paged_attention
from ..kernels.fused_linear import linear_add
from ..kernels.linear import linear, pack_linear
from ..kernels.qkv import split_norm_rope_store
from .batch import ForwardBatch
from .config import ModelConfig
from .parallel import WHOLE, Collectives, Shard


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
class Extent:
    """One dimension of a weight.

    Attributes:
        whole: its size in the checkpoint.
        held: the runs of it that are held here, in the order in which they are; None: all.
    """

    whole: int
    held: tuple[slice, ...] | None = None

    @property
    def runs(self) -> tuple[slice, ...]:
        """What is held."""
        return (slice(0, self.whole),) if self.held is None else self.held

    @property
    def size(self) -> int:
        """How much is held."""
        return sum(run.stop - run.start for run in self.runs)


@dataclass(frozen=True)
class Placement:
    """Where parameters lie, in which dtype, and which rank's part they are."""

    dtype: torch.dtype
    device: torch.device
    shard: Shard = WHOLE
    collectives: Collectives | None = None

    def empty(self, *shape: int) -> nn.Parameter:
        """A parameter without a value yet."""
        return nn.Parameter(torch.empty(*shape, dtype=self.dtype, device=self.device), requires_grad=False)


class Linear(nn.Module):
    """Projections of one input, joined: weight [sum of rows, inputs], bias [sum of rows] or none.

    Args:
        prefix: what precedes the projections' names in the checkpoint, `model.layers.0.self_attn.`.
        projections: name and rows of each, in the order in which they are joined.
        inputs: columns of each, in one run.
        bias: whether each has a bias.
        place: of the parameters.
    """

    def __init__(
        self, prefix: str, projections: dict[str, Extent], inputs: Extent, bias: bool, place: Placement
    ) -> None:
        super().__init__()
        rows = sum(extent.size for extent in projections.values())
        self.weight = place.empty(rows, inputs.size)
        self.bias = place.empty(rows) if bias else None
        self.prefix, self.projections, self.inputs = prefix, projections, inputs
        self._apply_weight: Callable[[Tensor], Tensor] = self._plain

    def targets(self) -> Iterator[Target]:
        """Where the projections' weights and biases go."""
        start = 0
        for name, rows in self.projections.items():
            is_whole = rows.held is None and self.inputs.held is None
            for run in rows.runs:
                kept = slice(start, start + run.stop - run.start)
                part = () if is_whole else (run, *self.inputs.runs)
                shape = (rows.whole, self.inputs.whole)
                yield Target(f"{self.prefix}{name}.weight", shape, self.weight.detach()[kept], part)
                if self.bias is not None:
                    part = () if rows.held is None else (run,)
                    yield Target(f"{self.prefix}{name}.bias", (rows.whole,), self.bias.detach()[kept], part)
                start = kept.stop

    def pack(self) -> None:
        """Take the loaded weight into its device's fastest layout; the plain one is let go where they differ."""
        packed = pack_linear(self.weight.detach(), None if self.bias is None else self.bias.detach())
        self._apply_weight = packed
        if packed.is_packed:
            del self.weight

    def _plain(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[T, inputs] -> [T, sum of rows]."""
        return self._apply_weight(x)


class SummedLinear(Linear):
    """One projection, split by inputs where ranks share the model: its result is the sum of theirs.

    Args:
        prefix, name: in the checkpoint.
        rows: of the projection.
        inputs: the columns held here.
        bias: whether it has one; the first rank adds it.
        place: of the parameters.
    """

    def __init__(self, prefix: str, name: str, rows: int, inputs: Extent, bias: bool, place: Placement) -> None:
        super().__init__(prefix, {name: Extent(rows)}, inputs, bias, place)
        self._is_first, self._collectives = place.shard.rank == 0, place.collectives

    def pack(self) -> None:
        """See `Linear`."""
        if not self._is_first:
            self.bias = None
        super().pack()

    def forward(self, x: Tensor) -> Tensor:
        """[T, inputs] -> [T, rows], the same on all ranks."""
        out = self._apply_weight(x)
        return out if self._collectives is None else self._collectives.all_reduce(out)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """`residual` [T, rows] + forward(x) in one product, for a few rows on a GPU; a new tensor."""
        if not self._is_first:
            out = self._apply_weight(x)
        else:
            out = linear_add(x, self.weight, residual, self.bias)
        return out if self._collectives is None else self._collectives.all_reduce(out)


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
        own = place.shard.config(config)
        queries, keys = _queries(config, place.shard), _keys(config, place.shard)
        rows, hidden = {"q_proj": queries, "k_proj": keys, "v_proj": keys}, config.hidden_size
        self.qkv_proj = Linear(prefix, rows, Extent(hidden), config.attention_bias, place)
        self.o_proj = SummedLinear(prefix, "o_proj", hidden, queries, config.output_bias, place)
        self.q_norm = Norm(f"{prefix}q_norm", config.head_dim, place) if config.qk_norm else None
        self.k_norm = Norm(f"{prefix}k_norm", config.head_dim, place) if config.qk_norm else None
        self.layer = layer
        self.num_heads, self.num_kv_heads, self.head_dim = own.num_heads, own.num_kv_heads, own.head_dim
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
        prefix, hidden = f"model.layers.{layer}.mlp.", config.hidden_size
        inner = _inner(config, place.shard)
        rows = {"gate_proj": inner, "up_proj": inner}
        self.gate_up_proj = Linear(prefix, rows, Extent(hidden), config.mlp_bias, place)
        self.down_proj = SummedLinear(prefix, "down_proj", hidden, inner, config.mlp_bias, place)

    def forward(self, x: Tensor) -> Tensor:
        """[T, H] -> [T, H]."""
        out: Tensor = self.down_proj(silu_and_mul(self.gate_up_proj(x)))
        return out


def _queries(config: ModelConfig, shard: Shard) -> Extent:
    """Rows of the q projection, and columns of the output projection."""
    heads, dim = shard.heads(config), config.head_dim
    held = (slice(heads.start * dim, heads.stop * dim),)
    return Extent(config.num_heads * dim, None if shard.size == 1 else held)


def _keys(config: ModelConfig, shard: Shard) -> Extent:
    """Rows of the k and of the v projection; neighbours among the heads are one run."""
    dim = config.head_dim
    if shard.size == 1:
        return Extent(config.num_kv_heads * dim)
    held: list[slice] = []
    for head in shard.kv_heads(config):
        start = head * dim
        if held and held[-1].stop == start:
            start = held.pop().start
        held.append(slice(start, (head + 1) * dim))
    return Extent(config.num_kv_heads * dim, tuple(held))


def _inner(config: ModelConfig, shard: Shard) -> Extent:
    """Rows of the gate and of the up projection, and columns of the down projection."""
    whole = config.intermediate_size
    return Extent(whole, None if shard.size == 1 else (shard.columns(whole),))
