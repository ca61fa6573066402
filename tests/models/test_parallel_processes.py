"""Two processes that share a model over gloo compute what one computes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from nanolens.models import load_model
from tiny_models import paged_logits, save_tiny, some_ids

SUPPORT = Path(__file__).parents[1] / "support"
SIZE = 2
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen2-one-kv-head": ("Qwen2", {"num_key_value_heads": 1}),
    "qwen3-tied-odd-vocabulary": ("Qwen3", {"vocab_size": 97, "tie_word_embeddings": True}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models, and what two processes found."""
    folder = tmp_path_factory.mktemp("split")
    for name, (family, changes) in MODELS.items():
        save_tiny(folder / name, family, **changes)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(SUPPORT / "split_model.py")]
    ranks = [
        subprocess.Popen([*command, str(rank), str(SIZE), str(folder)], env=environment, stderr=subprocess.PIPE)
        for rank in range(SIZE)
    ]
    try:
        said = [rank.communicate(timeout=120)[1].decode() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0] * SIZE, "\n".join(said)
    assert "Warning" not in "".join(said)
    return folder


def test_both_processes_have_the_same_bits(folder: Path) -> None:
    first, second = (torch.load(folder / f"{rank}.pt")["logits"] for rank in range(SIZE))
    assert list(first) == list(second)
    assert len(first) == len(MODELS) * 4
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("chunk", [None, 1])
def test_two_processes_give_the_logits_of_one(name: str, chunk: int | None, folder: Path) -> None:
    logits = torch.load(folder / "0.pt")["logits"]
    alone = paged_logits(load_model(str(folder / name)), some_ids(9))
    torch.testing.assert_close(logits[f"{name} float32 {chunk}"], alone, rtol=1e-4, atol=1e-4)
    error = (logits[f"{name} bfloat16 {chunk}"] - alone).norm() / alone.norm()
    assert error < 0.05


def test_the_time_in_collectives_is_counted(folder: Path) -> None:
    for rank in range(SIZE):
        waited = torch.load(folder / f"{rank}.pt")["waited"]
        assert (waited.dtype, waited.shape) == (torch.int64, (1,))
        assert waited.item() > 0
