"""The asyncio API: an engine in a process of its own, its outputs as streams. Loads no torch in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Literal

from ..telemetry.events import EngineStarted, Keyframe
from . import commands, core_process
from . import messages as m
from .config import EngineConfig
from .core_client import CoreClient
from .outputs import RequestOutput
from .progress import Progress
from .request_fields import Prompt
from .sampling_params import SamplingParams
from .turn import Turn

_NOT_STARTED = "the engine was not started: `await AsyncEngine.start(...)`, or `async with AsyncEngine(...)`"


class AsyncEngine:
    """An engine whose core runs in its own process; this one keeps its event loop free.

        async with AsyncEngine("smollm2", num_blocks=512) as engine:
            async for delta in engine.generate("Hello", SamplingParams(max_tokens=32)):
                print(delta.text, end="")

    A conversation, its KV kept between the turns:

        first = engine.generate(prompt, SamplingParams(on_stop="pause"))
        async for delta in first: ...                               # ends at the pause: first.output.finished is False
        async for delta in engine.resume(first.request_id, append="And then?", max_tokens=64): ...
        output = await engine.finish(first.request_id)

    All of it belongs to the event loop that started it: other loops and threads get a RuntimeError. A program that
    uses it keeps its top level under `if __name__ == "__main__":`, for the new process imports that module.

    When the process dies, every open stream and call ends with EngineDead, which names how; so do later ones. It ends
    by itself, its journal in order, when this process is gone. A reader that is slow costs memory, never steps.

    Args:
        model: a directory, a hub name, `smollm2` (embedded), or `dummy:NAME`.
        options: settings of EngineConfig, by name.

    Raises:
        TypeError: an option that does not exist, named.
        InvalidConfig: a setting that can't work.
    """

    _main: Callable[[Connection], None] = staticmethod(core_process.main)  # what the process runs

    def __init__(self, model: str = "smollm2", **options: Any) -> None:
        self.config = EngineConfig.from_options(model, options)
        self._client: CoreClient | None = None

    @classmethod
    async def start(cls, model: str = "smollm2", **options: Any) -> AsyncEngine:
        """Start a process, and load the model there.

        Raises:
            TypeError, InvalidConfig, UnknownModel, ModelLoadError: what is wrong, in words.
            EngineDead: the process ended before it was ready.
        """
        engine = cls(model, **options)
        await engine._launch()
        return engine

    async def __aenter__(self) -> AsyncEngine:
        await self._launch()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def started(self) -> EngineStarted:
        """The first event of the run: its id, sizes of the pool and the vocabulary, longest sequence."""
        started = self._running().started
        if started is None:
            raise RuntimeError(_NOT_STARTED)
        return started

    @property
    def metrics_port(self) -> int | None:
        """Where Prometheus finds this engine's metrics, on 127.0.0.1 (`metrics_port=0` takes any free port)."""
        return self._running().metrics_port

    @property
    def pid(self) -> int:
        """Of the engine's process."""
        return self._running().pid

    @property
    def is_alive(self) -> bool:
        """Whether it takes requests. A step that hangs is seen by `ping`."""
        return self._client is not None and self._client.is_alive

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int | None = None,
        traceparent: str | None = None,
        route: Mapping[str, str | int] | None = None,
    ) -> Turn:
        """Complete a prompt: an asynchronous iterator of Delta, over all its sequences. Leaving it aborts the request.

        Arguments are those of `Engine.add_request`, and so are the errors; they come with the first item.
        """
        client = self._running()
        name = client.new_request_id() if request_id is None else request_id
        begin = partial(client.begin, prompt, params, name, priority, traceparent, route)
        return Turn(name, begin, client.abandon)

    async def complete(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int | None = None,
        traceparent: str | None = None,
        route: Mapping[str, str | int] | None = None,
    ) -> RequestOutput:
        """Complete a prompt: the output at its end, or as it is paused. Cancelling the task aborts the request."""
        return await self.generate(
            prompt, params, request_id=request_id, priority=priority, traceparent=traceparent, route=route
        ).result()

    def resume(
        self,
        request_id: str,
        append: str | list[int] | None = None,
        max_tokens: int | None = None,
        index: int | None = None,
    ) -> Turn:
        """Continue a paused request: its next turn, to be iterated or, with `.result()`, awaited as a whole.

        Arguments are those of `Engine.resume`, and so are the errors; they come with the first item. Where other
        sequences of the request still run, the pieces go to the turn that is open already, and both end together.
        """
        client = self._running()
        return Turn(request_id, partial(client.resume, append, max_tokens, index), client.abandon)

    async def finish(self, request_id: str) -> RequestOutput:
        """End a paused request: its whole output. Text that a pause held back (half a stop string) is in it alone.

        Raises:
            UnknownRequest: no live request has this id.
            NotPaused: a part of it runs or waits; nothing has changed.
        """
        return await self._running().call(m.Finish(request_id), RequestOutput)

    def has_request(self, request_id: str) -> bool:
        """Whether a live request has this id; one that was just sent has it once the engine has answered."""
        return self._running().has_request(request_id)

    def refuse(self, request_id: str, field: str, message: str, traceparent: str | None = None) -> None:
        """Have it recorded that a request was refused before it came here. Does nothing once the engine has ended."""
        self._running().refuse(request_id, field, message, traceparent)

    async def abort(self, request_id: str) -> bool:
        """End a live request; False when there is none of this id. Its turn ends with the finish reason "abort"."""
        return await self._running().call(commands.Abort(request_id), bool)

    async def pause(self, request_id: str, index: int | None = None, reason: str = "operator") -> bool:
        """Pause a request's sequences, or one of them: whether one was paused now. Errors: UnknownRequest."""
        return await self._running().call(commands.Pause(request_id, index, reason), bool)

    async def set_priority(self, request_id: str, priority: int) -> None:
        """Change a live request's priority; lower is more urgent. Errors: UnknownRequest, InvalidRequest."""
        await self._running().call(commands.SetPriority(request_id, priority), type(None))

    async def snapshot(self) -> Keyframe:
        """The whole state now: sequences, queues and blocks, without any content."""
        return await self._running().call(commands.Snapshot(), Keyframe)

    async def pause_engine(self, cause: str = "operator") -> None:
        """Plan no more steps until `continue_engine`."""
        await self._running().call(commands.PauseEngine(cause), type(None))

    async def continue_engine(self, num_steps: int = 0) -> None:
        """Plan steps again: so many, or without end."""
        await self._running().call(commands.ContinueEngine(num_steps), type(None))

    async def add_breakpoint(self, predicate: str, action: Literal["engine", "sequence"] = "engine") -> int:
        """Pause the engine, or the sequence, at each event that meets a predicate: the breakpoint's number."""
        return await self._running().call(commands.AddBreakpoint(predicate, action), int)

    async def remove_breakpoint(self, number: int) -> bool:
        """Forget a breakpoint; False when there is none of this number."""
        return await self._running().call(commands.RemoveBreakpoint(number), bool)

    async def breakpoints(self) -> dict[int, str]:
        """Predicates by number."""
        return await self._running().call(commands.Breakpoints(), dict[int, str])

    async def mark(self, text: str, origin: str = "operator") -> None:
        """Put a note into the journal. Errors: InvalidRequest."""
        await self._running().call(commands.Mark(text, origin), type(None))

    async def note_stall(self, request_id: str, stalled_ns: int, pieces: int, end_t: int = 0) -> None:
        """Have the journal hold that the reader of a stream held it up. Errors: InvalidRequest."""
        await self._running().call(commands.NoteStall(request_id, stalled_ns, pieces, end_t), type(None))

    async def progress(self) -> Progress:
        """How far the engine has come; answered between two steps, so that a step that hangs gives no answer."""
        return await self._running().call(commands.AskProgress(), Progress)

    async def locate(self, seq: int) -> tuple[str, int] | None:
        """The request that a live sequence belongs to, and its index there; None where none has this number."""
        found = await self._running().call(commands.Locate(seq), list[tuple[str, int]])
        return found[0] if found else None

    async def ping(self) -> float:
        """Seconds since the engine's loop last turned: more than the longest step can take means that a step hangs.

        A process that is stopped (SIGSTOP) gives no answer at all: set a limit with `asyncio.wait_for`.
        """
        return await self._running().call(m.Ping(), float)

    async def close(self, timeout: float = 30.0) -> bool:
        """Abort what is left, end the journal and the process; kill it after `timeout` seconds. May be called again.

        Returns:
            False where the process had to be killed.
        """
        return self._client is None or await self._client.close(timeout)

    async def _launch(self) -> None:
        if self._client is not None:
            raise RuntimeError("an AsyncEngine is started once: make a new one")
        self._client = CoreClient(self._main)
        await self._client.start(self.config)

    def _running(self) -> CoreClient:
        if self._client is None:
            raise RuntimeError(_NOT_STARTED)
        return self._client
