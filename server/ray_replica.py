"""One replica of a fleet: an engine and the server's whole application, asked by the front through Ray."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator, Sequence
from typing import Any

from ray import serve

from ..engine.block_key import BLOCK_KEY
from ..errors import EngineDead
from .asgi_calls import answer
from .assembly import make_app, make_operations
from .ending import Ending, end_exporter
from .engine_process import LOG_LEVEL, ServedEngine, start_logging
from .errors import ApiError
from .fleet_journal import CacheFold, JournalFollower
from .fleet_messages import Ask, HttpCall, Report
from .fleet_retiring import Retiring, Word
from .settings import ServeSettings
from .startup import load_tokenizer_alone

FRONT = "Front"  # what the deployment of the front is called
HEADER = b"x-nanolens-replica"


class Replica:
    """What Ray runs `replicas` times.

    Args:
        settings: of each server; a journal and a swap file get a place of their own in those that it names.
        keys: API keys.
        block_key: of the block hashes, the same for all replicas.
    """

    def __init__(self, settings: ServeSettings, keys: Sequence[str], block_key: bytes) -> None:
        self._name = str(serve.get_replica_context().replica_id.unique_id)
        self._settings = own_settings(settings, self._name)
        self._keys, self._block_key = tuple(keys), block_key
        self._fold = CacheFold()
        self._follower: JournalFollower | None = None
        self._watch: asyncio.Task[None] | None = None
        self._engine: ServedEngine | None = None
        self._ending: Ending | None = None
        self._retiring: asyncio.Task[None] | None = None

    async def record_replica_metadata(self) -> dict[str, str]:
        """Called by Ray once, before any call: starts the engine.

        Raises:
            InvalidConfig, UnknownModel, ModelLoadError, EngineDead: what keeps it from starting.
        """
        await self._start()
        return {"run": self._operations.state.engine.started.run_id}

    async def check_health(self) -> None:
        """Called by Ray again and again.

        Raises:
            EngineDead: the engine is gone or hangs; Ray starts another replica for this one.
        """
        if trouble := self._operations.watch.trouble():
            raise EngineDead(trouble)

    async def handle(self, call: HttpCall) -> AsyncIterator[list[dict[str, Any]]]:
        """Answer an HTTP request, by ASGI messages."""
        if call.pinned and call.pinned != self._name:
            yield list(_plain(gone(call.pinned)))
            return
        call.route.taken_by(self._name)
        async with contextlib.aclosing(answer(self._app, call)) as messages:  # type: ignore[type-var]
            async for each in messages:
                yield [_marked(message, self._name) for message in each]

    async def report(self, ask: Ask) -> Report:
        """How it is."""
        report = self._fold.report(self._name, ask.version)
        engine, seen = self._operations.state.engine, self._operations.watch.progress
        config = engine.started.config
        return dataclasses.replace(
            report, run=engine.started.run_id, pid=os.getpid(), engine_pid=engine.pid,
            trouble=self._operations.watch.trouble(), is_engine_gone=not engine.is_alive,
            journal=str(config.get("journal") or ""),
            num_blocks=engine.started.num_blocks,
            running=seen.running if seen is not None else 0,
            free_blocks=seen.free_blocks if seen is not None else engine.started.num_blocks,
        )  # fmt: skip

    async def holds(self, ask: Ask, ids: Sequence[str]) -> bool:
        """Whether a request goes by one of these ids here, by the rule of one server."""
        state = self._operations.state
        return any(state.free_name(each, "") != each for each in ids)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What the scaling policy goes by."""
        report = self._fold.report(self._name, 1 << 62)
        return {"queue_age_s": report.queue_age_s, "waiting": float(report.waiting)}

    async def __del__(self) -> None:
        """Called by Ray once every call has ended, or the time to drain is over."""
        for task in filter(None, (self._watch, self._retiring)):
            task.cancel()
        if self._follower is not None:
            await asyncio.to_thread(self._follower.stop)
        if self._ending is not None:
            await self._ending.close()
        elif self._engine is not None:
            await self._engine.close()

    async def _start(self) -> None:
        os.environ[LOG_LEVEL] = self._settings.log_level
        start_logging(self._settings.log_level)
        tokenizer = await asyncio.to_thread(load_tokenizer_alone, self._settings.engine.model)
        engine = self._engine = ServedEngine(**dataclasses.asdict(self._settings.engine))
        os.environ[BLOCK_KEY] = self._block_key.hex()  # for the engine's process alone
        try:
            await engine.__aenter__()
        finally:
            os.environ.pop(BLOCK_KEY, None)
        self._operations = make_operations(self._settings, engine, tokenizer)
        self._app = make_app(self._settings, self._operations, self._keys)
        self._ending = Ending(self._operations)
        self._watch = asyncio.get_running_loop().create_task(self._look_after(engine))
        self._follower = JournalFollower(self._fold, str(engine.started.config["journal"]), engine.started.run_id)
        retiring = Retiring(self._ending, self._ask_front, self._settings.drain_seconds)
        self._retiring = asyncio.get_running_loop().create_task(retiring.run())

    async def _ask_front(self) -> Word:
        """What the front has to say to this replica."""
        front = serve.get_deployment_handle(FRONT, serve.get_replica_context().app_name)
        return Word(await front.options(method_name="word").remote(self._name))

    async def _look_after(self, engine: ServedEngine) -> None:
        """Watch the engine until it is gone; its exporter, which stays for a last scrape, has nobody to wait for."""
        await self._operations.watch.run()
        await end_exporter(engine.metrics_port)


def own_settings(settings: ServeSettings, name: str) -> ServeSettings:
    """The settings of one replica: what it writes to has its name."""
    engine = settings.engine
    if engine.journal is not None:
        engine = dataclasses.replace(engine, journal=os.path.join(os.path.abspath(engine.journal), name))
    if engine.swap_path is not None:
        engine = dataclasses.replace(engine, swap_path=f"{os.path.abspath(engine.swap_path)}.{name}")
    return dataclasses.replace(settings, engine=engine)


def gone(replica: str) -> ApiError:
    """The answer to a request for a replica that is not there."""
    return ApiError(404, f"replica {replica[:100]!r} is gone, and its paused requests with it", code="replica_gone")


def _plain(error: ApiError) -> list[dict[str, Any]]:
    """An error as ASGI messages."""
    response = error.response()
    return [
        {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers},
        {"type": "http.response.body", "body": bytes(response.body), "more_body": False},
    ]


def _marked(message: Any, name: str) -> dict[str, Any]:
    """A message of an answer, whose head says who gave it."""
    found = dict(message)
    if found["type"] == "http.response.start":
        found["headers"] = [*found.get("headers", ()), (HEADER, name.encode())]
    return found
