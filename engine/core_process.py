"""The program of an engine's process: an engine in its loop, commands from the parent's pipe, outputs back into it.

It ends in order when it is told to, on SIGTERM and SIGHUP, and when the parent is gone.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any

from ..errors import InvalidRequest, NanolensError, NotPaused
from .build import build_engine
from .commands import EngineCommand
from .config import EngineConfig
from .engine import Engine
from .loop import EngineLoop
from .messages import (
    Abandon,
    Add,
    Answer,
    AnyCommand,
    Close,
    Failed,
    Fault,
    Finish,
    Gone,
    Outputs,
    Ping,
    Ready,
    Refuse,
    Resume,
    StartFailed,
    decode_command,
    decode_start,
    encode,
    pack,
)
from .outbox import Outbox
from .outputs import Delta, RequestOutput
from .standard_files import open_standard_files

LOOK_S = 1.0  # between two looks at whether the parent lives; a copy of its end of the pipe may outlive it
STOP_S = 20.0  # for the step that is under way when the process shall end
SEND_S = 5.0  # for the last messages to a parent that may have been stopped

logger = logging.getLogger("nanolens.engine")


# oneDNN keeps what it has prepared for each shape of a product, up to 1,024 of them and half a megabyte each. A server
# meets new shapes for hours: this many, unless the user says otherwise. Read when torch loads, which is after `main`.
SHAPE_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
NUM_SHAPES = "256"


def main(connection: Connection) -> None:
    """Run an engine for the parent at the other end of the pipe."""
    for name in SHAPE_CACHES:
        os.environ.setdefault(name, NUM_SHAPES)
    sys.exit(run(connection, build_engine))


def run(connection: Connection, build: Callable[[EngineConfig], Engine]) -> int:
    """Build an engine from the first message and serve it until its end; the exit code."""
    open_standard_files()  # the parent may use their numbers for what is its own, such as its event loop
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole terminal group: the parent decides
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    outbox = Outbox(connection)
    try:
        engine = build(decode_start(connection.recv_bytes()).config)
    except EOFError:
        return 1  # the parent is gone
    except Exception as error:
        if not isinstance(error, NanolensError):
            logger.exception("the engine could not be started")
        outbox.put(encode(StartFailed(Fault.of(error))))
        outbox.close(SEND_S)
        return 1
    return CoreServer(engine, connection, outbox).serve()


@dataclass(slots=True)
class _Stream:
    """Where the outputs of a request go."""

    number: int
    request_id: str
    wants_deltas: bool
    abandoned: bool = False
    output: RequestOutput | None = None  # once it has ended


class CoreServer:
    """Serves one engine to the process at the other end of a connection.

    `_streams`, `_by_name`, `_deltas` and `_ends` are touched in the loop's thread only.
    """

    def __init__(self, engine: Engine, connection: Connection, outbox: Outbox) -> None:
        self._connection = connection
        self._outbox = outbox
        self._streams: dict[int, _Stream] = {}
        self._by_name: dict[str, _Stream] = {}
        self._deltas: list[tuple[int, Delta]] = []
        self._ends: list[tuple[int, Any]] = []
        self._wake_in, self._wake_out = os.pipe()
        self._signal = ""  # the one that asked for an end
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, self._on_signal)
        exporting = engine.exporting
        outbox.put(encode(Ready(engine.core.started, None if exporting is None else exporting.metrics_port)))
        self._loop = EngineLoop(engine, on_turn=self._flush)
        self._loop.ended.add_done_callback(lambda ended: self._wake())

    def serve(self) -> int:
        """Take commands until the end; the exit code."""
        reason, code = self._listen()
        in_time = self._loop.close(STOP_S)
        self._outbox.put(encode(Gone(reason)))
        in_time &= self._outbox.close(SEND_S)
        if not in_time:
            logger.error("the engine process %d ends with a step or messages unfinished", os.getpid())
            os._exit(1)  # a thread that hangs in a device's driver can hang the interpreter's end too
        return code

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = signal.Signals(number).name
        self._wake()

    def _wake(self) -> None:
        os.write(self._wake_out, b"!")

    def _listen(self) -> tuple[str, int]:
        """Take commands; why that ends, and the exit code."""
        parent = os.getppid()
        while True:
            ready = wait([self._connection, self._wake_in], LOOK_S)
            if self._wake_in in ready:
                if self._loop.ended.done():
                    return self._loop.ended.result(), 1
                return f"the engine process {os.getpid()} was ended by {self._signal}", 0
            if not ready:
                if os.getppid() != parent:
                    return "the parent is gone", 0
                continue
            try:
                call, command = decode_command(self._connection.recv_bytes())
            except (EOFError, OSError):
                return "the parent is gone", 0
            if isinstance(command, Close):
                return "the engine is closed", 0
            self._take(call, command)

    def _take(self, call: int, command: AnyCommand | Fault) -> None:
        if isinstance(command, Fault):
            self._outbox.put(encode(Failed(call, command)))
        elif isinstance(command, Ping):
            self._outbox.put(encode(Answer(call, pack(self._loop.age_s()))))
        else:
            future = self._loop.call(partial(self._do, call, command))
            if call:
                future.add_done_callback(partial(self._answer, call))

    def _answer(self, call: int, future: Future[Any]) -> None:
        error = future.exception()
        if error is None:
            self._outbox.put(encode(Answer(call, future.result())))
            return
        if not isinstance(error, NanolensError):
            logger.error("a command failed", exc_info=error)
        self._outbox.put(encode(Failed(call, Fault.of(error))))

    def _do(self, call: int, command: AnyCommand, engine: Engine) -> Any:
        """A command's packed result. What it brought about for streams is sent before it."""
        if isinstance(command, Resume):
            self._resume(command, engine)
            return pack(None)  # what it brought about is for the turn that its answer opens: sent after it
        try:
            return pack(self._run(call, command, engine))
        finally:
            self._flush()

    def _run(self, call: int, command: AnyCommand, engine: Engine) -> object:
        match command:
            case EngineCommand():
                return command.run(engine)
            case Add():
                return self._add(call, command, engine)
            case Finish():
                return self._finish(command.request_id, engine)
            case Abandon(stream=number) if number in self._streams:
                self._streams[number].abandoned = True
                engine.abort(self._streams[number].request_id)
            case Refuse():
                refusal = InvalidRequest(command.field, command.message)
                engine.refuse(command.request_id, refusal, command.traceparent)
        return None

    def _add(self, call: int, command: Add, engine: Engine) -> str:
        stream = _Stream(call, command.request_id, command.deltas)
        engine.add_request(
            command.prompt,
            command.params,
            request_id=command.request_id,
            traceparent=command.traceparent,
            route=command.route,
            on_output=partial(self._on_output, stream),
            on_finish=partial(self._on_finish, stream),
            on_pause=partial(self._on_pause, stream),
        )
        self._streams[call] = self._by_name[command.request_id] = stream
        return command.request_id

    def _resume(self, command: Resume, engine: Engine) -> None:
        stream = self._by_name.get(command.request_id)
        wanted = stream is not None and stream.wants_deltas
        if stream is not None:
            stream.wants_deltas = wanted or command.deltas  # first: its first piece may come from within `resume`
        try:
            engine.resume(command.request_id, command.append, command.max_tokens, command.index)
        except Exception:
            if stream is not None:
                stream.wants_deltas = wanted
            raise

    def _finish(self, request_id: str, engine: Engine) -> RequestOutput | None:
        """End a paused request: its output. It is refused while a part of it runs, for there would be none."""
        stream, request = self._by_name.get(request_id), engine.core.requests.get(request_id)
        if request is not None and not request.at_rest:
            raise NotPaused(f"request {request_id} runs or waits: it can be finished when all of it is paused")
        engine.finish(request_id)
        return None if stream is None else stream.output

    def _on_output(self, stream: _Stream, delta: Delta) -> None:
        if stream.wants_deltas and not stream.abandoned:
            self._deltas.append((stream.number, delta))

    def _on_pause(self, stream: _Stream, output: RequestOutput) -> None:
        if not stream.abandoned:
            self._ends.append((stream.number, pack(output)))  # now: its lists grow once it is resumed

    def _on_finish(self, stream: _Stream, output: RequestOutput) -> None:
        stream.output = output
        del self._streams[stream.number], self._by_name[stream.request_id]
        self._on_pause(stream, output)

    def _flush(self) -> None:
        """Send what came since the last time, as one message."""
        if self._deltas or self._ends:
            self._outbox.put(encode(Outputs(self._deltas, self._ends)))
            self._deltas, self._ends = [], []
