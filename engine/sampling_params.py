"""What a request asks of the sampler and of its own end. Names and meanings are vLLM's, and a few of ours.

Knows no model: defaults and the vocabulary's size are given to it.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ..errors import InvalidRequest, shown

MAX_N = 1024  # sequences of one request
MAX_LOGPROBS = 20  # most likely tokens reported at a position
MAX_STOP_STRINGS = 64
MAX_BAD_WORDS = 1024
MAX_LOGIT_BIAS = 100.0
GREEDY_BELOW = 1e-5  # lower temperatures count as 0: dividing by them overflows
_INT32 = 2**31 - 1

# Least and most of each number. The bounds of temperature and repetition_penalty keep float32 logits finite.
_WHOLE: dict[str, tuple[int, int]] = {
    "n": (1, MAX_N),
    "top_k": (-1, _INT32),
    "max_tokens": (1, _INT32),
    "min_tokens": (0, _INT32),
    "logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs": (0, MAX_LOGPROBS),
    "seed": (-(2**63), 2**63 - 1),
    "priority": (-_INT32, _INT32),
}
_REAL: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 1e6),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (1e-6, 1e6),
}
_HINTS = {"top_k": " (0 and -1 turn it off)", "temperature": " (0 is greedy)"}
_FLAGS = ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output", "pause_after_prefill")
# What a field is when neither the request nor the model says anything.
_NEUTRAL: dict[str, float | int] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
_OPTIONAL = frozenset(_NEUTRAL) | {"seed", "max_tokens", "logprobs", "prompt_logprobs"}
_CONTENT = ("stop", "stop_token_ids", "logit_bias", "bad_words")  # never in the journal


class GenerationDefaults(Protocol):
    """The sampling defaults that a model brings along; None where it says nothing."""

    @property
    def temperature(self) -> float | None:
        """Default temperature."""

    @property
    def top_p(self) -> float | None:
        """Default top_p."""

    @property
    def top_k(self) -> int | None:
        """Default top_k."""

    @property
    def min_p(self) -> float | None:
        """Default min_p."""

    @property
    def repetition_penalty(self) -> float | None:
        """Default repetition_penalty."""


@dataclass(slots=True)
class SamplingParams:
    """Sampling parameters of one request. None means: the model's generation default, else the neutral value.

    Raises:
        InvalidRequest: a value of the wrong type or out of range; its `field` names the parameter.
    """

    n: int = 1
    temperature: float | None = None  # 0: greedy; neutral 1.0
    top_p: float | None = None  # 0 < top_p <= 1; neutral 1.0
    top_k: int | None = None  # 0 or -1: off
    min_p: float | None = None  # 0 <= min_p <= 1; neutral 0.0
    seed: int | None = None  # any int64; kept modulo 2**63
    max_tokens: int | None = 16  # None: up to max_model_len
    min_tokens: int = 0  # as many come before a stop string or an end-of-sequence token can end the text
    stop: list[str] = field(default_factory=list)  # a single str is accepted
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None  # neutral 1.0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] | None = None  # keys may be strings of digits, as JSON has them
    bad_words: list[str] = field(default_factory=list)
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    on_stop: Literal["finish", "pause"] = "finish"
    pause_after_prefill: bool = False
    priority: int = 0

    def __post_init__(self) -> None:
        """Check every field and bring it to its plain type."""
        for name in (*_WHOLE, *_REAL):
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL:
                setattr(self, name, check_whole(name, value) if name in _WHOLE else _real(name, value, *_REAL[name]))
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise _invalid(name, getattr(self, name), "must be true or false")
        if not isinstance(self.on_stop, str) or self.on_stop not in ("finish", "pause"):
            raise _invalid("on_stop", self.on_stop, "must be 'finish' or 'pause'")
        self.on_stop = "pause" if self.on_stop == "pause" else "finish"
        if self.top_p == 0.0:
            raise _invalid("top_p", self.top_p, "must be above 0 and at most 1")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _invalid("min_tokens", self.min_tokens, f"must be at most max_tokens ({self.max_tokens})")
        stop: object = self.stop
        self.stop = _strings("stop", [stop] if isinstance(stop, str) else stop, MAX_STOP_STRINGS)
        self.bad_words = _strings("bad_words", self.bad_words, MAX_BAD_WORDS)
        self.stop_token_ids = _ids("stop_token_ids", self.stop_token_ids)
        self.logit_bias = None if self.logit_bias is None else _biases(self.logit_bias)
        self.seed = None if self.seed is None else self.seed % 2**63

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken; False while the temperature is None."""
        return self.temperature is not None and self.temperature < GREEDY_BELOW

    def resolve(self, defaults: GenerationDefaults) -> SamplingParams:
        """Return a copy in which no sampling field is None: own values first, then the model's, then neutral ones.

        Raises:
            InvalidRequest: the model's default for a field is out of range.
        """
        filled: dict[str, Any] = {}
        for name, neutral in _NEUTRAL.items():
            if getattr(self, name) is None:
                of_model = getattr(defaults, name)
                filled[name] = neutral if of_model is None else of_model
        return dataclasses.replace(self, **filled)

    def validate_for_model(self, vocab_size: int) -> None:
        """Check the token ids that the request names against the vocabulary.

        Raises:
            InvalidRequest: an id that is not from 0 to vocab_size - 1.
        """
        check_token_ids("stop_token_ids", self.stop_token_ids, vocab_size)
        for token_id in self.logit_bias or ():
            if not 0 <= token_id < vocab_size:
                given = f"logit_bias {{{token_id}}}"
                raise InvalidRequest("logit_bias", f"{given}: must be a token id from 0 to {vocab_size - 1}")

    def as_record(self) -> dict[str, str | int | float | bool | None]:
        """The parameters as the journal holds them: numbers and flags, and of what names content only how many."""
        record: dict[str, str | int | float | bool | None] = {}
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if f.name in _CONTENT:
                record[f"num_{f.name}"] = len(value or ())
            else:
                record[f.name] = value
        return record


def check_token_ids(name: str, token_ids: Sequence[int], vocab_size: int) -> None:
    """Check that ids, of a prompt or of a parameter, are in the vocabulary.

    Raises:
        InvalidRequest: with field `name`, naming the first id that is no whole number from 0 to vocab_size - 1.
    """
    for index, token_id in enumerate(token_ids):
        if type(token_id) is not int or not 0 <= token_id < vocab_size:
            given = f"{name}[{index}]={shown(token_id)}"
            raise InvalidRequest(name, f"{given}: must be a token id from 0 to {vocab_size - 1}")


def _invalid(name: str, value: object, allowed: str) -> InvalidRequest:
    field_name = name.partition(" ")[0]
    return InvalidRequest(field_name, f"{name}={shown(value)}: {allowed}{_HINTS.get(name, '')}")


def check_whole(name: str, value: object) -> int:
    """A whole number in the range of the parameter of this name, as a plain int.

    Raises:
        InvalidRequest: with field `name`.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise _invalid(name, value, "must be a whole number")
    return int(_within(name, int(value), *_WHOLE[name]))


def _real(name: str, value: object, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise _invalid(name, value, "must be a number")
    if isinstance(value, numbers.Integral):  # compared as it is: a huge one has no float
        return float(_within(name, int(value), least, most))
    if not math.isfinite(value):
        raise _invalid(name, float(value), "must be a finite number")
    return _within(name, float(value), least, most)


def _within(name: str, value: float, least: float, most: float) -> float:
    if value < least:
        raise _invalid(name, value, f"must be at least {_plain(least)}")
    if value > most:
        raise _invalid(name, value, f"must be at most {_plain(most)}")
    return value


def _plain(limit: float) -> str:
    return str(limit) if isinstance(limit, int) else f"{limit:g}"


def _listed(name: str, values: object, of: str) -> list[Any]:
    if values is None:
        return []
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise InvalidRequest(name, f"{name}: must be a list of {of}, not {type(values).__name__}")
    try:
        return list(values)
    except TypeError:  # an array without dimensions
        raise InvalidRequest(name, f"{name}: must be a list of {of}, not one value") from None


def _strings(name: str, values: object, most: int) -> list[str]:
    strings = _listed(name, values, "strings")
    if len(strings) > most:
        raise InvalidRequest(name, f"{name}: {len(strings)} strings; must be at most {most}")
    for index, value in enumerate(strings):  # messages don't repeat the text: they end up in the journal
        if not isinstance(value, str):
            raise InvalidRequest(name, f"{name}[{index}]: must be a string, not {type(value).__name__}")
        if not value:
            raise InvalidRequest(name, f"{name}[{index}]='': must not be empty; leave it out")
    return strings


def _ids(name: str, values: object) -> list[int]:
    ids = _listed(name, values, "token ids")
    for index, value in enumerate(ids):
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 0:
            raise InvalidRequest(name, f"{name}[{index}]={shown(value)}: must be a token id, 0 or above")
    return [int(value) for value in ids]


def _biases(values: object) -> dict[int, float]:
    if not isinstance(values, Mapping):
        raise InvalidRequest("logit_bias", f"logit_bias: must map token ids to numbers, not {type(values).__name__}")
    biases: dict[int, float] = {}
    for key, value in values.items():
        digits = isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 10
        token_id = int(key) if digits else key
        given = f"logit_bias {{{shown(key)}}}"
        if isinstance(token_id, bool) or not isinstance(token_id, numbers.Integral) or token_id < 0:
            raise InvalidRequest("logit_bias", f"{given}: must be a token id, 0 or above")
        if token_id in biases:
            raise InvalidRequest("logit_bias", f"{given}: the token id is given twice")
        biases[int(token_id)] = _real(given, value, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)
    return biases
