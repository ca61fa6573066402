"""Logits of tiny random models equal transformers' in fp32, whole and token by token, whatever the config says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nanolens.models import load_model
from tiny_models import paged_logits, reference_logits, save_tiny, some_ids

ORIGINAL = 16  # the context before stretching; the texts below are longer
TOLERANCE = 1e-3

ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 500.0},
    "linear": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 500.0,
        "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    },
    "yarn_untruncated": {
        "rope_type": "yarn",
        "rope_theta": 500.0,
        "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
        "truncate": False,
        "beta_fast": 8.0,
        "beta_slow": 0.5,
    },
    "yarn_mscale": {
        "rope_type": "yarn",
        "rope_theta": 500.0,
        "factor": 16.0,
        "original_max_position_embeddings": ORIGINAL,
        "mscale": 1.4,
        "mscale_all_dim": 0.7,
    },
    "yarn_attention_factor": {
        "rope_type": "yarn",
        "rope_theta": 500.0,
        "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
        "attention_factor": 1.3,
    },
}


def largest_difference(directory: Path, family: str, chunk: int | None, **changes: Any) -> float:
    """max |d| over all logits of a text of 3 * ORIGINAL tokens."""
    reference = save_tiny(directory, family, **changes)
    ids = some_ids(3 * ORIGINAL)
    ours = paged_logits(load_model(str(directory)), ids, chunk)
    return float((ours - reference_logits(reference, ids)).abs().max())


@pytest.mark.parametrize("chunk", [None, 1, 5], ids=["whole", "token_by_token", "chunks"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_family(family: str, tied: bool, chunk: int | None, tmp_path: Path) -> None:
    assert largest_difference(tmp_path, family, chunk, tie_word_embeddings=tied) <= TOLERANCE


@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
@pytest.mark.parametrize("rope", ROPES)
def test_rope_kind_beyond_the_original_context(rope: str, family: str, tmp_path: Path) -> None:
    assert largest_difference(tmp_path, family, None, rope_parameters=dict(ROPES[rope])) <= TOLERANCE


@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_attention_bias_covers_the_output_projection(family: str, tmp_path: Path) -> None:
    assert largest_difference(tmp_path, family, None, attention_bias=True) <= TOLERANCE


def test_mlp_bias(tmp_path: Path) -> None:
    assert largest_difference(tmp_path, "Llama", None, mlp_bias=True) <= TOLERANCE


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_grouped_heads(kv_heads: int, tmp_path: Path) -> None:
    assert largest_difference(tmp_path, "Qwen3", None, num_key_value_heads=kv_heads) <= TOLERANCE


@pytest.mark.parametrize("head_dim", [8, 16, 48])
def test_head_dim(head_dim: int, tmp_path: Path) -> None:
    assert largest_difference(tmp_path, "Llama", None, head_dim=head_dim) <= TOLERANCE


def test_heads_in_a_hidden_size_that_they_dont_divide(tmp_path: Path) -> None:
    changes = {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 24}
    assert largest_difference(tmp_path, "Qwen3", None, **changes) <= TOLERANCE


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_near_float32(dtype: str, tmp_path: Path) -> None:
    save_tiny(tmp_path)
    ids = some_ids(24)
    exact = paged_logits(load_model(str(tmp_path)), ids)
    rounded = paged_logits(load_model(str(tmp_path), dtype), ids)
    assert rounded.dtype == torch.float32
    spread = float(exact.std())
    assert 0 < float((rounded - exact).abs().max()) < 0.25 * spread


def test_sharded_checkpoint_equals_the_whole_one(tmp_path: Path) -> None:
    save_tiny(tmp_path / "whole")
    save_tiny(tmp_path / "shards", shard_size="60KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    ids = some_ids(20)
    whole, shards = (paged_logits(load_model(str(tmp_path / name)), ids) for name in ("whole", "shards"))
    assert torch.equal(whole, shards)
