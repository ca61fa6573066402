"""Bodies of answers, as the OpenAPI description shows them. The routes write them without these classes, for speed."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

FINISH_REASONS = 'stop, length; "abort" (a deadline, an operator), "pause" (on_stop="pause"); null while it goes on.'


class ErrorObject(BaseModel):
    """What went wrong."""

    message: str = Field(description="What was given, what is allowed, what to do.")
    type: str
    param: str | None = Field(description="The field at fault.")
    code: str | None = Field(description="For programs to tell errors apart by.")


class ErrorAnswer(BaseModel):
    """Every error."""

    error: ErrorObject


class Usage(BaseModel):
    """Tokens: each prompt counted once, every generated id of all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Choice(BaseModel):
    """What every choice tells."""

    index: int = Field(description="Place of the prompt * n + place of the sequence.")
    finish_reason: str | None = Field(description=FINISH_REASONS)
    stop_reason: int | str | None = Field(
        description='The stop string or stop token id that ended it; "timeout" where the deadline did.'
    )
    pause_reason: str | None = Field(None, description="Why it is paused; absent unless it is.")


class TextLogprobs(BaseModel):
    """One entry for each token."""

    tokens: list[str] = Field(description="Texts; bytes that are no whole characters as `bytes:\\xf0\\x9f`.")
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int] = Field(description="Characters of the choice's text before the token.")


class TextChoice(Choice):
    """One text."""

    text: str
    logprobs: TextLogprobs | None


class Answer(BaseModel):
    """What every answer tells."""

    id: str = Field(description="The engine's request id; with several prompts, theirs are numbered behind it.")
    created: int
    model: str
    system_fingerprint: str
    usage: Usage | None = Field(None, description="In a stream: of the last chunk, with stream_options.include_usage.")


class Completion(Answer):
    """A completion, or a chunk of one."""

    object: Literal["text_completion"]
    choices: list[TextChoice]


class TokenLogprob(BaseModel):
    """A token at a position."""

    token: str
    logprob: float
    bytes: list[int]


class TopTokenLogprob(TokenLogprob):
    """The token that was sampled, and the likeliest ones."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(BaseModel):
    """One entry for each token."""

    content: list[TopTokenLogprob]
    refusal: None


class ChatMessage(BaseModel):
    """The model's message."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(Choice):
    """One answer."""

    message: ChatMessage
    logprobs: ChatLogprobs | None


class ChatCompletion(Answer):
    """A chat completion."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class ModelCard(BaseModel):
    """A model under one of its names."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int


class ModelList(BaseModel):
    """All names."""

    object: Literal["list"]
    data: list[ModelCard]


class Tokenized(BaseModel):
    """Token ids."""

    count: int
    max_model_len: int
    tokens: list[int]


class Detokenized(BaseModel):
    """A text."""

    prompt: str


GENERATION_ERRORS = (400, 401, 404, 413, 429, 500, 503)
Documented = dict[int | str, dict[str, Any]]
_WORDS = {
    400: "A field is wrong; `param` names it.",
    401: "No API key, or a wrong one.",
    404: "No such model, or no such request.",
    409: "The request is not paused.",
    413: "The body is too large.",
    429: "The queue is full; Retry-After says when to come back.",
    500: "The request failed.",
    503: "The server stops, or the engine has ended.",
}


def documented(
    *statuses: int, answer: type[BaseModel] | None = None, union: Any = None, streams: bool = False
) -> Documented:
    """What a route answers, for its description.

    Args:
        statuses: of errors.
        answer: the body of a success.
        union: the same, where there are several.
        streams: a success may be a stream of server-sent events.
    """
    success: dict[str, Any] = {"description": "The answer."}
    if answer is not None or union is not None:
        success["model"] = answer or union
    if streams:
        success["content"] = {"text/event-stream": {"schema": {"type": "string"}}}
    found: Documented = {200: success}
    return found | {status: {"model": ErrorAnswer, "description": _WORDS[status]} for status in statuses}
