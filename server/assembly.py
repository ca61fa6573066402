"""Puts one server together around an engine that is started: state, routes, and the layers around them."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import ASGIApp

from ..engine.async_engine import AsyncEngine
from ..models.tokenizer import AnyTokenizer
from . import debug, debug_journal, debug_sequences, health, metrics_proxy
from .admission import QueueAdmission
from .app import create_app
from .auth import ApiKeys, AuthMiddleware
from .health import EngineWatch
from .operations import Operations
from .request_ids import RequestIds
from .server_metrics import CountingMiddleware, ServerMetrics
from .settings import ServeSettings
from .state import Limits, ServerState
from .write_limit import WriteLimit


def make_operations(settings: ServeSettings, engine: AsyncEngine, tokenizer: AnyTokenizer) -> Operations:
    """What the routes of a server share."""
    admission = QueueAdmission(settings.engine.max_num_seqs, settings.max_queue)
    limits = Limits(
        max_body_bytes=settings.max_body_bytes, max_prompts=settings.max_prompts,
        max_sequences=settings.max_sequences, max_timeout_s=settings.max_timeout_s,
    )  # fmt: skip
    state = ServerState(engine, tokenizer, settings.model_names, limits=limits, admission=admission)
    operations = Operations(
        state, admission, EngineWatch(engine, settings.stall_seconds), ServerMetrics(admission)
    )
    state.on_stall, state.on_stream_end = operations.on_stall, operations.on_stream_end
    return operations


def make_app(settings: ServeSettings, operations: Operations, keys: Iterable[str]) -> ASGIApp:
    """The application: OpenAI's endpoints and those for who runs the server, behind keys, counted."""
    app = create_app(operations.state)
    app.state.operations = operations
    for part in (health, metrics_proxy, debug, debug_sequences, debug_journal):
        app.include_router(part.router)
    behind_keys = AuthMiddleware(app, ApiKeys(keys), settings.debug_needs_key)
    guarded = WriteLimit(behind_keys, settings.write_timeout_s)
    return RequestIds(CountingMiddleware(guarded, operations.metrics))
