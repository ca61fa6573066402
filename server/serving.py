"""From a body to an answer, streamed or whole: what all generating endpoints share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fastapi import Request, Response

from ..engine.sampling_params import SamplingParams
from ..errors import InvalidRequest
from ..telemetry.span_ids import parse_traceparent
from .calls import Call, ClientGone, unless_gone
from .errors import ApiError, as_api_error, json_response
from .fleet_messages import ROUTE
from .replies import Reply
from .request_ids import goes_by, request_id_of
from .shapes import Shape
from .sse import DONE, EventStream, event
from .state import ServerState, parts_of, state_of

LONG_TEXT = 8192  # characters; more are tokenized in a thread, so that other requests go on meanwhile
STALL_S = 0.1  # a send that takes so long was held up by its reader
GONE_STATUS = 499  # nobody reads it


@dataclass
class Job:
    """What a body asks for.

    Attributes:
        count: requests of the engine that it takes.
        size: characters to be tokenized.
        encode: gives the token ids of each prompt.
        params: of all of them.
        shape: of the answer, by its id and the prompts' tokens.
        stream: whether the answer comes in chunks.
        timeout: seconds; None: no deadline of its own.
        renamed: the endpoint's names of the engine's fields, where they differ.
    """

    count: int
    size: int
    encode: Callable[[], list[list[int]]]
    params: SamplingParams
    shape: Callable[[str, Sequence[list[int]]], Shape]
    stream: bool
    timeout: float | None
    renamed: Mapping[str, str] = field(default_factory=dict)


async def serve(request: Request, make_job: Callable[[ServerState], Job]) -> Response:
    """Answer a request that generates.

    Args:
        request: its body was read.
        make_job: reads the body.

    Raises:
        ApiError, InvalidRequest: before anything was sent. It is in the journal.
    """
    state = state_of(request)
    wanted, path = request_id_of(request.scope), request.url.path
    traceparent = traceparent_of(request)
    name, count = "", 1
    leave: Callable[[], None] = nothing
    try:
        job = make_job(state)
        leave = state.admission.enter(job.count)
        count = job.count
        name = state.take_name(wanted, path, count)
        goes_by(request.scope, name)
        state.check_fits(-(-job.size // count), job.renamed.get("prompt", "prompt"))
        prompts = await (asyncio.to_thread(job.encode) if job.size > LONG_TEXT else _at_once(job.encode))
        shape = job.shape(name, prompts)
    except BaseException as error:
        state.drop_name(name, count)
        leave()
        if isinstance(error, InvalidRequest | ApiError):
            name = name or state.free_name(wanted, path)
            goes_by(request.scope, name)
            refuse(state, name, error, traceparent)
        raise
    names = parts_of(name, count) or [name]
    route = request.scope.get("state", {}).get(ROUTE)  # of a fleet's router: no client can put anything there
    turns = (
        state.engine.generate(prompt, job.params, request_id=each, traceparent=traceparent, route=route)
        for each, prompt in zip(names, prompts, strict=True)
    )
    replies = [Reply(state.engine, turn) for turn in turns]

    def release() -> None:
        state.drop_name(name, count)
        leave()

    call = Call(state, replies, shape, state.limits.timeout_s(job.timeout), release)
    return await respond(request, call, job.stream, job.renamed)


async def respond(request: Request, call: Call, stream: bool, renamed: Mapping[str, str]) -> Response:
    """Answer with what a call gives. It is closed in the end, whatever comes.

    Raises:
        ApiError: before anything was sent.
    """
    handed_on = False
    try:
        if not stream:
            outputs = await unless_gone(request.receive, call.results())
            return json_response(call.shape.answer(outputs, call.timed_out))
        await unless_gone(request.receive, call.start())
        handed_on = True
        state = state_of(request)
        return EventStream(
            events_of(call), lambda: _end_stream(state, call), lambda seconds: _tell_stall(state, call, seconds)
        )
    except ClientGone:
        return Response(status_code=GONE_STATUS)
    except Exception as error:
        raise as_api_error(error, renamed) from error
    finally:
        if not handed_on:
            await call.close()


async def events_of(call: Call) -> AsyncIterator[bytes]:
    """The events of a stream; the last one is DONE, after an error too."""
    shape = call.shape
    try:
        for chunk in shape.openings():
            yield event(chunk)
        async for place, delta in call.pieces():
            if delta.finish_reason == "error":
                continue  # the exception that follows tells it
            found = shape.chunk(place, delta, call.timed_out)
            if found is not None:
                yield event(found)
        outputs = call.outputs
        call.settle()
        for chunk in shape.closings(outputs, call.timed_out):
            yield event(chunk)
    except Exception as error:
        yield event(as_api_error(error).body())
    yield DONE


def refuse(state: ServerState, name: str, error: Exception, traceparent: str | None) -> None:
    """Have the journal hold that a request was refused, by its field; one that was sent away unread is not in it."""
    shown = as_api_error(error)
    if shown.status in (400, 404):
        state.engine.refuse(name, shown.param or "", str(shown), traceparent)


def traceparent_of(request: Request) -> str | None:
    """The caller's trace context; None where there is none, or one that the standard says to ignore."""
    value = request.headers.get("traceparent")
    return value if parse_traceparent(value) is not None else None


def _tell_stall(state: ServerState, call: Call, seconds: float) -> None:
    if seconds >= STALL_S:
        state.on_stall(call.waiting, seconds)


async def _end_stream(state: ServerState, call: Call) -> None:
    try:
        await call.close()
    finally:
        state.on_stream_end(call.waiting)


def nothing() -> None:
    """Do nothing."""


async def _at_once(work: Callable[[], list[list[int]]]) -> list[list[int]]:
    return work()
