"""Bodies of requests, strict: a wrong type, a number out of range and an unknown field are refused by name.

Fields of OpenAI's that would change the answer and aren't supported are refused unless they ask for nothing. What can't
change the answer (`user`, `metadata`, `store` and the like) is taken and ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema

from ..engine.sampling_params import MAX_LOGIT_BIAS, MAX_LOGPROBS, MAX_N
from ..errors import InvalidRequest
from .prompts import check_messages, check_prompt, check_stop, check_tokens

_INT32 = 2**31 - 1
MAX_TIMEOUT_S = 86_400.0

_TOKENS_SCHEMA: dict[str, Any] = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_TEXTS_SCHEMA: dict[str, Any] = {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1}
_PROMPT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        _TEXTS_SCHEMA,
        _TOKENS_SCHEMA,
        {"type": "array", "items": _TOKENS_SCHEMA, "minItems": 1},
    ]
}
_STOP_SCHEMA: dict[str, Any] = {"anyOf": [{"type": "string"}, _TEXTS_SCHEMA | {"maxItems": 64}, {"type": "null"}]}
_PART_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
}
_MESSAGES_SCHEMA: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["role", "content"],
        "properties": {
            "role": {"type": "string", "enum": ["system", "developer", "user", "assistant"]},
            "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART_SCHEMA}]},
            "name": {"type": ["string", "null"]},
        },
    },
}
_APPEND_SCHEMA: dict[str, Any] = {"anyOf": [{"type": "string"}, _TOKENS_SCHEMA, {"type": "null"}]}

Prompt = Annotated[Any, PlainValidator(check_prompt), WithJsonSchema(_PROMPT_SCHEMA)]
Messages = Annotated[Any, PlainValidator(check_messages), WithJsonSchema(_MESSAGES_SCHEMA)]
MaybeMessages = Annotated[
    Any, PlainValidator(lambda value: None if value is None else check_messages(value)),
    WithJsonSchema({"anyOf": [_MESSAGES_SCHEMA, {"type": "null"}]}),
]  # fmt: skip
Stop = Annotated[Any, PlainValidator(check_stop), WithJsonSchema(_STOP_SCHEMA)]
Bias = Annotated[float, Field(ge=-MAX_LOGIT_BIAS, le=MAX_LOGIT_BIAS, allow_inf_nan=False)]
Append = Annotated[
    Any, PlainValidator(lambda value: None if value is None else check_tokens("append", value)),
    WithJsonSchema(_APPEND_SCHEMA),
]  # fmt: skip


def _unsupported(field: str, *nothing: object) -> BeforeValidator:
    """Refuses a field unless its value is one of those that ask for nothing."""

    def check(value: object) -> object:
        if value is None or any(type(value) is type(each) and value == each for each in nothing):
            return value
        raise InvalidRequest(field, f"{field} is not supported by this server: leave it out")

    return BeforeValidator(check)


class StreamOptions(BaseModel):
    """What a stream carries beside text."""

    model_config = ConfigDict(strict=True, extra="forbid")

    include_usage: bool | None = Field(None, description="End with a chunk without choices that holds the usage.")
    include_obfuscation: bool | None = Field(None, description="Ignored: nothing is padded.")


class GenerationRequest(BaseModel):
    """What completions and chat completions have in common."""

    model_config = ConfigDict(strict=True, extra="forbid")

    model: str
    n: int | None = Field(None, ge=1, le=MAX_N)
    temperature: float | None = Field(None, ge=0, le=1e6, allow_inf_nan=False)
    top_p: float | None = Field(None, gt=0, le=1, allow_inf_nan=False)
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    stop: Stop = None
    presence_penalty: float | None = Field(None, ge=-2, le=2, allow_inf_nan=False)
    frequency_penalty: float | None = Field(None, ge=-2, le=2, allow_inf_nan=False)
    logit_bias: dict[str, Bias] | None = Field(None, description="Token id (as text) -> added to its logit.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    # Extensions: names and meanings are SamplingParams'.
    priority: int | None = Field(None, ge=-_INT32, le=_INT32, description="Lower is more urgent.")
    on_stop: Literal["finish", "pause"] | None = Field(
        None, description='"pause" keeps the sequence and its KV: continue it at /v1/requests/{id}/resume.'
    )
    top_k: int | None = Field(None, ge=-1, le=_INT32, description="0 and -1 turn it off.")
    min_p: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    repetition_penalty: float | None = Field(None, ge=1e-6, le=1e6, allow_inf_nan=False)
    ignore_eos: bool | None = None
    min_tokens: int | None = Field(None, ge=0, le=_INT32)
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0, le=_INT32)]], Field(fail_fast=True)] | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    timeout: float | None = Field(
        None, gt=0, le=MAX_TIMEOUT_S, allow_inf_nan=False,
        description='Seconds; the request is ended then, with finish_reason "abort" and stop_reason "timeout".',
    )  # fmt: skip

    # Taken and ignored.
    user: str | None = Field(None, description="Ignored.")


class CompletionRequest(GenerationRequest):
    """Body of POST /v1/completions."""

    prompt: Prompt
    max_tokens: int | None = Field(None, ge=0, le=_INT32, description="0 needs `echo`: only the prompt is scored.")
    echo: bool | None = Field(None, description="Put the prompt in front of each text.")
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    best_of: int | None = Field(None, ge=1, le=MAX_N, description="Must equal n.")
    suffix: Annotated[str | None, _unsupported("suffix", "")] = Field(None, description="Not supported.")


class ChatCompletionRequest(GenerationRequest):
    """Body of POST /v1/chat/completions."""

    messages: Messages
    max_tokens: int | None = Field(None, ge=1, le=_INT32, description="The older name of max_completion_tokens.")
    max_completion_tokens: int | None = Field(None, ge=1, le=_INT32)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS, description="Needs logprobs=true.")
    response_format: Annotated[Any, _unsupported("response_format", {"type": "text"})] = None
    tools: Annotated[Any, _unsupported("tools", [])] = None
    tool_choice: Annotated[Any, _unsupported("tool_choice", "none", "auto")] = None
    functions: Annotated[Any, _unsupported("functions", [])] = None
    function_call: Annotated[Any, _unsupported("function_call", "none", "auto")] = None
    modalities: Annotated[Any, _unsupported("modalities", ["text"])] = None
    audio: Annotated[Any, _unsupported("audio")] = None
    prediction: Annotated[Any, _unsupported("prediction")] = None
    web_search_options: Annotated[Any, _unsupported("web_search_options")] = None

    # Taken and ignored.
    parallel_tool_calls: bool | None = Field(None, description="Ignored: there are no tools.")
    metadata: dict[str, str] | None = Field(None, description="Ignored.")
    store: bool | None = Field(None, description="Ignored: nothing is stored.")
    service_tier: str | None = Field(None, description="Ignored.")
    safety_identifier: str | None = Field(None, description="Ignored.")
    prompt_cache_key: str | None = Field(None, description="Ignored: equal prefixes are always shared.")
    reasoning_effort: str | None = Field(None, description="Ignored.")
    verbosity: str | None = Field(None, description="Ignored.")


class ResumeRequest(BaseModel):
    """Body of POST /v1/requests/{id}/resume."""

    model_config = ConfigDict(strict=True, extra="forbid")

    append: Append = Field(None, description="Text or token ids that come after what the sequence has.")
    max_tokens: int | None = Field(None, ge=1, le=_INT32, description="Counts from here on.")
    index: int | None = Field(None, ge=0, le=MAX_N, description="Which of the request's sequences; all paused ones.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    timeout: float | None = Field(None, gt=0, le=MAX_TIMEOUT_S, allow_inf_nan=False)


class TokenizeRequest(BaseModel):
    """Body of POST /tokenize: a prompt, or messages."""

    model_config = ConfigDict(strict=True, extra="forbid")

    model: str | None = None
    prompt: str | None = None
    messages: MaybeMessages = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True


class DetokenizeRequest(BaseModel):
    """Body of POST /detokenize."""

    model_config = ConfigDict(strict=True, extra="forbid")

    model: str | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0, le=_INT32)]], Field(fail_fast=True)]
    skip_special_tokens: bool = False
