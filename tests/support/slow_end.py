"""A server over a fake engine that never closes its runner: it says where it is, a line each. Started by tests."""

from __future__ import annotations

import asyncio
import sys
import time
from multiprocessing.connection import Connection

import fake_core
from fake_core import FakeAsyncEngine, FragileEngine
from nanolens.engine.config import EngineConfig
from nanolens.engine.core_process import run
from nanolens.server.assembly import make_app, make_operations
from nanolens.server.lifecycle import Server, bind
from nanolens.server.settings import ServeSettings
from nanolens.server.startup import load_tokenizer_alone


def hang() -> None:
    """What its runner does when it is closed."""
    print("closing", flush=True)
    time.sleep(1000)


def build(config: EngineConfig) -> FragileEngine:
    """The engine of the process."""
    engine = fake_core.build(config)
    engine.runner.close = hang  # type: ignore[method-assign]
    return engine


def main(connection: Connection) -> None:
    """The program of the engine's process."""
    sys.exit(run(connection, build))


class SlowEngine(FakeAsyncEngine):
    """One whose process does not end."""

    _main = staticmethod(main)


async def serve() -> bool:
    """Serve until a signal; whether the engine ended in order."""
    settings = ServeSettings(EngineConfig(fake_core.MODEL))
    with bind("127.0.0.1", 0) as listener:
        async with SlowEngine() as engine:
            operations = make_operations(settings, engine, load_tokenizer_alone("dummy:llama-tiny"))
            server = Server(settings, operations, make_app(settings, operations, ()))
            return await server.serve(listener, lambda: print(engine.pid, flush=True))


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(serve()) else 1)
