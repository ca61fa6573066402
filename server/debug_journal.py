"""The live journal over HTTP: its frames as a stream, and notes into it. For who runs the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field
from starlette.responses import StreamingResponse

from ..engine.controls import MAX_MARK
from ..errors import InvalidRequest, JournalError
from ..telemetry.reader import Position
from .debug import ERRORS, RUN_HEADER, STRICT, same_run
from .errors import ApiError, json_response
from .journal_stream import JournalStream
from .operations import Operations, operations_of
from .protocol_answers import ErrorAnswer

MAX_STREAMS = 16
RAW, LINES = "application/vnd.nanolens.journal", "application/x-ndjson"

router = APIRouter(prefix="/debug/journal", tags=["debug"], responses=ERRORS, dependencies=[Depends(same_run)])


class Note(BaseModel):
    """A note; what it says stands in the journal as it is."""

    model_config = STRICT
    text: str = Field(min_length=1, max_length=MAX_MARK)
    origin: str = Field(default="http", min_length=1, max_length=256)


@router.post("/mark")
async def mark(request: Request, body: Note) -> Response:
    """Put a note into the journal."""
    ops = operations_of(request)
    await ops.ask(ops.state.engine.mark(body.text, body.origin))
    return json_response({"marked": True})


@router.get(
    "",
    response_class=Response,
    responses={
        200: {"content": {RAW: {}, LINES: {}}, "description": "Frames, until the engine ends or the client goes."},
        429: {"model": ErrorAnswer, "description": "Too many streams are open."},
    },
)
async def stream_journal(
    request: Request,
    place: Annotated[str, Query(alias="from", max_length=40)] = "keyframe",
    format: Annotated[Literal["raw", "json"], Query()] = "raw",
    follow: Annotated[bool, Query()] = True,
) -> Response:
    """Frames of this run's journal, from the newest keyframe on, from the start, or from SEGMENT:OFFSET."""
    ops = operations_of(request)
    started = ops.state.engine.started
    directory = started.config.get("journal")
    if not isinstance(directory, str):
        raise ApiError(404, "this server keeps no journal: start it with --journal DIR", code="not_found")
    if ops.journal_streams >= MAX_STREAMS:
        raise ApiError(429, f"{MAX_STREAMS} streams of the journal are open, which is as many as there may be",
                       kind="rate_limit_error", code="too_many_streams", headers={"Retry-After": "5"})  # fmt: skip
    try:
        stream = await asyncio.to_thread(JournalStream, directory, started.run_id, format == "json")
        position = await asyncio.to_thread(stream.find, place)
    except InvalidRequest:
        raise
    except JournalError as error:
        raise ApiError(503, str(error), code="no_journal") from error
    headers = {
        RUN_HEADER: started.run_id,
        "X-Nanolens-Position": f"{position.segment}:{position.offset}",
        "Cache-Control": "no-store",
    }
    kind = LINES if format == "json" else RAW
    return StreamingResponse(_counted(request, ops, stream, position, follow), headers=headers, media_type=kind)


async def _counted(
    request: Request, ops: Operations, stream: JournalStream, position: Position, follow: bool
) -> AsyncIterator[bytes]:
    """The chunks of a stream, which counts while it is open."""

    async def must_end() -> bool:
        return ops.stopping.is_set() or not ops.state.engine.is_alive or await request.is_disconnected()

    ops.journal_streams += 1
    try:
        async for chunk in stream.chunks(position, follow, must_end):
            yield chunk
    finally:
        ops.journal_streams -= 1
