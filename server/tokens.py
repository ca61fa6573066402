"""POST /tokenize, POST /detokenize, GET /v1/models: what needs the tokenizer or a name, and no engine."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response

from ..engine.sampling_params import check_token_ids
from ..errors import InvalidRequest
from .body_route import BodyRoute
from .errors import json_response
from .protocol_answers import Detokenized, ModelCard, ModelList, Tokenized, documented
from .protocol_requests import DetokenizeRequest, TokenizeRequest
from .state import ServerState, state_of

router = APIRouter(tags=["model"], route_class=BodyRoute)


@router.post("/tokenize", responses=documented(400, 401, 404, 413, 500, 503, answer=Tokenized))
async def tokenize(body: TokenizeRequest, request: Request) -> Response:
    """The token ids of a prompt, or of a conversation."""
    state = state_of(request)
    if body.model is not None:
        state.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("prompt", "prompt, messages: give one of them")
    ids = await asyncio.to_thread(_encode, state, body)
    return json_response({"count": len(ids), "max_model_len": state.engine.started.max_model_len, "tokens": ids})


def _encode(state: ServerState, body: TokenizeRequest) -> list[int]:
    if body.prompt is not None:
        return state.tokenizer.encode(body.prompt, body.add_special_tokens)
    return state.tokenizer.apply_chat_template(body.messages, body.add_generation_prompt)


@router.post("/detokenize", responses=documented(400, 401, 404, 413, 500, 503, answer=Detokenized))
async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
    """The text of token ids."""
    state = state_of(request)
    if body.model is not None:
        state.check_model(body.model)
    check_token_ids("tokens", body.tokens, state.engine.started.vocab_size)
    text = await asyncio.to_thread(
        state.tokenizer.decode, body.tokens, skip_special_tokens=body.skip_special_tokens
    )
    return json_response({"prompt": text})


@router.get("/v1/models", responses=documented(401, 500, answer=ModelList))
async def list_models(request: Request) -> Response:
    """The model, under each of its names."""
    state = state_of(request)
    return json_response({"object": "list", "data": [_card(state, name) for name in state.model_names]})


@router.get("/v1/models/{model:path}", responses=documented(400, 401, 404, 500, answer=ModelCard))
async def get_model(model: str, request: Request) -> Response:
    """The model, by one of its names."""
    state = state_of(request)
    return json_response(_card(state, state.check_model(model)))


def _card(state: ServerState, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": state.started,
        "owned_by": "nanolens",
        "root": state.engine.config.model,
        "parent": None,
        "max_model_len": state.engine.started.max_model_len,
        "vocab_size": state.engine.started.vocab_size,
    }
