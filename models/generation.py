"""What a model suggests for its own sampling, from generation_config.json. Knows no request."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ModelLoadError
from .config import read_token_ids

_FILE = "generation_config.json"

_RULES: dict[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (lambda value: value >= 0, "at least 0"),
    "top_p": (lambda value: 0 < value <= 1, "above 0 and at most 1"),
    "min_p": (lambda value: 0 <= value <= 1, "between 0 and 1"),
    "repetition_penalty": (lambda value: value > 0, "above 0"),
}


@dataclass(frozen=True)
class GenerationDefaults:
    """Sampling defaults; None where the model says nothing. A request's own values win.

    `do_sample` has no part: a model that ships temperature and top_p is meant to be sampled with them, and a request
    asks for greedy decoding by temperature 0.

    Attributes:
        eos_token_ids: every id that ends a text: those of generation_config.json, then those of config.json.
        temperature, top_p, min_p, repetition_penalty: as SamplingParams has them.
        top_k: -1 where the file switches it off (0 or -1).
    """

    eos_token_ids: tuple[int, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


def read_generation_defaults(directory: Path, config_eos: tuple[int, ...]) -> GenerationDefaults:
    """Read a directory's generation_config.json; without one, only the config's EOS ids are known.

    Args:
        directory: of the model.
        config_eos: the ids that config.json names.

    Raises:
        ModelLoadError: a file that is no JSON object, or a value out of range; file and key are named.
    """
    path = directory / _FILE
    if not path.exists():
        return GenerationDefaults(config_eos)
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path}: can't be read: {error}") from error
    if not isinstance(raw, dict):
        raise ModelLoadError(f"{path}: must hold a JSON object")
    own_eos = read_token_ids(raw.get("eos_token_id"), f"{path}: eos_token_id")
    numbers = {key: _number(raw, key, path) for key in _RULES}
    return GenerationDefaults(tuple(dict.fromkeys(own_eos + config_eos)), top_k=_top_k(raw, path), **numbers)


def _number(raw: dict[str, Any], key: str, path: Path) -> float | None:
    value = raw.get(key)
    if value is None:
        return None
    holds, allowed = _RULES[key]
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not holds(value):
        raise ModelLoadError(f"{path}: {key}={value!r}: must be {allowed}")
    return float(value)


def _top_k(raw: dict[str, Any], path: Path) -> int | None:
    value = raw.get("top_k")
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < -1:
        raise ModelLoadError(f"{path}: top_k={value!r}: must be at least 1, or 0 or -1 for off")
    return value or -1
