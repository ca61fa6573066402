"""Sampling defaults out of generation_config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nanolens.errors import ModelLoadError
from nanolens.models.generation import GenerationDefaults, read_generation_defaults


def read(directory: Path, raw: Any, config_eos: tuple[int, ...] = ()) -> GenerationDefaults:
    (directory / "generation_config.json").write_text(raw if isinstance(raw, str) else json.dumps(raw))
    return read_generation_defaults(directory, config_eos)


def test_without_the_file_only_the_configs_eos_is_known(tmp_path: Path) -> None:
    assert read_generation_defaults(tmp_path, (7,)) == GenerationDefaults((7,))


def test_values_are_taken(tmp_path: Path) -> None:
    raw = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0, "repetition_penalty": 1.1, "do_sample": True}
    assert read(tmp_path, raw) == GenerationDefaults((), 0.6, 0.95, 20, 0.0, 1.1)


def test_all_eos_ids_of_both_files_count(tmp_path: Path) -> None:
    assert read(tmp_path, {"eos_token_id": [9, 8]}, (8, 7)).eos_token_ids == (9, 8, 7)


@pytest.mark.parametrize(("given", "meant"), [(0, -1), (-1, -1), (1, 1), (None, None)])
def test_top_k_of_zero_is_off(given: int | None, meant: int | None, tmp_path: Path) -> None:
    assert read(tmp_path, {"top_k": given}).top_k == meant


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        ({"top_k": -2}, "top_k=-2"),
        ({"top_k": 1.5}, r"top_k=1\.5"),
        ({"temperature": -1}, "temperature=-1: must be at least 0"),
        ({"top_p": 0}, "top_p=0: must be above 0"),
        ({"min_p": 2}, "min_p=2"),
        ({"repetition_penalty": "high"}, "repetition_penalty='high'"),
        ({"eos_token_id": [-1]}, "eos_token_id"),
        ("[]", "must hold a JSON object"),
        ("{", "can't be read"),
    ],
)
def test_nonsense_is_refused_by_name(raw: Any, named: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=f"generation_config.json.*{named}"):
        read(tmp_path, raw)
