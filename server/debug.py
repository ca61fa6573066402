"""Looking at an engine and stopping its time: snapshot, pause, single steps, breakpoints. For who runs the server."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from ..engine.controls import MAX_STEPS
from ..engine.progress import Progress
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
STEPS_S = 30.0  # that an answer waits for steps to be done
LOOK_S = 0.01  # between two looks at whether they are
STRICT = ConfigDict(extra="forbid", strict=True)

RUN_HEADER = "X-Nanolens-Run"


async def same_run(
    request: Request, run: Annotated[str | None, Header(alias=RUN_HEADER, max_length=256)] = None
) -> None:
    """Refuse what is meant for another run than this server's: numbers of sequences begin anew with each.

    Raises:
        ApiError: 409.
    """
    own = operations_of(request).state.engine.started.run_id
    if run is not None and run != own:
        raise ApiError(409, f"run {run} is over: this server's run is {own}", param=RUN_HEADER, code="other_run")


router = APIRouter(prefix="/debug", tags=["debug"], responses=ERRORS, dependencies=[Depends(same_run)])


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
    """Do one step, or several, and pause again. Answered when they are done, or can't be; who asks next waits for that.

    `done` is false where the work ended before, which leaves the rest to the next work, and after half a minute.
    """
    ops, steps = operations_of(request), (body or StepEngine()).steps
    deadline = time.monotonic() + STEPS_S
    try:
        await asyncio.wait_for(ops.stepping.acquire(), STEPS_S)
    except TimeoutError as error:
        words = "steps that were asked for before are still being done; pausing the engine gives them up"
        raise ApiError(409, words, code="steps_in_progress") from error
    try:
        return await _do_steps(ops, steps, deadline)
    finally:
        ops.stepping.release()


async def _do_steps(ops: Operations, steps: int, deadline: float) -> Response:
    """Grant steps, and look until they are done. Nobody else grants any meanwhile: that would overwrite the rest."""
    before = await ops.ask(ops.state.engine.progress())
    last = before.step + steps
    await ops.ask(ops.state.engine.continue_engine(steps))
    while True:
        now = await ops.ask(ops.state.engine.progress())
        is_overtaken = bool(before.engine_paused) and now.step > last  # someone has let the engine go on
        if now.engine_paused or not now.has_work or is_overtaken or time.monotonic() > deadline:
            return _told(ops, now, done=now.step >= last)
        await asyncio.sleep(LOOK_S)


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
    return _told(ops, await ops.ask(ops.state.engine.progress()))


def _told(ops: Operations, now: Progress, **more: bool) -> Response:
    ops.watch.look(now)
    at = {"step": now.step, "engine_paused": now.engine_paused, "waiting": now.waiting, "running": now.running}
    return json_response(at | more)
