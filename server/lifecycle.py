"""A server from its start to its end: socket, tokenizer, engine, HTTP; signals, drain, and the engine's death."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from .. import __version__
from ..errors import InvalidConfig
from ..telemetry.registry import announced_server
from .assembly import make_app, make_operations
from .ending import TELL_S, Ending
from .engine_process import LOG_LEVEL, ServedEngine, start_logging
from .http_server import Http
from .operations import Operations
from .settings import ServeSettings
from .startup import base_url, load_tokenizer_alone, say, urls

FLUSH_S = 5.0  # for answers that are being sent, once every request has ended

logger = logging.getLogger("nanolens.server")


def run(settings: ServeSettings, keys: Sequence[str]) -> bool:
    """Serve until SIGTERM or SIGINT; whether it ended in order, with its engine alive.

    Raises:
        InvalidConfig, UnknownModel, ModelLoadError, EngineDead: what keeps it from starting.
    """
    os.environ[LOG_LEVEL] = settings.log_level
    start_logging(settings.log_level)
    try:
        return asyncio.run(_serve(settings, keys))
    except asyncio.CancelledError:
        say("ended before it was ready")
        return False


async def _serve(settings: ServeSettings, keys: Sequence[str]) -> bool:
    began = time.monotonic()
    if (task := asyncio.current_task()) is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # until the server takes it over
    with bind(settings.host, settings.port) as listener:  # first: a port that is taken is known before a model loads
        say(f"nanolens {__version__}: {settings.engine.model}")
        tokenizer = await asyncio.to_thread(load_tokenizer_alone, settings.engine.model)
        say(f"tokenizer: {tokenizer.vocab_size} tokens")
        engine = ServedEngine(**dataclasses.asdict(settings.engine))
        async with engine:
            started = engine.started
            say(f"engine: process {engine.pid}, {started.num_blocks} KV blocks of {started.block_size} tokens, "
                f"up to {started.max_model_len} tokens a sequence")  # fmt: skip
            operations = make_operations(settings, engine, tokenizer)
            server = Server(settings, operations, make_app(settings, operations, keys))
            with contextlib.ExitStack() as stack:

                def on_ready() -> None:
                    here = base_url(settings, listener.getsockname()[1])
                    journal = str(started.config.get("journal") or "")
                    stack.enter_context(announced_server(here, settings.model_names[0], started.run_id, journal))
                    _welcome(settings, keys, listener, began)

                return await server.serve(listener, on_ready)


def _welcome(settings: ServeSettings, keys: Sequence[str], listener: socket.socket, began: float) -> None:
    """The last lines of the start: where to go."""
    port = listener.getsockname()[1]
    if settings.is_open_to_others and not keys:
        say(f"warning: other machines can reach {settings.host}, and no API key is asked for (--api-key-file)")
    for line in urls(settings, port):
        say(line)
    say(f"ready after {time.monotonic() - began:.1f} s")


@contextlib.contextmanager
def bind(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that is bound and does not listen yet, so that clients are refused until there is someone to answer.

    Raises:
        InvalidConfig: the address can't be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise InvalidConfig(f"host={host!r}: is no address of this machine ({error}); try 127.0.0.1") from error
    with listener:
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError as error:
            raise InvalidConfig(
                f"host={host} port={port}: can't listen there ({error.strerror}); give another --port, or 0 for any "
                "that is free"
            ) from error
        yield listener


class Server:
    """HTTP over an engine that is started.

    SIGTERM or SIGINT begins the drain: new requests get 503, those that run may finish within `drain_seconds`, then
    they are aborted; what the engine does not end within ABORT_S ends in an error. Connections whose clients take
    nothing are closed then, the others when their answers are sent, or after FLUSH_S. A second signal ends the wait.
    An engine that does not answer is killed, and so is one that a further signal finds closing, if it goes on for long.

    Args:
        settings: where it listens, and how long it drains.
        operations: of the server.
        app: what answers.
    """

    def __init__(self, settings: ServeSettings, operations: Operations, app: object) -> None:
        self._settings, self._operations = settings, operations
        self._engine = operations.state.engine
        self._signals = 0
        self._drain: asyncio.Task[None] | None = None
        self._http = Http(app, settings.access_log)
        self._ending = Ending(operations, self._http.cut_stuck)
        if settings.access_log:
            logging.getLogger("uvicorn.access").setLevel(logging.INFO)

    async def serve(self, listener: socket.socket, on_ready: Callable[[], None]) -> bool:
        """Serve until a signal has come and all is done; whether the engine lived until then, and ended in order."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.on_signal, number)
        watch = loop.create_task(self._watch())
        http = loop.create_task(self._http.serve([listener]))
        try:
            try:
                while not self._http.started and not http.done():
                    await asyncio.sleep(0.01)
                on_ready()
                await http
            finally:
                watch.cancel()
                if self._drain is not None:
                    self._drain.cancel()
            was_alive = self._engine.is_alive
            in_order = await self._ending.close()
        finally:  # last: from here on a signal ends this process alone
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
        if in_order:
            say("ended")
            return True
        say("ended; the engine hung and was killed: what its journal had not written is lost" if was_alive
            else "ended; the engine had died before")  # fmt: skip
        return False

    def on_signal(self, number: int) -> None:
        """Begin the drain, or hurry it up."""
        self._signals += 1
        if self._drain is None:
            say(f"{signal.Signals(number).name}: new requests are refused; {self._ending.in_flight} may take "
                f"{self._settings.drain_seconds:g} s to finish")  # fmt: skip
            self._drain = asyncio.get_running_loop().create_task(self._stop())
        else:
            self._ending.hurry.set()

    async def _stop(self) -> None:
        """Refuse, wait, abort, and end HTTP."""
        self._ending.refuse()
        if not await self._ending.idle_within(self._settings.drain_seconds):
            say(f"{self._ending.in_flight} requests are ended before they finished")
            await self._ending.cut()
        self._ending.hang_up()
        self._http.should_exit = True
        await asyncio.sleep(TELL_S)
        if stuck := self._http.cut_stuck():
            say(f"{stuck} connections are closed: their clients take nothing")
        await asyncio.sleep(FLUSH_S)
        self._http.cut_all()

    async def _watch(self) -> None:
        """Look after the engine until it is gone, and say so."""
        await self._operations.watch.run()
        if self._signals == 0:
            logger.critical("the engine has died: requests get 503 and /health fails until the server is restarted")
        sys.stderr.flush()
