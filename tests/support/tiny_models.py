"""Tiny random models saved by transformers, and their logits: by transformers, and by ours over a paged cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from nanolens.kernels.attention import build_metadata
from nanolens.models.batch import ForwardBatch
from nanolens.models.transformer import Transformer

BLOCK_SIZE = 4

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
}


def save_tiny(directory: Path, family: str = "Llama", shard_size: str = "1GB", **changes: Any) -> Any:
    """Save a random float32 model of a family ("Llama", "Qwen2", "Qwen3") and return it.

    Every parameter is random, norms and biases too, so that each of them shows in the logits.
    """
    config = getattr(transformers, f"{family}Config")(**(SHAPE | changes))
    config._attn_implementation = "eager"
    torch.manual_seed(7)
    model = getattr(transformers, f"{family}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0.0, 0.3 if name.endswith("bias") else 0.15)
    model.save_pretrained(directory, max_shard_size=shard_size)
    return model


def some_ids(count: int, vocab_size: int = 96) -> list[int]:
    """Token ids that don't repeat regularly."""
    return [(i * i * 31 + i * 17 + 5) % vocab_size for i in range(count)]


@torch.inference_mode()
def reference_logits(model: Any, ids: list[int]) -> torch.Tensor:
    """transformers' logits at every position, [T, V]."""
    return model(torch.tensor([ids])).logits[0].float()


Pages = list[tuple[torch.Tensor, torch.Tensor]]


def empty_pages(model: Transformer, num_tokens: int) -> Pages:
    """Keys and values of each layer for `paged_logits` of so many tokens; what nothing wrote is 1e4."""
    config = model.config
    shape = (-(-num_tokens // BLOCK_SIZE) + 3, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
    return [
        (torch.full(shape, 1e4, dtype=model.dtype), torch.full(shape, 1e4, dtype=model.dtype))
        for _ in range(config.num_layers)
    ]


@torch.inference_mode()
def paged_logits(
    model: Transformer, ids: list[int], chunk: int | None = None, caches: Pages | None = None
) -> torch.Tensor:
    """Our logits at every position, [T, V], `chunk` tokens at a time (None: all at once) over scattered pages."""
    blocks = -(-len(ids) // BLOCK_SIZE)
    pages = torch.randperm(blocks + 3, generator=torch.Generator().manual_seed(3))[:blocks]
    caches = caches or empty_pages(model, len(ids))
    found = []
    for start in range(0, len(ids), chunk or len(ids)):
        piece = ids[start : start + (chunk or len(ids))]
        positions = torch.arange(start, start + len(piece))
        slots = pages[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        metadata = build_metadata(pages[None].int(), [len(piece)], [start + len(piece)], BLOCK_SIZE)
        hidden = model.forward(torch.tensor(piece), positions, ForwardBatch(caches, slots, metadata))
        found.append(model.logits(hidden).float())
    return torch.cat(found)


def greedy(model: Transformer, ids: list[int], count: int) -> list[int]:
    """Our `count` likeliest next tokens, each computed with everything before it."""
    ids = list(ids)
    for _ in range(count):
        ids.append(int(paged_logits(model, ids)[-1].argmax()))
    return ids[len(ids) - count :]
