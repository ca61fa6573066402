"""What MODEL may be, and what a name that is nothing gets."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from nanolens.errors import ModelLoadError, NanolensError, UnknownModel
from nanolens.models import DummyModel, load_config, load_model, resolve_model
from tiny_models import save_tiny


def test_a_directory_is_itself(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    assert resolve_model(str(tmp_path)) == tmp_path


def test_a_directory_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"no config\.json there"):
        resolve_model(str(tmp_path))


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    with pytest.raises(UnknownModel, match="is a file; give the directory"):
        resolve_model(str(tmp_path / "model.gguf"))


@pytest.mark.parametrize("text", ["{", "[]", '{"architectures": ["LlamaForCausalLM"]}'])
def test_a_config_that_makes_no_sense_names_its_place(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelLoadError, match=str(tmp_path)):
        load_config(str(tmp_path))


@pytest.mark.parametrize("name", ["smollm", "no-such-thing", "/no/such/directory", "a/b/c", ""])
def test_a_name_that_is_nothing_says_what_is_allowed(name: str) -> None:
    with pytest.raises(UnknownModel, match="a directory, a hub name"):
        resolve_model(name)


def test_an_unknown_dummy_lists_the_others() -> None:
    names = r"dummy:qwen3-0\.6b, dummy:qwen3-8b, dummy:smollm2-135m, dummy:qwen3-tiny, dummy:llama-tiny"
    with pytest.raises(UnknownModel, match=names):
        load_model("dummy:nothing")


def test_a_dummy_has_the_shape_that_it_names() -> None:
    found = resolve_model("dummy:qwen3-0.6b")
    assert isinstance(found, DummyModel)
    shape = found.config
    assert (shape.num_layers, shape.hidden_size, shape.intermediate_size) == (28, 1024, 3072)
    assert (shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.vocab_size) == (16, 8, 128, 151936)
    assert (shape.rope.theta, shape.tie_word_embeddings, shape.qk_norm) == (1e6, True, True)
    assert shape.kv_bytes_per_token(2) == 114688


def hub(answer: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", answer)


def test_a_hub_name_is_fetched_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Any] = []

    def answer(name: str, **_: Any) -> str:
        asked.append(name)
        return str(tmp_path)

    hub(answer, monkeypatch)
    assert [resolve_model("some-owner/once") for _ in range(3)] == [tmp_path] * 3
    assert asked == ["some-owner/once"]


def test_a_hub_name_that_cant_be_fetched_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(name: str, **_: Any) -> str:
        raise OSError("no route to the hub")

    hub(answer, monkeypatch)
    with pytest.raises(UnknownModel, match=r"'some-owner/unreachable'.*no route to the hub.*check the name"):
        resolve_model("some-owner/unreachable")


def test_every_error_is_nanolens_own(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["T5"]}))
    for name in (str(tmp_path), "dummy:x", "nothing"):
        with pytest.raises(NanolensError):
            load_model(name)


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, nanolens.models, nanolens.models.tokenizer; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
