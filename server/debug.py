"""Looking at an engine and stopping its time: snapshot, pause, single steps, breakpoints. For who runs the server."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from ..engine.controls import MAX_STEPS
from .errors import ApiError, json_response
from .operations import Operations, operations_of
from .protocol_answers import ErrorAnswer
from .snapshot_view import MAX_BLOCKS, MAX_SEQUENCES, ViewLimits, snapshot_view

_WORDS = {
    400: "The request is not valid; `error.param` names the field.",
    401: "An API key is needed.",
    403: "Open to this machine alone.",
    404: "There is no such thing.",
    409: "Its state does not allow that.",
    503: "The engine has stopped, or does not answer.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": words} for status, words in _WORDS.items()
}
STRICT = ConfigDict(extra="forbid", strict=True)

router = APIRouter(prefix="/debug", tags=["debug"], responses=ERRORS)


class PauseEngine(BaseModel):
    """Why nothing shall be planned."""

    model_config = STRICT
    cause: str = Field(default="operator", min_length=1, max_length=256)


class StepEngine(BaseModel):
    """How many steps a paused engine does before it pauses again."""

    model_config = STRICT
    steps: int = Field(default=1, ge=1, le=MAX_STEPS)


class Breakpoint(BaseModel):
    """Where to stop; docs/sequences.md describes predicates."""

    model_config = STRICT
    predicate: str = Field(min_length=1, max_length=1000, examples=["on=preempted"])
    action: Literal["engine", "sequence"] = "engine"


@router.get("/snapshot")
async def snapshot(
    request: Request,
    max_sequences: Annotated[int, Query(ge=0, le=65536)] = MAX_SEQUENCES,
    max_blocks: Annotated[int, Query(ge=0, le=1 << 20)] = MAX_BLOCKS,
) -> Response:
    """Every queue, sequence and block now, up to limits; `omitted` tells what they left out. No prompt, no token."""
    ops = operations_of(request)
    keyframe = await ops.ask(ops.state.engine.snapshot())
    limits = ViewLimits(max_sequences, max_blocks)
    return json_response(await asyncio.to_thread(snapshot_view, keyframe, limits))


@router.post("/engine/pause")
async def pause_engine(request: Request, body: PauseEngine | None = None) -> Response:
    """Plan no more steps. Clients wait; /health stays good."""
    ops = operations_of(request)
    await ops.ask(ops.state.engine.pause_engine((body or PauseEngine()).cause))
    return await _progress(ops)


@router.post("/engine/resume")
async def resume_engine(request: Request) -> Response:
    """Plan steps again."""
    ops = operations_of(request)
    await ops.ask(ops.state.engine.continue_engine())
    return await _progress(ops)


@router.post("/engine/step")
async def step_engine(request: Request, body: StepEngine | None = None) -> Response:
    """Do one step, or several, and pause again; the answer may come before they are done."""
    ops = operations_of(request)
    await ops.ask(ops.state.engine.continue_engine((body or StepEngine()).steps))
    return await _progress(ops)


@router.get("/breakpoints")
async def list_breakpoints(request: Request) -> Response:
    """The breakpoints there are."""
    ops = operations_of(request)
    found = await ops.ask(ops.state.engine.breakpoints())
    return json_response({"breakpoints": [{"number": number, "text": text} for number, text in found.items()]})


@router.post("/breakpoints", status_code=201)
async def add_breakpoint(request: Request, body: Breakpoint) -> Response:
    """Pause the engine, or the sequence, at each event that meets a predicate."""
    ops = operations_of(request)
    number = await ops.ask(ops.state.engine.add_breakpoint(body.predicate, body.action))
    return json_response({"number": number}, 201)


@router.delete("/breakpoints/{number}")
async def remove_breakpoint(request: Request, number: int) -> Response:
    """Forget a breakpoint."""
    ops = operations_of(request)
    if not await ops.ask(ops.state.engine.remove_breakpoint(number)):
        raise ApiError(404, f"there is no breakpoint {number}", param="number", code="not_found")
    return json_response({"removed": number})


async def _progress(ops: Operations) -> Response:
    """Where the engine stands after a command."""
    now = await ops.ask(ops.state.engine.progress())
    ops.watch.look(now)
    return json_response(
        {"step": now.step, "engine_paused": now.engine_paused, "waiting": now.waiting, "running": now.running}
    )
