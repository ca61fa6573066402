"""The parent's side of an engine process: calls and their answers, requests and their streams, and its end.

Belongs to one event loop. Knows no more of a command than whether it opens a stream.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import msgspec

from ..errors import EngineDead, InvalidRequest
from ..telemetry.events import EngineStarted
from . import messages as m
from .commands import Command
from .config import EngineConfig
from .core_link import CoreLink
from .outputs import RequestOutput
from .request_fields import Prompt, as_name, as_route, as_token_ids, recordable
from .sampling_params import SamplingParams, check_token_ids
from .turn import Turn

T = TypeVar("T")
_Call = tuple[asyncio.Future[Any], msgspec.msgpack.Decoder[Any], Callable[[], None] | None]

_HINT = (
    "; its messages are on stderr. A program that starts an engine at its top level has to do so under "
    "`if __name__ == '__main__':`"
)

logger = logging.getLogger("nanolens.engine")


class _Stream:
    """A live request, and the turns that wait for its next end. They are held by those who read them alone."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.request_id = ""  # once the engine has taken the request
        self.turns: list[weakref.ref[Turn]] = []

    def add(self, turn: Turn) -> None:
        """Let a turn end with the request's next end."""
        self.turns.append(weakref.ref(turn))

    def reader(self) -> Turn | None:
        """Who gets the pieces."""
        return next((turn for ref in self.turns if (turn := ref()) is not None), None)

    def end(self, output: RequestOutput | None, death: str = "") -> None:
        """End the turns."""
        turns, self.turns = self.turns, []
        for ref in turns:
            if (turn := ref()) is not None:
                turn.end(output, death)


class CoreClient:
    """An engine process that was started, and all that waits for it. Made in the event loop that it belongs to.

    Args:
        target: what the process runs.

    Attributes:
        started: the first event of its run; None until it is ready.
        metrics_port: where its exporter serves the metrics, on 127.0.0.1; None: nowhere.
        death: why the process ended; "" while it has not.
    """

    def __init__(self, target: Callable[[Connection], None]) -> None:
        self.started: EngineStarted | None = None
        self.metrics_port: int | None = None
        self.death = ""
        self._closing = False
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._gone = asyncio.Event()
        self._numbers = itertools.count(1)  # of calls; a request's stream has that of its Add
        self._names = itertools.count()
        self._pending: dict[int, _Call] = {}
        self._streams: dict[int, _Stream] = {}
        self._by_name: dict[str, _Stream] = {}
        tell = partial(_tell, self._loop, weakref.ref(self))
        self._link = CoreLink(target, partial(tell, "_take"), partial(tell, "_bury"))
        # Where nobody holds it any more. At the program's end the link sees to it.
        weakref.finalize(self, self._link.hang_up).atexit = False

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._link.pid

    @property
    def is_alive(self) -> bool:
        """Whether commands are taken."""
        return self.started is not None and not self._closing and not self.death

    async def start(self, config: EngineConfig) -> None:
        """Have the engine built; called once. What stands in the way is raised when the process is gone."""
        self._link.send(m.encode(m.Start(config)))
        try:
            await self._ready
        except BaseException:
            await self._kill()
            raise

    def new_request_id(self) -> str:
        """A name that no live request has."""
        while (name := f"req-{next(self._names)}") in self._by_name:
            pass
        return name

    def has_request(self, request_id: str) -> bool:
        """Whether a live request has this id."""
        return request_id in self._by_name

    def refuse(self, request_id: str, field: str, message: str, traceparent: str | None) -> None:
        """Have a refusal recorded, under the names it gave as far as a journal can hold them."""
        if self.is_alive:
            name, at, why = (recordable(each) or "" for each in (request_id, field, message))
            self._link.send(m.encode_command(0, m.Refuse(name, at, why, recordable(traceparent))))

    async def call(self, command: Command, kind: type[T]) -> T:
        """Send a command and wait for its result.

        Raises:
            InvalidRequest: a field that no message can hold, or what the command raises.
            EngineDead: the process is gone, or goes before it answers.
        """
        link, number = self._open_link(), next(self._numbers)
        return await self._ask(link, number, m.encode_command(number, command), kind)

    async def begin(
        self, prompt: Prompt, params: SamplingParams | None, request_id: str, priority: int | None,
        traceparent: str | None, route: Mapping[str, str | int] | None, turn: Turn, wants_deltas: bool,
    ) -> None:  # fmt: skip
        """Queue a request, and let a turn have its outputs."""
        link, number = self._open_link(), next(self._numbers)
        try:
            if params is not None and not isinstance(params, SamplingParams):
                raise InvalidRequest("params", f"params: must be SamplingParams, not {type(params).__name__}")
            own = SamplingParams() if params is None else params
            add = m.Add(
                prompt=self._sendable("prompt", prompt),
                params=replace(own, priority=own.priority if priority is None else priority),
                request_id=as_name("request_id", request_id),
                traceparent=None if traceparent is None else as_name("traceparent", traceparent),
                deltas=wants_deltas,
                route=None if route is None else as_route(route),
            )
            data = m.encode_command(number, add)
        except InvalidRequest as error:  # what a message can't hold is refused here, and recorded there
            self.refuse(request_id, error.field, str(error), traceparent)
            raise
        turn.stream = number
        stream = self._streams[number] = _Stream(number)
        stream.add(turn)
        try:
            await self._ask(link, number, data, str, partial(self._name, request_id, stream))
        except Exception:
            self._streams.pop(number, None)
            raise

    async def resume(
        self, append: str | list[int] | None, max_tokens: int | None, index: int | None, turn: Turn, wants_deltas: bool
    ) -> None:
        """Resume a request, and let a turn have its outputs."""
        link, number = self._open_link(), next(self._numbers)
        sent = None if append is None else self._sendable("append", append)
        data = m.encode_command(number, m.Resume(turn.request_id, sent, max_tokens, index, wants_deltas))
        stream = self._by_name.get(turn.request_id)
        if stream is None:  # the answer is UnknownRequest
            await self._ask(link, number, data, type(None))
        else:
            turn.stream = stream.number
            await self._ask(link, number, data, type(None), partial(stream.add, turn))

    def _name(self, request_id: str, stream: _Stream) -> None:
        """The engine knows the request of a stream by this id now."""
        if stream.number in self._streams:  # not abandoned meanwhile
            stream.request_id = request_id
            self._by_name[request_id] = stream

    def abandon(self, number: int) -> None:
        """Abort the request of a stream that was left. Any thread: a turn may be collected anywhere."""
        stream = self._streams.pop(number, None)
        if stream is not None:
            if self._by_name.get(stream.request_id) is stream:
                del self._by_name[stream.request_id]
            self._link.send(m.encode_command(0, m.Abandon(number)))

    async def close(self, timeout: float) -> bool:
        """End the process in order, or kill it after `timeout` seconds: False then. May be called again."""
        self._check_loop()
        self._closing = True
        self._link.hang_up()
        try:
            await asyncio.wait_for(self._gone.wait(), timeout)
        except TimeoutError:
            logger.warning("the engine process %d was killed: it did not end within %g s", self._link.pid, timeout)
            await self._kill()
            return False
        return True

    async def _kill(self) -> None:
        self._closing = True
        self._link.kill()
        await self._gone.wait()

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("an AsyncEngine belongs to the event loop that started it")

    def _open_link(self) -> CoreLink:
        """The link, if commands can be sent."""
        self._check_loop()
        if not self.is_alive:
            raise EngineDead(self.death or "the engine is closed")
        return self._link

    async def _ask(
        self, link: CoreLink, number: int, data: bytes, kind: type[T], then: Callable[[], None] | None = None
    ) -> T:
        """Send a call and wait for its result. `then` is called when that comes, before any later message is taken."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._pending[number] = (future, msgspec.msgpack.Decoder(kind), then)
        link.send(data)
        try:
            return await future
        finally:
            self._pending.pop(number, None)

    def _sendable(self, field: str, prompt: Prompt) -> str | list[int]:
        """A prompt as a message holds it."""
        if isinstance(prompt, str):
            return str.__str__(prompt)
        token_ids = as_token_ids(prompt, field)
        check_token_ids(field, token_ids, self.started.vocab_size if self.started is not None else 0)
        return token_ids

    def _take(self, report: m.Report) -> None:
        """Take a message of the process."""
        match report:
            case m.Outputs():
                self._deliver(report)
            case m.Answer() if report.call in self._pending:
                future, decoder, then = self._pending[report.call]
                if then is not None:
                    then()
                if not future.done():
                    future.set_result(decoder.decode(report.result))
            case m.Failed() if report.call in self._pending:
                future, _, _ = self._pending[report.call]
                if not future.done():
                    future.set_exception(report.fault.unpack())
            case m.Ready() if not self._ready.done():
                self.started, self.metrics_port = report.started, report.metrics_port
                self._ready.set_result(None)
            case m.StartFailed() if not self._ready.done():
                self._ready.set_exception(report.fault.unpack())

    def _deliver(self, outputs: m.Outputs) -> None:
        for number, delta in outputs.deltas:
            if (stream := self._streams.get(number)) is not None and (turn := stream.reader()) is not None:
                turn.push(delta)
        for number, packed in outputs.ends:
            if (stream := self._streams.get(number)) is None:
                continue
            output = msgspec.msgpack.decode(packed, type=RequestOutput)
            if output.finished:
                del self._streams[number]
                self._by_name.pop(output.request_id, None)
            stream.end(output)

    def _bury(self, death: str) -> None:
        """The process is gone: tell everyone."""
        self.death = death
        if not self._closing:
            logger.error("%s", death)
        for future, _, _ in self._pending.values():
            if not future.done():
                future.set_exception(EngineDead(death))
        if not self._ready.done():
            self._ready.set_exception(EngineDead(f"{death} before it was ready{_HINT}"))
        for stream in list(self._streams.values()):
            stream.end(None, death)
        self._streams.clear()
        self._by_name.clear()
        self._gone.set()


def _tell(loop: asyncio.AbstractEventLoop, ref: weakref.ref[CoreClient], method: str, value: Any) -> None:
    """Hand something from the link's thread to the client in its event loop, if both are still there."""

    def take() -> None:
        client = ref()
        if client is not None:
            getattr(client, method)(value)

    try:
        loop.call_soon_threadsafe(take)
    except RuntimeError:
        pass  # the loop is closed
