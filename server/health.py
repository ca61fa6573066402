"""Whether the server works: /health, /ready, /version, and the watch over the engine that answers come from."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from fastapi import APIRouter, Request, Response

from .. import __version__
from ..engine.progress import Progress
from ..errors import NanolensError
from .errors import json_response
from .operations import operations_of

LOOK_S = 0.5  # between two looks at the engine

router = APIRouter(tags=["health"])


class WatchedEngine(Protocol):
    """What is watched: AsyncEngine."""

    @property
    def is_alive(self) -> bool:
        """Whether it takes requests."""

    def progress(self) -> Awaitable[Progress]:
        """How far it has come."""


class EngineWatch:
    """Looks at an engine again and again, and says whether it lives.

    It does not when its process is gone; when it has not answered for `stall_s` (a step hangs, the process is stopped);
    or when work waits and no step was planned for so long. An engine that someone paused is alive.

    Args:
        engine: what is watched.
        stall_s: seconds.
        clock: seconds.

    Attributes:
        stall_s: seconds.
        progress: as last seen; None before the first look.
    """

    def __init__(
        self, engine: WatchedEngine, stall_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.stall_s = stall_s
        self._engine, self._clock = engine, clock
        self._answered = self._moved = clock()
        self.progress: Progress | None = None

    async def run(self) -> None:
        """Look until the engine is gone."""
        while self._engine.is_alive:
            with contextlib.suppress(NanolensError):
                self.look(await self._engine.progress())
            await asyncio.sleep(LOOK_S)

    def look(self, now: Progress) -> None:
        """Take an answer."""
        before, self.progress, self._answered = self.progress, now, self._clock()
        if before is None or before.step != now.step or not now.has_work or now.engine_paused:
            self._moved = self._answered

    def silence(self) -> str:
        """Why the engine would give no answer, in words; "" where it would."""
        if not self._engine.is_alive:
            return "the engine has stopped"
        silent = self._clock() - self._answered
        return f"the engine has not answered for {silent:.1f} s" if silent > self.stall_s else ""

    def trouble(self) -> str:
        """What is wrong, in words; "" where nothing is."""
        if silence := self.silence():
            return silence
        still = self._clock() - self._moved
        if still > self.stall_s and self.progress is not None:
            waiting, running = self.progress.waiting, self.progress.running
            return f"no step for {still:.1f} s, with {waiting} sequences waiting and {running} running"
        return ""


_ANSWERS: dict[int | str, dict[str, Any]] = {503: {"description": "No; `reason` says why not."}}


@router.head("/health", include_in_schema=False)
@router.get("/health", responses=_ANSWERS)
async def health(request: Request) -> Response:
    """Liveness: whether restarting would help. 503 when the engine is gone, hangs, or lets work wait without a step."""
    ops = operations_of(request)
    trouble = ops.watch.trouble()
    seen = ops.watch.progress
    status = "dead" if trouble else "paused" if seen is not None and seen.engine_paused else "ok"
    answer: dict[str, object] = {"status": status}
    if trouble:
        answer["reason"] = trouble
    elif seen is not None:
        answer |= {"step": seen.step, "waiting": seen.waiting, "running": seen.running, "paused": seen.paused}
    return json_response(answer, 503 if trouble else 200)


@router.head("/ready", include_in_schema=False)
@router.get("/ready", responses=_ANSWERS)
async def ready(request: Request) -> Response:
    """Readiness: whether to send requests here. 503 also while the server stops."""
    ops = operations_of(request)
    reason = "the server is stopping" if ops.admission.is_stopping else ops.watch.trouble()
    if reason:
        return json_response({"status": "not ready", "reason": reason}, 503)
    return json_response({"status": "ready"})


@router.get("/version")
async def version(request: Request) -> Response:
    """What serves, and which run of it."""
    state = operations_of(request).state
    run = state.engine.started.run_id
    python = ".".join(map(str, sys.version_info[:3]))
    return json_response({"version": __version__, "model": state.model_names[0], "run": run, "python": python})
