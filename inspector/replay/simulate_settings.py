"""The settings of a what-if: those of the recorded run, some of them changed. Knows a run's first event only."""

from __future__ import annotations

import dataclasses
import math
from typing import Union, get_args, get_type_hints

from ...engine.config import EngineConfig
from ...errors import InvalidConfig
from ...telemetry.events import EngineStarted
from .requests import check_pool, config_of

Value = Union[str, int, float, bool, None]
SETTABLE = (
    "num_blocks", "block_size", "host_blocks", "max_num_seqs", "max_num_batched_tokens", "max_prefill_chunk",
    "batching", "policy", "aging_s", "preemption_mode", "prefix_cache", "overlap", "paused_ttl_s",
)  # fmt: skip
SWEEP_POINTS, MOST_POINTS = 7, 64
_WORDS: dict[str, Value] = {"none": None, "true": True, "false": False, "on": True, "off": False}
_HINTS = get_type_hints(EngineConfig)


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One change: `NAME=VALUE`."""

    name: str
    value: Value

    def __str__(self) -> str:
        return f"{self.name}={'none' if self.value is None else self.value}"


def recorded_value(started: EngineStarted, name: str) -> Value:
    """A setting of a recorded run; its size where the engine chose that."""
    return started.num_blocks if name == "num_blocks" else getattr(config_of(started), name)


def parse_setting(text: str, started: EngineStarted) -> Setting:
    """`NAME=VALUE`, or `NAME=2x` for a multiple of what was recorded.

    Raises:
        InvalidConfig: no such setting, or no such value.
    """
    name, value = _split(text, "--set")
    return _checked(name, _value(name, value, started), text)


def parse_sweep(text: str, started: EngineStarted) -> list[Setting]:
    """`NAME=FROM..TO`, `NAME=FROM..TO:POINTS` or `NAME=A,B,C`, each value as in `--set`; rising in equal ratios.

    Raises:
        InvalidConfig: no such setting, or no such values.
    """
    name, values = _split(text, "--sweep")
    low, dots, rest = values.partition("..")
    if not dots:
        found = [_checked(name, _value(name, value, started), text) for value in values.split(",")]
    else:
        high, _, count = rest.partition(":")
        found = _between(name, low, high, _points(text, count), started, text)
    if len(found) < 2:
        raise InvalidConfig(f"--sweep {text}: needs at least two values")
    return found


def changed_start(started: EngineStarted, settings: list[Setting]) -> tuple[EngineConfig, int]:
    """(settings, blocks in the pool) of a run with some changes; another block size leaves the pool its bytes.

    Raises:
        InvalidConfig: they can't be used together.
    """
    named = {setting.name: setting.value for setting in settings}
    if len(named) < len(settings):
        raise InvalidConfig(f"{', '.join(map(str, settings))}: a setting is named twice")
    config = config_of(started)
    named = _resized(started, config, named) | named
    changed = dataclasses.replace(config, **named)  # type: ignore[arg-type]
    if changed.num_blocks is None:
        raise InvalidConfig("num_blocks=none: must be a number here: no device is there to size the pool by")
    if changed.preemption_mode == "swap" and not changed.host_blocks + changed.disk_blocks:
        raise InvalidConfig("preemption_mode=swap without host_blocks: nowhere to swap to; set host_blocks too")
    wrong = check_pool(changed.num_blocks, changed)
    if wrong:
        raise InvalidConfig(wrong)
    return changed, changed.num_blocks


def _resized(started: EngineStarted, config: EngineConfig, named: dict[str, Value]) -> dict[str, Value]:
    """The blocks that the pools' bytes come to with another block size, for the pools whose size is not changed too.

    Raises:
        InvalidConfig: not even one.
    """
    size = named.get("block_size")
    found: dict[str, Value] = {}
    if not isinstance(size, int) or size <= 0:
        return {}
    for name, before in (("num_blocks", started.num_blocks), ("host_blocks", config.host_blocks)):
        tokens = before * started.block_size
        if before and name not in named:
            if tokens < size:
                raise InvalidConfig(
                    f"block_size={size}: more than the {tokens:,} tokens that {name}={before} had room for with "
                    f"block_size={started.block_size}; give at most {tokens}, or set {name} too"
                )
            found[name] = tokens // size
    return found


def _split(text: str, flag: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not value:
        raise InvalidConfig(f"{flag} {text}: must be NAME=VALUE")
    if name not in SETTABLE:
        raise InvalidConfig(f"{flag} {text}: no setting that a replay can change; known are {', '.join(SETTABLE)}")
    return name, value


def _value(name: str, text: str, started: EngineStarted) -> Value:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    kinds = set(get_args(_HINTS[name])) | {_HINTS[name]}
    if not kinds & {int, float}:
        return text
    if text.endswith("x"):
        recorded, times = recorded_value(started, name), _number(text[:-1])
        if not isinstance(recorded, int | float) or isinstance(recorded, bool):
            raise InvalidConfig(f"{name}={text}: nothing to multiply: it was {recorded} in the recorded run")
        if times is None:
            raise InvalidConfig(f"{name}={text}: must be a number before the x, as in 2x")
        if recorded == 0:
            raise InvalidConfig(f"{name}={text}: nothing to multiply: it was 0 in the recorded run; give a number")
        if times <= 0:
            raise InvalidConfig(f"{name}={text}: must be a number above 0 before the x, as in 0.5x")
        product = recorded * times
        return max(1, round(product)) if int in kinds else product
    number = _number(text)
    if number is None:
        return text  # what the setting allows is told by its own check
    return int(number) if int in kinds and number == int(number) else number


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _checked(name: str, value: Value, text: str) -> Setting:
    try:
        config = EngineConfig(**{name: value})  # type: ignore[arg-type]
    except InvalidConfig as error:
        told = str(error)
        raise InvalidConfig(told if told.startswith(f"{name}=") else f"{text}: {told}") from None
    return Setting(name, getattr(config, name))


def _points(text: str, count: str) -> int:
    if not count:
        return SWEEP_POINTS
    if not count.isdecimal() or not 2 <= int(count) <= MOST_POINTS:
        raise InvalidConfig(f"--sweep {text}: {count!r} points: must be a number from 2 to {MOST_POINTS}")
    return int(count)


def _between(name: str, low: str, high: str, points: int, started: EngineStarted, text: str) -> list[Setting]:
    ends = [_value(name, end, started) for end in (low, high)]
    if not all(isinstance(end, int | float) and not isinstance(end, bool) and end > 0 for end in ends):
        raise InvalidConfig(f"--sweep {text}: a range needs numbers above 0 at both ends; list other values: A,B,C")
    first, last = (float(end) for end in ends)  # type: ignore[arg-type]
    whole = all(isinstance(end, int) for end in ends)
    values = [first * (last / first) ** (i / (points - 1)) for i in range(points)]
    found = dict.fromkeys(round(value) if whole else value for value in values)
    return [_checked(name, value, text) for value in found]
