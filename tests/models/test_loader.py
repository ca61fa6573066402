"""Each parameter element set once, each tensor used or ignorable; what is wrong is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from nanolens.errors import InvalidConfig, ModelLoadError
from nanolens.models import load_config, load_model
from nanolens.models.layers import Target
from nanolens.models.loader import INDEX, SINGLE, Checkpoint, check_coverage, load_weights
from nanolens.models.transformer import Transformer
from tiny_models import paged_logits, save_tiny, some_ids

K_PROJ = "model.layers.1.self_attn.k_proj.weight"


def rewrite(directory: Path, drop: str = "", **add: torch.Tensor) -> None:
    """Save the weights again without one and with others (a `__` in a name stands for a dot)."""
    tensors = load_file(directory / SINGLE)
    tensors.pop(drop, None)
    tensors.update({name.replace("__", "."): value.contiguous() for name, value in add.items()})
    save_file(tensors, directory / SINGLE, metadata={"format": "pt"})


def edit_config(directory: Path, **changes: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refused(directory: Path) -> str:
    """The message with which loading fails."""
    with pytest.raises(ModelLoadError) as caught:
        load_model(str(directory))
    return str(caught.value)


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    rewrite(tmp_path, drop=K_PROJ)
    assert f"the checkpoint lacks {K_PROJ}" in refused(tmp_path)


def test_extra_tensor_is_named(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    rewrite(tmp_path, model__layers__0__self_attn__q_proj__bias=torch.zeros(128))
    assert "holds model.layers.0.self_attn.q_proj.bias" in refused(tmp_path)


def test_a_layer_that_config_does_not_know_is_named(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    edit_config(tmp_path, num_hidden_layers=2)
    message = refused(tmp_path)
    assert "model.layers.2." in message
    assert "and 4 more" in message


def test_wrong_shape_names_tensor_and_both_shapes(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    edit_config(tmp_path, num_key_value_heads=1)
    message = refused(tmp_path)
    assert "model.layers.0.self_attn.k_proj.weight has shape [64, 64]; config.json asks for [32, 64]" in message


def test_integer_weights_are_refused(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    rewrite(tmp_path, model__norm__weight=torch.ones(64, dtype=torch.int8))
    assert "model.norm.weight has dtype I8; supported are F32, BF16, F16" in refused(tmp_path)


def test_truncated_file_is_named(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    data = (tmp_path / SINGLE).read_bytes()
    (tmp_path / SINGLE).write_bytes(data[: len(data) // 2])
    assert f"{tmp_path / SINGLE}: not a whole safetensors file" in refused(tmp_path)


def test_no_weights_says_what_is_there(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    (tmp_path / SINGLE).rename(tmp_path / "pytorch_model.bin")
    message = refused(tmp_path)
    assert f"neither {SINGLE} nor {INDEX} is there" in message
    assert "pytorch_model.bin" in message


def test_missing_shard_is_named(tmp_path: Path) -> None:
    save_tiny(tmp_path, shard_size="60KB")
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    shard.unlink()
    assert f"{INDEX} names {shard.name}, which is not there" in refused(tmp_path)


def test_index_that_contradicts_its_shards_is_refused(tmp_path: Path) -> None:
    save_tiny(tmp_path, shard_size="60KB")
    index = json.loads((tmp_path / INDEX).read_text())
    shards = sorted(set(index["weight_map"].values()))
    index["weight_map"][K_PROJ] = next(each for each in shards if each != index["weight_map"][K_PROJ])
    (tmp_path / INDEX).write_text(json.dumps(index))
    assert f"says that {index['weight_map'][K_PROJ]} holds {K_PROJ}, but it does not" in refused(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    save_tiny(tmp_path, shard_size="60KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    tensors = load_file(shards[1]) | load_file(shards[0])
    save_file(tensors, shards[1], metadata={"format": "pt"})
    assert f"is in both {shards[0].name} and {shards[1].name}" in refused(tmp_path)


def test_a_broken_index_is_named(tmp_path: Path) -> None:
    save_tiny(tmp_path, shard_size="60KB")
    (tmp_path / INDEX).write_text("{}")
    assert f"{tmp_path / INDEX}: not an index of safetensors" in refused(tmp_path)


def test_stored_rotary_tables_are_ignored(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    before = paged_logits(load_model(str(tmp_path)), some_ids(8))
    rewrite(tmp_path, model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(16))
    assert torch.equal(paged_logits(load_model(str(tmp_path)), some_ids(8)), before)


def test_a_tied_head_that_differs_from_the_embedding_is_refused(tmp_path: Path) -> None:
    save_tiny(tmp_path, tie_word_embeddings=True)
    rewrite(tmp_path, lm_head__weight=torch.zeros(96, 64))
    assert "lm_head.weight and model.embed_tokens.weight differ" in refused(tmp_path)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
def test_stored_dtypes_are_cast_on_load(stored: torch.dtype, tmp_path: Path) -> None:
    save_tiny(tmp_path).to(stored).save_pretrained(tmp_path)
    embedding = load_file(tmp_path / SINGLE)["model.embed_tokens.weight"]
    assert embedding.dtype == stored
    for name in ("float32", "bfloat16", "float16"):
        model = load_model(str(tmp_path), name)
        assert (model.config.dtype, model.dtype) == (name, getattr(torch, name))
        assert torch.equal(model.embedding, embedding.to(model.dtype))


def test_auto_is_float32_on_a_cpu(tmp_path: Path) -> None:
    save_tiny(tmp_path).to(torch.bfloat16).save_pretrained(tmp_path)
    assert load_config(str(tmp_path)).dtype == "bfloat16"
    assert load_model(str(tmp_path)).config.dtype == "float32"


def test_unknown_dtype_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="dtype='int8': must be one of auto, float32, bfloat16, float16"):
        load_model("dummy:llama-tiny", "int8")


def test_each_parameter_is_filled_from_its_tensors_in_order(tmp_path: Path) -> None:
    save_tiny(tmp_path, "Qwen2")
    tensors = load_file(tmp_path / SINGLE)
    with Checkpoint(tmp_path) as checkpoint:
        model = Transformer(load_config(str(tmp_path)), torch.float32, torch.device("cpu"))
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
        load_weights(model, checkpoint)
    assert not any(parameter.isnan().any() for parameter in model.parameters())
    prefix = "model.layers.1.self_attn."
    for kind in ("weight", "bias"):
        joined = torch.cat([tensors[f"{prefix}{each}_proj.{kind}"] for each in "qkv"])
        assert torch.equal(model.get_parameter(f"layers.1.attention.qkv_proj.{kind}"), joined)
    joined = torch.cat([tensors[f"model.layers.1.mlp.{each}_proj.weight"] for each in ("gate", "up")])
    assert torch.equal(model.get_parameter("layers.1.mlp.gate_up_proj.weight"), joined)


def test_a_part_of_a_tensor_is_read_alone(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    whole = load_file(tmp_path / SINGLE)[K_PROJ]
    view = torch.empty(16, 32)
    with Checkpoint(tmp_path) as checkpoint:
        checkpoint.read_into(Target(K_PROJ, (64, 64), view, (slice(16, 32), slice(32, 64))))
    assert torch.equal(view, whole[16:32, 32:64])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([slice(0, 4)], "no tensor sets its elements from 8 to 12"),
        ([slice(0, 2), slice(3, 6)], "no tensor sets its elements from 4 to 12"),
        ([slice(0, 4), slice(3, 6)], "overlaps what another tensor sets"),
        ([], "no tensor sets its elements from 0 to 12"),
    ],
)
def test_an_element_unset_or_set_twice_is_refused(rows: list[slice], message: str) -> None:
    parameter = torch.empty(6, 2)
    targets = [Target(f"t{i}", (1,), parameter[each]) for i, each in enumerate(rows)]
    with pytest.raises(ModelLoadError, match=f"parameter w: .*{message}"):
        check_coverage([("w", parameter)], targets)


def test_a_tensor_read_twice_is_refused() -> None:
    parameter = torch.empty(4)
    targets = [Target("t", (2,), parameter[:2]), Target("t", (2,), parameter[2:])]
    with pytest.raises(ModelLoadError, match="t is read twice"):
        check_coverage([("w", parameter)], targets)
