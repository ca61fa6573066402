"""W37: the rotary base counts wherever config.json has it; two values are an error, and 10000 is never silent."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from nanolens.errors import ModelLoadError
from nanolens.models import load_config, load_model
from tiny_models import greedy, paged_logits, reference_logits, save_tiny, some_ids

THETA = 100000.0
IN_PARAMETERS: dict[str, Any] = {"rope_parameters": {"rope_type": "default", "rope_theta": THETA}}
AT_TOP: dict[str, Any] = {"rope_theta": THETA}
GREEDY = 30


def with_rope(source: Path, directory: Path, **rope: Any) -> str:
    """The model in `source` again, its weights by link, with only these RoPE keys in config.json."""
    directory.mkdir()
    for each in source.iterdir():
        if each.name != "config.json":
            (directory / each.name).symlink_to(each)
    config = json.loads((source / "config.json").read_text())
    kept = {key: value for key, value in config.items() if key not in ("rope_theta", "rope_parameters")}
    (directory / "config.json").write_text(json.dumps(kept | rope))
    return str(directory)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    directory = tmp_path_factory.mktemp("tiny")
    return directory, save_tiny(directory, "Llama", **IN_PARAMETERS)


@pytest.mark.parametrize("rope", [IN_PARAMETERS, AT_TOP], ids=["rope_parameters", "rope_theta"])
def test_either_place_gives_transformers_logits(rope: dict[str, Any], tiny: tuple[Path, Any], tmp_path: Path) -> None:
    name = with_rope(tiny[0], tmp_path / "m", **rope)
    assert load_config(name).rope.theta == THETA
    ids = some_ids(64)
    difference = (paged_logits(load_model(name), ids) - reference_logits(tiny[1], ids)).abs().max()
    assert float(difference) <= 1e-3


def test_the_base_shows_in_the_logits(tiny: tuple[Path, Any], tmp_path: Path) -> None:
    name = with_rope(tiny[0], tmp_path / "m", rope_theta=10000.0)
    ids = some_ids(64)
    difference = (paged_logits(load_model(name), ids) - reference_logits(tiny[1], ids)).abs().max()
    assert float(difference) > 0.1


def test_two_values_are_an_error_that_names_both(tiny: tuple[Path, Any], tmp_path: Path) -> None:
    name = with_rope(tiny[0], tmp_path / "m", **IN_PARAMETERS, rope_theta=10000.0)
    with pytest.raises(ModelLoadError, match=r"rope_parameters.rope_theta=100000\.0 but rope_theta=10000\.0"):
        load_model(name)


def test_no_value_is_llamas_default_with_a_warning(
    tiny: tuple[Path, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = with_rope(tiny[0], tmp_path / "m")
    with caplog.at_level(logging.WARNING):
        assert load_config(name).rope.theta == 10000.0
    assert "taking 10000.0" in caplog.text


@pytest.mark.model
def test_smollm2_with_either_place_equals_transformers(smollm2_dir: Path, tmp_path: Path) -> None:
    from transformers import LlamaForCausalLM

    names = [
        with_rope(smollm2_dir, tmp_path / "in_parameters", **IN_PARAMETERS),
        with_rope(smollm2_dir, tmp_path / "at_top", **AT_TOP),
    ]
    reference = LlamaForCausalLM.from_pretrained(names[0], dtype=torch.float32).eval()
    ids = [1, 4093, 198, 3750, 2594, 354, 4798, 2827, 5862, 1681, 2, 198, 1, 520, 9531, 198]
    generated = reference.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=GREEDY, eos_token_id=None)
    expected = generated[0, len(ids) :].tolist()
    models = [load_model(name) for name in names]
    assert [model.config.rope.theta for model in models] == [THETA, THETA]
    exact = reference_logits(reference, ids + expected)
    for model in models:
        assert float((paged_logits(model, ids + expected) - exact).abs().max()) <= 1e-3
    assert greedy(models[1], ids, GREEDY) == expected
