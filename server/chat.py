"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fastapi import APIRouter, Request, Response

from .body_route import BodyRoute
from .params import chat_params
from .protocol_answers import GENERATION_ERRORS, ChatCompletion, documented
from .protocol_requests import ChatCompletionRequest
from .serving import Job, serve
from .shapes import ChatShape
from .state import ServerState

PATH = "/v1/chat/completions"

router = APIRouter(tags=["generate"], route_class=BodyRoute)


@router.post(PATH, responses=documented(*GENERATION_ERRORS, answer=ChatCompletion, streams=True))
async def create_chat_completion(body: ChatCompletionRequest, request: Request) -> Response:
    """Answer a conversation, `n` times."""
    return await serve(request, lambda state: _job(state, body))


def _job(state: ServerState, body: ChatCompletionRequest) -> Job:
    model = state.check_model(body.model)
    params = chat_params(body)
    state.limits.check_count(1, params.n)

    def encode() -> list[list[int]]:
        return [state.tokenizer.apply_chat_template(body.messages)]

    def shape(name: str, token_ids: Sequence[list[int]]) -> ChatShape:
        return ChatShape(
            name=name,
            model=model,
            created=int(time.time()),
            fingerprint=state.system_fingerprint,
            n=params.n,
            include_usage=bool(body.stream_options and body.stream_options.include_usage),
            wants_logprobs=params.logprobs is not None,
            texts=state.texts,
        )

    size = sum(len(each["content"]) for each in body.messages)
    return Job(1, size, encode, params, shape, bool(body.stream), body.timeout, {"prompt": "messages"})
