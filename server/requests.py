"""POST /v1/requests/{id}/resume and /finish: a request that was paused (`on_stop="pause"`) goes on, or ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from fastapi import APIRouter, Request, Response

from .body_route import BodyRoute
from .calls import Call
from .errors import as_api_error, json_response
from .protocol_answers import GENERATION_ERRORS, ChatCompletion, Completion, documented
from .protocol_requests import ResumeRequest
from .replies import Reply
from .request_ids import goes_by
from .serving import LONG_TEXT, respond
from .state import ServerState, state_of

router = APIRouter(tags=["generate"], route_class=BodyRoute)
_ANSWER = Completion | ChatCompletion


@router.post(
    "/v1/requests/{request_id}/resume", responses=documented(*GENERATION_ERRORS, 409, union=_ANSWER, streams=True)
)
async def resume_request(request_id: str, body: ResumeRequest, request: Request) -> Response:
    """The next turn of a paused request, in the form of its first one; text and usage are this turn's alone."""
    state = state_of(request)
    goes_by(request.scope, request_id)
    shape = state.paused(request_id)
    leave = state.admission.enter(1)
    try:
        append = await _tokens(state, body.append)
        state.paused(request_id)  # still: another call may have come first
        wants_usage = bool(body.stream_options and body.stream_options.include_usage)
        shape = replace(shape.for_resume(request_id), include_usage=wants_usage)
        turn = state.engine.resume(request_id, append, body.max_tokens, body.index)
        reply = Reply(state.engine, turn, resumes=True)
        call = Call(state, [reply], shape, state.limits.timeout_s(body.timeout), leave)
    except BaseException:
        leave()
        raise
    return await respond(request, call, bool(body.stream), {})


@router.post(
    "/v1/requests/{request_id}/finish", responses=documented(400, 401, 404, 409, 500, 503, union=_ANSWER)
)
async def finish_request(request_id: str, request: Request) -> Response:
    """End a paused request: its whole answer, from the first turn on."""
    state = state_of(request)
    goes_by(request.scope, request_id)
    shape = state.paused(request_id)
    try:
        output = await state.ask(state.engine.finish(request_id))
    except Exception as error:
        raise as_api_error(error) from error
    return json_response(shape.answer([output], timed_out=False))


async def _tokens(state: ServerState, append: str | list[int] | None) -> list[int] | None:
    if not isinstance(append, str):
        return append
    encode = state.tokenizer.encode
    return await asyncio.to_thread(encode, append, False) if len(append) > LONG_TEXT else encode(append, False)
