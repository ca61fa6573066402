"""Steering single sequences and their requests: pause, resume, abort, priority. For who runs the server."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, Field

from ..engine.sampling_params import check_whole
from .debug import ERRORS, STRICT, same_run
from .errors import ApiError, json_response
from .operations import Operations, operations_of

MAX_DIGITS = 19  # of a sequence's number

router = APIRouter(
    prefix="/debug/sequences/{name}", tags=["debug"], responses=ERRORS, dependencies=[Depends(same_run)]
)


class PauseSequence(BaseModel):
    """Why it is paused: by whoever runs the server, or because something will be appended."""

    model_config = STRICT
    reason: Literal["operator", "await_input"] = "operator"


class ResumeSequence(BaseModel):
    """How far it goes on; without a number, for what it had left."""

    model_config = STRICT
    max_tokens: int | None = Field(default=None, ge=1)


class Priority(BaseModel):
    """Lower is more urgent; it acts under --policy priority."""

    model_config = STRICT
    priority: int


@router.post("/pause")
async def pause(request: Request, name: str, body: PauseSequence | None = None) -> Response:
    """Pause a sequence (by its number) or all of a request (by its id); the KV is kept."""
    ops = operations_of(request)
    request_id, index = await _find(ops, name)
    changed = await ops.ask(ops.state.engine.pause(request_id, index, (body or PauseSequence()).reason))
    return json_response({"request": request_id, "paused": changed})


@router.post("/resume")
async def resume(request: Request, name: str, body: ResumeSequence | None = None) -> Response:
    """Let a paused sequence, or all of a request that is paused, go on."""
    ops = operations_of(request)
    request_id, index = await _find(ops, name)
    max_tokens, reply = (body or ResumeSequence()).max_tokens, ops.state.replies.get(request_id)
    if reply is not None:  # a client waits for what it gives
        await ops.ask(reply.resume(max_tokens=max_tokens, index=index))
    else:
        turn = ops.state.engine.resume(request_id, max_tokens=max_tokens, index=index)
        await ops.ask(turn.start())
        ops.in_background(turn.result())  # a turn that nobody holds would abort its request
    return json_response({"request": request_id, "resumed": True})


@router.post("/abort")
async def abort(request: Request, name: str) -> Response:
    """End the request that a sequence belongs to, with all its sequences."""
    ops = operations_of(request)
    request_id, _ = await _find(ops, name)
    if not await ops.ask(ops.state.engine.abort(request_id)):
        raise _unknown(name)
    return json_response({"request": request_id, "aborted": True})


@router.post("/priority")
async def set_priority(request: Request, name: str, body: Priority) -> Response:
    """Change the priority of the request that a sequence belongs to."""
    ops = operations_of(request)
    priority = int(check_whole("priority", body.priority))
    request_id, _ = await _find(ops, name)
    await ops.ask(ops.state.engine.set_priority(request_id, priority))
    return json_response({"request": request_id, "priority": priority})


async def _find(ops: Operations, name: str) -> tuple[str, int | None]:
    """The request that a name means, and which of its sequences (None: all). A number names a sequence.

    Raises:
        ApiError: 404.
    """
    if not (name.isascii() and name.isdigit()):
        if not ops.state.engine.has_request(name):
            raise _unknown(name)
        return name, None
    found = await ops.ask(ops.state.engine.locate(int(name))) if len(name) < MAX_DIGITS else None
    if found is None:
        raise _unknown(name)
    return found


def _unknown(name: str) -> ApiError:
    return ApiError(404, f"no live sequence or request is called {name[:100]!r}", param="name", code="not_found")
