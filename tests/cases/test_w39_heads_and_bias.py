"""W39: tied heads with and without a copy, head_dim of its own, q/k/v biases: the right logits or a named tensor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from nanolens.errors import ModelLoadError
from nanolens.models import load_config, load_model
from nanolens.models.loader import INDEX, SINGLE
from nanolens.models.transformer import Transformer
from tiny_models import paged_logits, reference_logits, save_tiny, some_ids


def variant(source: Path, directory: Path, added: dict[str, torch.Tensor] | None = None, **config: Any) -> str:
    """The model in `source` again, its weights by link, with other config keys and tensors added in a shard."""
    directory.mkdir()
    for each in source.iterdir():
        if each.name not in ("config.json", SINGLE):
            (directory / each.name).symlink_to(each)
    changed = json.loads((source / "config.json").read_text()) | config
    (directory / "config.json").write_text(json.dumps(changed))
    if added is None:
        (directory / SINGLE).symlink_to(source / SINGLE)
        return str(directory)
    (directory / "first.safetensors").symlink_to(source / SINGLE)
    save_file(added, directory / "second.safetensors", metadata={"format": "pt"})
    with safe_open(source / SINGLE, "pt") as file:
        weight_map = dict.fromkeys(file.keys(), "first.safetensors") | dict.fromkeys(added, "second.safetensors")
    (directory / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return str(directory)


def zero_biases(name: str) -> dict[str, torch.Tensor]:
    """q, k and v biases of 0 for each layer of a model."""
    shape = load_config(name)
    rows = {"q": shape.num_heads, "k": shape.num_kv_heads, "v": shape.num_kv_heads}
    return {
        f"model.layers.{layer}.self_attn.{each}_proj.bias": torch.zeros(heads * shape.head_dim)
        for layer in range(shape.num_layers)
        for each, heads in rows.items()
    }


@pytest.fixture(scope="module", params=["tiny", pytest.param("smollm2", marks=pytest.mark.model)])
def tied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Transformer]:
    """A tied Llama without a head in its file."""
    if request.param == "smollm2":
        directory = request.getfixturevalue("smollm2_dir")
    else:
        directory = tmp_path_factory.mktemp("tied")
        save_tiny(directory, "Llama", head_dim=16, tie_word_embeddings=True)
    return directory, load_model(str(directory))


def test_a_tied_head_needs_no_tensor_and_may_have_a_copy(tied: tuple[Path, Transformer], tmp_path: Path) -> None:
    directory, model = tied
    tensors = load_file(directory / SINGLE)
    assert "lm_head.weight" not in tensors
    copy = variant(directory, tmp_path / "m", {"lm_head.weight": tensors["model.embed_tokens.weight"]})
    ids = some_ids(32)
    assert torch.equal(paged_logits(load_model(copy), ids), paged_logits(model, ids))


def test_an_untied_head_that_is_missing_is_named(tied: tuple[Path, Transformer], tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"lacks lm_head\.weight"):
        load_model(variant(tied[0], tmp_path / "m", tie_word_embeddings=False))


def test_as_qwen2_with_biases_of_zero_it_is_the_same_model(tied: tuple[Path, Transformer], tmp_path: Path) -> None:
    directory, model = tied
    qwen2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
    copy = load_model(variant(directory, tmp_path / "m", zero_biases(str(directory)), **qwen2))
    ids = some_ids(32)
    assert float((paged_logits(copy, ids) - paged_logits(model, ids)).abs().max()) <= 1e-4


def test_qwen2_without_its_biases_names_them(tied: tuple[Path, Transformer], tmp_path: Path) -> None:
    qwen2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
    with pytest.raises(ModelLoadError, match=r"lacks model\.layers\.0\.self_attn\.k_proj\.bias"):
        load_model(variant(tied[0], tmp_path / "m", **qwen2))


def test_qwen3_with_heads_wider_than_its_hidden_size(tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "Qwen3", hidden_size=64, num_attention_heads=4, head_dim=32)
    assert list(load_file(tmp_path / SINGLE)["model.layers.0.self_attn.q_proj.weight"].shape) == [128, 64]
    ids = some_ids(48)
    difference = (paged_logits(load_model(str(tmp_path)), ids) - reference_logits(reference, ids)).abs().max()
    assert float(difference) <= 1e-4


def test_qwen2_with_real_biases_equals_transformers(tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "Qwen2", head_dim=16)
    ids = some_ids(48)
    difference = (paged_logits(load_model(str(tmp_path)), ids) - reference_logits(reference, ids)).abs().max()
    assert float(difference) <= 1e-4
