"""/metrics: what the exporter's process says of the engine, and what the server counts itself, in one scrape.

The journal is folded in that process, so that no scrape and no fold takes time from streams; this one passes it on.
"""

from __future__ import annotations

import asyncio
import http.client

from fastapi import APIRouter, Request, Response

from .errors import ApiError
from .operations import operations_of
from .protocol_answers import ErrorAnswer

TIMEOUT_S = 5.0
_OPENMETRICS = "application/openmetrics-text"

router = APIRouter(tags=["metrics"])


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {}, _OPENMETRICS: {}}, "description": "A scrape."},
        401: {"model": ErrorAnswer, "description": "An API key is needed."},
        403: {"model": ErrorAnswer, "description": "Open to this machine alone."},
        404: {"model": ErrorAnswer, "description": "The server was started with --no-metrics, or without recording."},
        503: {"model": ErrorAnswer, "description": "The exporter's process does not answer: it ends with the engine."},
    },
)
async def metrics(request: Request) -> Response:
    """A scrape for Prometheus: the text format, or OpenMetrics where the Accept header prefers it."""
    ops = operations_of(request)
    port = ops.state.engine.metrics_port
    if port is None:
        raise ApiError(404, "this server keeps no metrics: start it without --no-metrics and --no-recording",
                       code="not_found")  # fmt: skip
    try:
        status, kind, body = await asyncio.to_thread(_fetch, port, ", ".join(request.headers.getlist("accept")))
    except (OSError, http.client.HTTPException) as error:
        message = f"the exporter's process does not answer ({type(error).__name__}); it ends with the engine"
        raise ApiError(503, message, code="no_metrics") from error
    if status != 200:
        raise ApiError(503, f"the exporter's process answered with {status}", code="no_metrics")
    scrape = ops.metrics.append_to(body, kind.startswith(_OPENMETRICS))
    return Response(scrape, headers={"Content-Type": kind, "Vary": "Accept"})


def _fetch(port: int, accept: str) -> tuple[int, str, bytes]:
    """Status, content type and body of a scrape of the exporter."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/metrics", headers={"Accept": accept} if accept else {})
        answer = connection.getresponse()
        return answer.status, answer.headers.get("Content-Type", "text/plain; charset=utf-8"), answer.read()
    finally:
        connection.close()
