"""Rotary positions as a config.json states them, in either of the two places. Knows no tensors.

transformers 5 writes `rope_parameters` (base and scaling together); before, there were `rope_theta` and `rope_scaling`.
Both places are read. The same key with two values is an error: neither place wins silently.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

from ..errors import ModelLoadError

logger = logging.getLogger(__name__)

MAX_WHOLE = 2**31 - 1  # more than any size, position or token id that a tensor here could have
MAX_NUMBER = 1e30  # frequencies are float32
ROPE_KINDS = ("default", "linear", "llama3", "yarn")

_KEYS: dict[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
    "yarn": frozenset(
        {"factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale"}
        | {"mscale_all_dim", "truncate"}
    ),
}


@dataclass(frozen=True)
class RopeConfig:
    """Rotary positions; models/rope.py turns them into frequencies.

    Attributes:
        kind: "default", "linear", "llama3" or "yarn".
        theta: base of the wavelengths.
        factor: by how much the context is stretched (all kinds but "default").
        original_max_position_embeddings: context in tokens before stretching ("llama3", "yarn"), else 0.
        low_freq_factor, high_freq_factor: bounds of the blended band, as fractions of that context ("llama3").
        beta_fast, beta_slow: bounds of the blended band, in turns over that context ("yarn").
        attention_factor: scale of cos and sin ("yarn"); None derives it from factor, mscale and mscale_all_dim.
        mscale, mscale_all_dim: weights of log(factor) in that derivation; 0: not given.
        truncate: round the band's bounds outwards to whole dimensions ("yarn").
    """

    kind: str
    theta: float
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True


def read_rope(raw: dict[str, Any], max_positions: int, default_theta: float | None) -> tuple[RopeConfig, int]:
    """Read RoPE from a parsed config.json.

    Args:
        raw: the config.
        max_positions: its max_position_embeddings.
        default_theta: the base to take, with a logged warning, where neither place has one; None: an error.

    Returns:
        The rotary config, and the longest context in tokens: `max_positions` stretched by `factor` for "linear", at
        least the original context times `factor` for "yarn", unchanged otherwise ("llama3" states the stretched one).

    Raises:
        ModelLoadError: two places disagree (both values named), a kind or key that is not supported, a value missing.
    """
    given = _merge_places(raw)
    kind = given.pop("rope_type", "default")
    if kind not in ROPE_KINDS:
        raise ModelLoadError(
            f"config.json: rope_type={shown(kind)} is not supported; supported are {', '.join(ROPE_KINDS)}"
        )
    theta = given.pop("rope_theta", None)
    if theta is None:
        theta = _default_theta(default_theta)
    turned = given.pop("partial_rotary_factor", 1.0)
    if turned != 1.0:
        raise ModelLoadError(f"config.json: partial_rotary_factor={shown(turned)} is not supported; only 1.0 is")
    unread = sorted(set(given) - _KEYS[kind])
    if any(isinstance(given[key], dict | list) for key in unread):
        raise ModelLoadError(f"config.json: RoPE parameters {', '.join(unread)} are not supported")
    if unread:
        logger.warning("config.json: RoPE keys %s have no meaning for rope_type=%s", ", ".join(unread), kind)
    if kind == "default":
        return RopeConfig(kind, _positive(theta, "rope_theta")), max_positions
    scaling = {key: given[key] for key in _KEYS[kind] & set(given)}
    return _scaled(kind, _positive(theta, "rope_theta"), scaling, raw, max_positions)


def _merge_places(raw: dict[str, Any]) -> dict[str, Any]:
    """One dict of all RoPE keys that have a value; `type` is an old name of `rope_type`."""
    places: list[tuple[str, dict[str, Any]]] = []
    for place in ("rope_parameters", "rope_scaling"):
        value = raw.get(place)
        if value is not None and not isinstance(value, dict):
            raise ModelLoadError(f"config.json: {place}={shown(value)}: must be an object or null")
        places.append((f"{place}.", dict(value or {})))
    places.append(("", {"rope_theta": raw.get("rope_theta")}))
    merged: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for prefix, values in places:
        if values.get("rope_type") is None:
            values["rope_type"] = values.get("type")
        values.pop("type", None)
        for key, value in values.items():
            if value is None:
                continue
            if key in merged and merged[key] != value:
                raise ModelLoadError(
                    f"config.json contradicts itself: {origin[key]}={shown(merged[key])} but {prefix}{key}="
                    f"{shown(value)}; "
                    "remove the wrong one"
                )
            merged.setdefault(key, value)
            origin.setdefault(key, f"{prefix}{key}")
    return merged


def _default_theta(default: float | None) -> float:
    if default is None:
        raise ModelLoadError("config.json has neither rope_parameters.rope_theta nor rope_theta; one is needed")
    logger.warning("config.json has neither rope_parameters.rope_theta nor rope_theta; taking %s", default)
    return default


def _scaled(
    kind: str, theta: float, scaling: dict[str, Any], raw: dict[str, Any], max_positions: int
) -> tuple[RopeConfig, int]:
    """The kinds that stretch. A top-level original context goes before the nested one, as in transformers."""
    original = 0
    if kind in ("llama3", "yarn"):
        nested = scaling.pop("original_max_position_embeddings", None)
        top = raw.get("original_max_position_embeddings")
        stated = top if top is not None else nested if nested is not None else max_positions
        original = _tokens(
            _positive(stated, "original_max_position_embeddings"), f"original_max_position_embeddings={shown(stated)}"
        )
    if kind == "yarn":
        scaling.setdefault("factor", max_positions / original)
    for key in sorted({"factor", "low_freq_factor", "high_freq_factor"} & _KEYS[kind] - set(scaling)):
        raise ModelLoadError(f"config.json: rope_type={kind!r} needs {key}, which is missing")
    truncate = scaling.pop("truncate", True)
    if not isinstance(truncate, bool):
        raise ModelLoadError(f"config.json: truncate={shown(truncate)}: must be true or false")
    # transformers reads a beta of 0 as its default, and an mscale of 0 as absent
    numbers = {key: _number(value, key) for key, value in scaling.items()}
    numbers = {key: value for key, value in numbers.items() if value or not key.startswith("beta")}
    for key in ("factor", "attention_factor", "beta_fast", "beta_slow"):
        _positive(numbers.get(key, 1.0), key)
    for key in ("mscale", "mscale_all_dim"):
        if numbers.get(key, 0.0) < 0:
            raise ModelLoadError(f"config.json: {key}={numbers[key]}: must be at least 0")
    if kind == "yarn" and theta <= 1:
        raise ModelLoadError(f"config.json: rope_theta={theta}: must be above 1 for rope_type='yarn'")
    rope = RopeConfig(kind, theta, original_max_position_embeddings=original, truncate=truncate, **numbers)
    if kind == "llama3" and not 0 < rope.low_freq_factor < rope.high_freq_factor:
        raise ModelLoadError(
            f"config.json: low_freq_factor={rope.low_freq_factor} must be above 0 and below "
            f"high_freq_factor={rope.high_freq_factor}"
        )
    if kind == "llama3":
        return rope, max_positions
    stretched = _tokens((max_positions if kind == "linear" else original) * rope.factor, f"factor={rope.factor}")
    return rope, stretched if kind == "linear" else max(max_positions, stretched)


def shown(value: Any) -> str:
    """A value for a message, cut to a line's length."""
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def _tokens(length: float, cause: str) -> int:
    """A context's length, rounded down, if there can be such a context."""
    if not 1 <= length <= MAX_WHOLE:
        raise ModelLoadError(f"config.json: {cause}: a context of {length} tokens; must be 1 to {MAX_WHOLE}")
    return int(length)


def _number(value: Any, key: str) -> float:
    number = math.nan
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_NUMBER:
        number = float(value)
    if not math.isfinite(number):
        raise ModelLoadError(f"config.json: {key}={shown(value)}: must be a number of at most {MAX_NUMBER:g}")
    return number


def _positive(value: Any, key: str) -> float:
    number = _number(value, key)
    if not number > 0:
        raise ModelLoadError(f"config.json: {key}={shown(value)}: must be above 0")
    return number
