"""A checkpoint on disk whose next token is a table of the last one: a real model, loaded and served as any other.

Attention and MLP add nothing, embeddings are one-hot, and the head is the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerFast

_LAYER = "model.layers.0."
_HEADS, _HEAD_DIM, _INNER = 2, 16, 16


def save_bigram(directory: Path, tokenizer: PreTrainedTokenizerFast, follows: Mapping[int, int]) -> Path:
    """Save a Llama with this tokenizer that writes `follows[t]` after token t, and t again after any other t."""
    vocab_size = -(-len(tokenizer) // 32) * 32
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocab_size,
        "hidden_size": vocab_size, "intermediate_size": _INNER, "num_hidden_layers": 1,
        "num_attention_heads": _HEADS, "num_key_value_heads": _HEADS, "head_dim": _HEAD_DIM,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu", "torch_dtype": "float32",
        "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id,
    }  # fmt: skip
    head = torch.zeros(vocab_size, vocab_size)
    for token in range(vocab_size):
        head[follows.get(token, token), token] = 1.0
    inner = _HEADS * _HEAD_DIM
    tensors = {
        "model.embed_tokens.weight": torch.eye(vocab_size),
        "model.norm.weight": torch.ones(vocab_size),
        "lm_head.weight": head,
        f"{_LAYER}input_layernorm.weight": torch.ones(vocab_size),
        f"{_LAYER}post_attention_layernorm.weight": torch.ones(vocab_size),
        f"{_LAYER}self_attn.q_proj.weight": torch.zeros(inner, vocab_size),
        f"{_LAYER}self_attn.k_proj.weight": torch.zeros(inner, vocab_size),
        f"{_LAYER}self_attn.v_proj.weight": torch.zeros(inner, vocab_size),
        f"{_LAYER}self_attn.o_proj.weight": torch.zeros(vocab_size, inner),
        f"{_LAYER}mlp.gate_proj.weight": torch.zeros(_INNER, vocab_size),
        f"{_LAYER}mlp.up_proj.weight": torch.zeros(_INNER, vocab_size),
        f"{_LAYER}mlp.down_proj.weight": torch.zeros(vocab_size, _INNER),
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors")
    tokenizer.save_pretrained(directory)
    return directory


def chain(*runs: list[int]) -> dict[int, int]:
    """The table in which each run's tokens follow each other; no token may have two successors."""
    follows: dict[int, int] = {}
    for run in runs:
        for token, after in pairwise(run):
            assert follows.setdefault(token, after) == after, f"token {token} has two successors"
    return follows
