"""POST /v1/completions."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fastapi import APIRouter, Request, Response

from .body_route import BodyRoute
from .params import completion_params
from .prompts import Tokens
from .protocol_answers import GENERATION_ERRORS, Completion, documented
from .protocol_requests import CompletionRequest
from .serving import Job, serve
from .shapes import CompletionShape
from .state import ServerState

PATH = "/v1/completions"

router = APIRouter(tags=["generate"], route_class=BodyRoute)


@router.post(PATH, responses=documented(*GENERATION_ERRORS, answer=Completion, streams=True))
async def create_completion(body: CompletionRequest, request: Request) -> Response:
    """Complete a prompt, or several: `n` texts for each, numbered prompt after prompt."""
    return await serve(request, lambda state: _job(state, body))


def _job(state: ServerState, body: CompletionRequest) -> Job:
    model = state.check_model(body.model)
    params = completion_params(body)
    prompts: list[Tokens] = body.prompt
    state.limits.check_count(len(prompts), params.n)

    def encode() -> list[list[int]]:
        return [state.tokenizer.encode(each) if isinstance(each, str) else each for each in prompts]

    def shape(name: str, token_ids: Sequence[list[int]]) -> CompletionShape:
        return CompletionShape(
            name=name,
            model=model,
            created=int(time.time()),
            fingerprint=state.system_fingerprint,
            n=params.n,
            include_usage=bool(body.stream_options and body.stream_options.include_usage),
            wants_logprobs=params.logprobs is not None,
            texts=state.texts,
            echoes=_texts(state, prompts) if body.echo else [],
            only_scores=body.max_tokens == 0,
            invisible=state.tokenizer.special_ids if params.skip_special_tokens else frozenset(),
        )

    size = sum(len(each) for each in prompts if isinstance(each, str))
    return Job(len(prompts), size, encode, params, shape, bool(body.stream), body.timeout)


def _texts(state: ServerState, prompts: Sequence[Tokens]) -> list[str]:
    """The prompts as texts."""
    return [
        each if isinstance(each, str) else state.tokenizer.decode(each, skip_special_tokens=False) for each in prompts
    ]


