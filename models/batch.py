"""What a forward pass needs besides tokens and positions. Knows nothing of sequences or requests."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..kernels.attention import AttentionMetadata


@dataclass(slots=True)
class ForwardBatch:
    """The paged side of one step's batch of T tokens.

    Attributes:
        kv_caches: per layer (keys, values), each [num_blocks, block_size, num_kv_heads, head_dim].
        slot_mapping: [T] int64, block_id * block_size + offset where each token's K and V go; -1: padding, not written.
        attention: block tables and lengths of the rows, shared by all layers.
    """

    kv_caches: list[tuple[Tensor, Tensor]]
    slot_mapping: Tensor
    attention: AttentionMetadata
