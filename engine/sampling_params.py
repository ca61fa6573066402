"""What a request asks of the sampler and of its own end. Names and meanings are vLLM's, and a few of ours."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(slots=True)
class SamplingParams:
    """Sampling parameters of one request. None means: the model's generation default, else the neutral value."""

    n: int = 1
    temperature: float | None = None  # 0: greedy; neutral 1.0
    top_p: float | None = None  # 0 < top_p <= 1; neutral 1.0
    top_k: int | None = None  # 0 or -1: off
    min_p: float | None = None  # 0 <= min_p <= 1; neutral 0.0
    seed: int | None = None
    max_tokens: int | None = 16  # None: up to max_model_len
    min_tokens: int = 0
    stop: list[str] = field(default_factory=list)  # a single str is accepted
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None  # neutral 1.0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] | None = None
    bad_words: list[str] = field(default_factory=list)
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    on_stop: Literal["finish", "pause"] = "finish"
    pause_after_prefill: bool = False
    priority: int = 0
