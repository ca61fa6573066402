"""The decoder that Llama, Qwen2 and Qwen3 share: embedding, pre-norm layers, head. Its shape is all in ModelConfig.

Knows nothing of files, sequences or sampling; the cache comes with each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..kernels.fused_linear import norm_gated_linear, norm_linear
from ..kernels.linear import PackedLinear, has_few_rows, linear, pack_linear
from ..kernels.norm import add_rms_norm, rms_norm
from ..kernels.rotary import rotary_tables
from .batch import ForwardBatch
from .config import ModelConfig
from .layers import Attention, GatedMLP, Linear, Norm, Placement, Target
from .parallel import WHOLE, Collectives, Shard, collectives_for, join_vocabulary
from .rope import rope_frequencies

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class DecoderLayer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); each sum is joined with the norm that follows it."""

    def __init__(self, config: ModelConfig, layer: int, place: Placement) -> None:
        super().__init__()
        prefix = f"model.layers.{layer}."
        self.input_norm = Norm(f"{prefix}input_layernorm", config.hidden_size, place)
        self.attention = Attention(config, layer, place)
        self.post_attention_norm = Norm(f"{prefix}post_attention_layernorm", config.hidden_size, place)
        self.mlp = GatedMLP(config, layer, place)
        self.eps = config.rms_norm_eps

    def forward(
        self, x: Tensor, residual: Tensor | None, positions: Tensor, cos_sin: Tensor, batch: ForwardBatch
    ) -> tuple[Tensor, Tensor | None]:
        """One layer.

        Args:
            x: [T, H], the sublayer output before this layer, not yet added to the stream; the embedding at first.
            residual: [T, H], the stream before that; None at first.
            positions: [T] int64.
            cos_sin: the rotary table.
            batch: the paged side.

        Returns:
            (the MLP's output, the stream it is to be added to), both [T, H]; with few rows on a GPU (their sum, None).
        """
        if residual is None and has_few_rows(x):
            return self.forward_few_rows(x, positions, cos_sin, batch), None
        if residual is None:
            x, residual = rms_norm(x, self.input_norm.weight, self.eps), x
        else:
            x, residual = add_rms_norm(x, residual, self.input_norm.weight, self.eps)
        x = self.attention(x, positions, cos_sin, batch)
        x, residual = add_rms_norm(x, residual, self.post_attention_norm.weight, self.eps)
        return self.mlp(x), residual

    def forward_few_rows(self, x: Tensor, positions: Tensor, cos_sin: Tensor, batch: ForwardBatch) -> Tensor:
        """The same layer with its norms, gate and additions inside its four products: the stream [T, H] to the next."""
        qkv_proj, o_proj = self.attention.qkv_proj, self.attention.o_proj
        gate_up_proj, down_proj = self.mlp.gate_up_proj, self.mlp.down_proj
        qkv = norm_linear(x, self.input_norm.weight, self.eps, qkv_proj.weight, qkv_proj.bias)
        attended = self.attention.attend(qkv, positions, cos_sin, batch)
        x = o_proj.add_to(x, attended)
        inner = norm_gated_linear(x, self.post_attention_norm.weight, self.eps, gate_up_proj.weight, gate_up_proj.bias)
        return down_proj.add_to(x, inner)


class Transformer(nn.Module):
    """A decoder with its head. Parameters are unset until a loader fills the views of `targets`, then calls `pack`.

    Args:
        config: the whole model's shape.
        dtype: of all parameters.
        device: where they lie.
        shard: the part to hold, where several ranks share the model.
        collectives: to the other ranks; None where there are none.

    Attributes:
        config: the shape of what it holds: of a part, its own heads and MLP columns, and the whole vocabulary.
    """

    cos_sin: Tensor

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device,
        shard: Shard = WHOLE,
        collectives: Collectives | None = None,
    ) -> None:
        super().__init__()
        place = Placement(dtype, device, shard, collectives)
        self.config, self.shard = shard.config(config), shard
        self._collectives = collectives_for(shard, collectives)
        self._vocabulary = shard.vocabulary(config.vocab_size)
        rows = self._vocabulary.stop - self._vocabulary.start
        self.embedding = place.empty(rows, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config, layer, place) for layer in range(config.num_layers))
        self.norm = Norm("model.norm", config.hidden_size, place)
        self.head = None if config.tie_word_embeddings else place.empty(rows, config.hidden_size)
        inv_freq, scale = rope_frequencies(config.rope, config.head_dim)
        table = rotary_tables(inv_freq, scale, config.max_position_embeddings, device)
        self.register_buffer("cos_sin", table, persistent=False)
        self._head: Callable[[Tensor], Tensor] = self._plain_head

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters, and so of the hidden states."""
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        """Where the parameters lie."""
        return self.embedding.device

    def targets(self) -> Iterator[Target]:
        """Every tensor that a checkpoint must hold, and its place."""
        shape = (self.config.vocab_size, self.config.hidden_size)
        rows = () if self._collectives is None else (self._vocabulary,)
        yield Target(EMBEDDING, shape, self.embedding.detach(), rows)
        if self.head is not None:
            yield Target(HEAD, shape, self.head.detach(), rows)
        for part in self.modules():
            if isinstance(part, Linear | Norm):
                yield from part.targets()

    def pack(self) -> None:
        """Bring the loaded weights into their device's fastest layout; `targets` has no meaning afterwards."""
        for part in self.modules():
            if isinstance(part, Linear):
                part.pack()
        weight = (self.embedding if self.head is None else self.head).detach()
        missing = self.shard.vocabulary_rows(self.config.vocab_size) - weight.shape[0]
        if missing:
            weight = F.pad(weight, (0, 0, 0, missing))
            if self.head is None:
                self.embedding = nn.Parameter(weight, requires_grad=False)  # one copy
        self._head = pack_linear(weight)
        self.head = None

    def forward(self, input_ids: Tensor, positions: Tensor, batch: ForwardBatch) -> Tensor:
        """Compute a step's tokens and write their K and V.

        Args:
            input_ids: [T] int64, below vocab_size.
            positions: [T] int64, below max_position_embeddings.
            batch: the paged side.

        Returns:
            [T, H] final hidden states, normed.
        """
        x, residual = self._embed(input_ids), None
        for layer in self.layers:
            x, residual = layer(x, residual, positions, self.cos_sin, batch)
        if residual is None:
            return rms_norm(x, self.norm.weight, self.config.rms_norm_eps)
        return add_rms_norm(x, residual, self.norm.weight, self.config.rms_norm_eps)[0]

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """[N, H] hidden states of the positions that sample -> [N, vocab_size] in the model's dtype.

        `out`, where given, is written and returned: a captured step then has no logits of its own to keep.
        """
        if self._collectives is None:
            return self.own_logits(hidden, out)
        return self.join_logits(self.own_logits(hidden), out)

    def own_logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """[N, H] -> [N, `shard.vocabulary_rows`]: those of this rank's tokens, then padding that means nothing."""
        if out is not None and isinstance(self._head, PackedLinear):
            return self._head.into(hidden, out)
        return self._head(hidden)

    def join_logits(self, own: Tensor, out: Tensor | None = None) -> Tensor:
        """What `own_logits` gave on each rank -> [N, vocab_size] on all."""
        if self._collectives is None:
            return own
        return join_vocabulary(self._collectives.all_gather(own), self.config.vocab_size, out)

    def _embed(self, input_ids: Tensor) -> Tensor:
        if self._collectives is None:
            return F.embedding(input_ids, self.embedding)
        index = input_ids - self._vocabulary.start
        nearest = index.clamp(0, self._vocabulary.stop - self._vocabulary.start - 1)
        x = F.embedding(nearest, self.embedding).masked_fill_((index != nearest)[:, None], 0)
        return self._collectives.all_reduce(x)

    def _plain_head(self, hidden: Tensor) -> Tensor:
        return linear(hidden, self.embedding if self.head is None else self.head)
