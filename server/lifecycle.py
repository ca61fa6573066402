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
from ..errors import InvalidConfig, NanolensError
from ..telemetry.exporter_linger import ask_to_leave
from ..telemetry.registry import announced_server
from .assembly import make_app, make_operations
from .calls import RETRY_S
from .engine_process import LOG_LEVEL, ServedEngine, start_logging
from .errors import ApiError
from .http_server import Http
from .operations import Operations
from .settings import ServeSettings
from .startup import base_url, load_tokenizer_alone, say, urls

ABORT_S = 2.0  # for the engine to end what runs once the drain is over; one that takes longer counts as hanging
TELL_S = 1.0  # for clients to take the end of their answers; a connection that is stuck then is closed
FLUSH_S = 5.0  # for answers that are being sent, once every request has ended
EXPORTER_S = 3.0  # for the exporter to read the journal of an engine that is gone to its end
CLOSE_S = 30.0  # for an engine that answers to end its journal
CLOSE_HANGING_S = 2.0  # for one that does not, before it is killed

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
        self._hurry = asyncio.Event()  # a second signal came
        self._drain: asyncio.Task[None] | None = None
        self._http = Http(app, settings.access_log)
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
            return await self._end_engine()
        finally:  # last: from here on a signal ends this process alone
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def _end_engine(self) -> bool:
        """End the engine's process, and say how that went; whether it lived until then, and ended in order."""
        if not self._engine.is_alive:
            await self._engine.close()
            await end_exporter(self._engine.metrics_port)
            say("ended; the engine had died before")
            return False
        if await self._close_within(CLOSE_S if await self._answers() else CLOSE_HANGING_S):
            say("ended")
            return True
        await end_exporter(self._engine.metrics_port)
        say("ended; the engine hung and was killed: what its journal had not written is lost")
        return False

    async def _close_within(self, seconds: float) -> bool:
        """Close the engine; False: it was killed, after so many seconds or CLOSE_HANGING_S after someone hurried."""
        self._hurry.clear()
        closing = asyncio.ensure_future(self._engine.close(seconds))
        hurry = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait((closing, hurry), return_when=asyncio.FIRST_COMPLETED)
            in_time = closing.done() or await self._engine.close(CLOSE_HANGING_S)
            return await closing and in_time
        finally:
            hurry.cancel()

    def on_signal(self, number: int) -> None:
        """Begin the drain, or hurry it up."""
        self._signals += 1
        if self._drain is None:
            in_flight = self._operations.admission.in_flight
            say(f"{signal.Signals(number).name}: new requests are refused; {in_flight} may take "
                f"{self._settings.drain_seconds:g} s to finish")  # fmt: skip
            self._drain = asyncio.get_running_loop().create_task(self._stop())
        else:
            self._hurry.set()

    async def _stop(self) -> None:
        """Refuse, wait, abort, and end HTTP."""
        operations = self._operations
        operations.admission.stop()
        operations.stopping.set()
        if not await self._idle_within(self._settings.drain_seconds):
            say(f"{operations.admission.in_flight} requests are ended before they finished")
            self._hurry.clear()
            if not (await self._abort_all() and await self._idle_within(TELL_S)):
                self._give_up()
                await self._idle_within(TELL_S)
        operations.state.hung_up.set()
        self._http.should_exit = True
        await asyncio.sleep(TELL_S)
        if stuck := self._http.cut_stuck():
            say(f"{stuck} connections are closed: their clients take nothing")
        await asyncio.sleep(FLUSH_S)
        self._http.cut_all()

    async def _idle_within(self, seconds: float) -> bool:
        """Wait until no request is left, the time is up or someone hurries: whether none is left."""
        idle = asyncio.ensure_future(self._operations.admission.wait_idle())
        hurry = asyncio.ensure_future(self._hurry.wait())
        try:
            done, _ = await asyncio.wait((idle, hurry), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            return idle in done
        finally:
            idle.cancel()
            hurry.cancel()

    async def _abort_all(self) -> bool:
        """Have the engine end every request that a client waits for, with the reason "abort": whether it has."""
        replies = self._operations.state.replies
        try:
            async with asyncio.timeout(ABORT_S):
                await asyncio.gather(*map(self._engine.abort, list(replies)))  # takes those on their way along
                while any(map(self._engine.has_request, replies)):
                    await asyncio.sleep(RETRY_S)
        except (NanolensError, TimeoutError):
            return False
        return True

    def _give_up(self) -> None:
        """End in an error what the engine has not ended, and let go of clients that take nothing."""
        error = ApiError(503, "the server stops, and the engine has not ended the request in time", code="stopping")
        for call in list(self._operations.state.calls):
            call.give_up(error)
        self._http.cut_stuck()

    async def _answers(self) -> bool:
        """Whether the engine answers at all; it does between two steps."""
        try:
            await asyncio.wait_for(self._engine.progress(), ABORT_S)
        except (NanolensError, TimeoutError):
            return False
        return True

    async def _watch(self) -> None:
        """Look after the engine until it is gone, and say so."""
        await self._operations.watch.run()
        if self._signals == 0:
            logger.critical("the engine has died: requests get 503 and /health fails until the server is restarted")
        sys.stderr.flush()


async def end_exporter(port: int | None) -> None:
    """Let go of the exporter of an engine that is gone: a server that ends leaves no process behind."""
    deadline = time.monotonic() + EXPORTER_S
    while port is not None and time.monotonic() < deadline and not await asyncio.to_thread(ask_to_leave, port):
        await asyncio.sleep(RETRY_S)
