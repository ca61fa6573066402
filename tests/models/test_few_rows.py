"""A layer's form for few rows, with norms, gate and additions inside its products, gives what the plain form gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nanolens.kernels import linear
from nanolens.models import load_model, transformer
from tiny_models import paged_logits, save_tiny, some_ids


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_few_rows_give_the_logits_of_the_plain_form(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny(tmp_path, family)
    monkeypatch.setattr(linear, "_pack", lambda weight: None)  # as on a GPU, weights stay where they are
    model, ids = load_model(str(tmp_path), "float32", "cpu"), some_ids(12)
    plain = paged_logits(model, ids)
    seen: list[int] = []

    def few(x: torch.Tensor) -> bool:
        seen.append(x.shape[0])
        return True

    monkeypatch.setattr(transformer, "has_few_rows", few)
    torch.testing.assert_close(paged_logits(model, ids, chunk=1), plain, rtol=1e-4, atol=1e-4)
    assert seen == [1] * len(ids) * model.config.num_layers
