"""From the body of a request to the engine's SamplingParams. Knows no route, no engine."""

from __future__ import annotations

from typing import Any

from ..engine.sampling_params import SamplingParams
from ..errors import InvalidRequest
from .protocol_requests import ChatCompletionRequest, CompletionRequest, GenerationRequest

_SAME = (
    "n", "temperature", "top_p", "seed", "stop", "presence_penalty", "frequency_penalty", "logit_bias", "priority",
    "on_stop", "top_k", "min_p", "repetition_penalty", "ignore_eos", "min_tokens", "stop_token_ids",
    "skip_special_tokens", "include_stop_str_in_output",
)  # fmt: skip


def completion_params(body: CompletionRequest) -> SamplingParams:
    """What a completion request asks of the sampler. Where it only scores its prompt, one token too many is asked for.

    Raises:
        InvalidRequest: naming the field.
    """
    n = 1 if body.n is None else body.n
    if body.best_of not in (None, n):
        raise InvalidRequest("best_of", f"best_of={body.best_of}: must equal n ({n}); choosing among more is not done")
    given = _given(body)
    if body.max_tokens is not None:
        if body.max_tokens == 0 and not body.echo:
            raise InvalidRequest("max_tokens", "max_tokens=0: must be at least 1, or 0 with echo=true")
        if body.max_tokens == 0 and body.on_stop == "pause":
            raise InvalidRequest("max_tokens", "max_tokens=0: must be at least 1 with on_stop='pause'")
        given["max_tokens"] = max(body.max_tokens, 1)
    given["logprobs"] = body.logprobs
    given["prompt_logprobs"] = body.logprobs if body.echo else None
    return SamplingParams(**given)


def chat_params(body: ChatCompletionRequest) -> SamplingParams:
    """What a chat request asks of the sampler; without a limit, the answer may fill the model's context.

    Raises:
        InvalidRequest: naming the field.
    """
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs", f"top_logprobs={body.top_logprobs}: needs logprobs=true")
    limits = {each for each in (body.max_tokens, body.max_completion_tokens) if each is not None}
    if len(limits) > 1:
        raise InvalidRequest(
            "max_completion_tokens",
            f"max_completion_tokens={body.max_completion_tokens} and max_tokens={body.max_tokens}: give one of them",
        )
    given = _given(body)
    given["max_tokens"] = limits.pop() if limits else None
    given["logprobs"] = (body.top_logprobs or 0) if body.logprobs else None
    return SamplingParams(**given)


def _given(body: GenerationRequest) -> dict[str, Any]:
    """The fields that a body sets, null being the same as absent."""
    return {name: value for name in _SAME if (value := getattr(body, name)) is not None}
