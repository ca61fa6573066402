"""GPUs of one host, or ranks that share one, sum and gather in graphs too; split models give the whole ones' logits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gpu_checks import need_gpu

need_gpu()

from gpu_ranks import logits  # noqa: E402
from nanolens.models import load_model  # noqa: E402
from tiny_models import save_tiny  # noqa: E402

pytestmark = pytest.mark.gpu
SUPPORT = Path(__file__).parents[1] / "support"


@pytest.mark.parametrize("size", sorted({2, min(4, max(2, torch.cuda.device_count()))}))
def test_ranks_on_gpus_agree_with_float64_and_with_one_gpu(size: int, tmp_path: Path) -> None:
    save_tiny(tmp_path / "llama", attention_bias=True, mlp_bias=True)
    save_tiny(tmp_path / "qwen3", "Qwen3", vocab_size=97, tie_word_embeddings=True, num_key_value_heads=1)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(SUPPORT / "gpu_ranks.py")]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(size), str(tmp_path)], env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(size)
    ]  # fmt: skip
    try:
        said = [rank.communicate(timeout=300)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0] * size, "\n".join(said)
    print(said[0])
    for name in ("llama", "qwen3"):
        alone = load_model(str(tmp_path / name), "float32", "cuda")
        for chunk in (1, 12):
            whole = logits(alone, chunk)
            for rank in range(size):
                found = torch.load(tmp_path / f"{rank}.pt")[name][chunk]
                torch.testing.assert_close(found, whole, rtol=1e-3, atol=1e-3)
