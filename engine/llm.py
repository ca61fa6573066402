"""The offline API: a model, and `generate`, `chat` and `stream` over an engine in this process."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from numbers import Integral
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..errors import EngineIsPaused, InvalidRequest, NotPaused, UnknownRequest, shown
from .build import build_engine
from .config import EngineConfig
from .core import EngineCore
from .engine import Engine, Message
from .interrupts import HeldInterrupts
from .outputs import Delta, RequestOutput
from .request import OnFinish, Request
from .request_fields import Prompt
from .sampling_params import SamplingParams

if TYPE_CHECKING:
    from .exporting import Exporting
    from .runner.load import LoadedModel


class LLM:
    """A language model, loaded and ready.

    A Ctrl-C in the main thread ends `generate`, `chat` or the stream between two steps; the model can be used on.
    Without `close` the engine is closed, with the reason "exit", when the program ends or nobody holds it any more.

    Args:
        model: a directory, a hub name, `smollm2` (embedded), or `dummy:NAME`.
        parts: a model that is loaded already, in the place of the one named (`engine.runner.load.load_parts`).
        options: settings of EngineConfig, by name.

    Raises:
        TypeError: an option that does not exist, named.
        InvalidConfig, UnknownModel, ModelLoadError: what is wrong, in words.
    """

    def __init__(self, model: str = "smollm2", *, parts: LoadedModel | None = None, **options: Any) -> None:
        self.config = EngineConfig.from_options(model, options)
        self.engine: Engine = build_engine(self.config, parts)
        self._at_exit = weakref.finalize(self.engine, close_at_exit, self.engine.core, self.engine.exporting)

    @property
    def metrics_port(self) -> int | None:
        """Where Prometheus finds this engine's metrics (`metrics_port=0` takes any free port); None: nowhere."""
        return self.engine.exporting.metrics_port if self.engine.exporting is not None else None

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete one prompt or many, and return the outputs in their order.

        With `on_stop="pause"` or `pause_after_prefill` an output may be that of a request that is paused (`finished` is
        False): it goes on with `resume(output.request_id, ...)`, and ends with `finish(output.request_id)`.

        Args:
            prompts: a text, a list of token ids, or a list of such.
            params: one for all, or one for each.
            use_tqdm: show a progress bar.

        Raises:
            InvalidRequest: before anything was queued, naming the prompt and the field.
            EngineDead: the engine was closed.
            EngineIsPaused: an operator or a breakpoint paused the engine. The requests stay as they are, to be looked
                at: `continue_engine()`, then `wait(error.request_ids)`; `error.outputs` holds those that were done.
        """
        self.engine.core.look()
        many = as_prompts(prompts)
        each = as_params(params, len(many))
        requests = []
        for index, (prompt, own) in enumerate(zip(many, each, strict=True)):
            try:
                requests.append(self.engine.prepare(prompt, own, self.engine.new_request_id()))
            except InvalidRequest as error:
                raise type(error)(error.field, f"prompts[{index}]: {error}") from None
        return self._run(requests, use_tqdm)

    def chat(
        self,
        messages: list[Message] | list[list[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation or many.

        Raises:
            InvalidRequest: as `generate`, or a model without a chat template.
            EngineDead: the engine was closed.
        """
        self.engine.core.look()
        is_many = isinstance(messages, list | tuple) and messages and isinstance(messages[0], list | tuple)
        many = messages if is_many else [messages]
        prompts = [self.engine.chat_prompt(conversation) for conversation in many]  # type: ignore[arg-type]
        return self.generate(prompts, params, use_tqdm=use_tqdm)

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, request_id: str | None = None
    ) -> Iterator[Delta]:
        """Complete one prompt and yield its output as it comes; closing the iterator aborts the request.

        Where it pauses, its last delta says so: whoever reads it resumes or finishes the request, by the `request_id`
        that it was given, before asking for the next one.

        Raises:
            InvalidRequest: on the first `next`.
            EngineDead: on the first `next`; the engine was closed.
        """
        deltas: deque[Delta] = deque()
        done: list[RequestOutput] = []
        # Known before it is queued: an interrupt may come right after that.
        name = self.engine.new_request_id() if request_id is None else request_id
        self.engine.core.look()
        try:
            self.engine.add_request(
                prompt, params, request_id=name, on_output=deltas.append, on_finish=done.append
            )
            while not done:
                if not self.engine.step() and self.engine.engine_paused:
                    raise EngineIsPaused(f"the engine is paused ({self.engine.engine_paused})")
                while deltas:
                    yield deltas.popleft()
        finally:
            try:
                self.engine.abort(name)
            finally:  # an interrupt may have come before the abort began to hold it
                self.engine.abort(name)

    def close(self) -> None:
        """End the journal, give back the device's memory, and let an exporter send what it has left."""
        self.engine.close()
        self._at_exit.detach()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def resume(
        self, request_id: str, append: Prompt | None = None, max_tokens: int | None = None, *, use_tqdm: bool = False
    ) -> RequestOutput:
        """Let a paused request go on, until it ends or pauses again; its output so far, appended tokens left out.

        A Ctrl-C pauses it again.

        Args:
            request_id: of an output with `finished` False.
            append: a text or token ids that come next: the other side's turn of a conversation.
            max_tokens: generated tokens from here on; None: see `Engine.resume`.
            use_tqdm: show a progress bar.

        Raises:
            UnknownRequest, NotPaused, InvalidRequest, EngineDead: as `Engine.resume`.
            EngineIsPaused: the engine plans no steps; the request has been resumed, see `wait`.
        """
        outputs: dict[str, RequestOutput] = {}
        with self._kept(self._live([request_id]), outputs):
            self.engine.resume(request_id, append, max_tokens)
            try:
                self._step_until(outputs, [request_id], use_tqdm)
            except KeyboardInterrupt:
                if request_id not in outputs:
                    self.engine.pause(request_id)
                raise
        return outputs[request_id]

    def wait(self, request_ids: Sequence[str], *, use_tqdm: bool = False) -> list[RequestOutput]:
        """Step until each of these live requests has ended or paused; their outputs in this order.

        Raises:
            UnknownRequest: one of them is not live.
            EngineDead: the engine was closed.
            EngineIsPaused: the engine plans no steps; its `outputs` are those that were done before.
        """
        requests = self._live(request_ids)
        outputs = {r.request_id: r.output(self.engine.core.started.wall_offset_ns) for r in requests if r.at_rest}
        with self._kept(requests, outputs):
            self._step_until(outputs, request_ids, use_tqdm)
        return [outputs[request_id] for request_id in request_ids]

    def finish(self, request_id: str) -> RequestOutput:
        """End a paused request in order; its output.

        Raises:
            UnknownRequest, EngineDead: as `Engine.finish`.
            NotPaused: it, or one of its sequences, runs or waits.
        """
        outputs: dict[str, RequestOutput] = {}
        (request,) = self._live([request_id])
        if not request.at_rest:
            raise NotPaused(f"request {request_id} is not paused, or not all of its sequences are")
        with self._kept([request], outputs):
            self.engine.finish(request_id)
        return outputs[request_id]

    def _run(self, requests: list[Request], use_tqdm: bool) -> list[RequestOutput]:
        outputs: dict[str, RequestOutput] = {}
        ids = [request.request_id for request in requests]
        with self._kept(requests, outputs):
            try:
                with HeldInterrupts() as interrupts:
                    for request in requests:
                        interrupts.check()
                        self.engine.core.add(request)
                    self._step_until(outputs, ids, use_tqdm, interrupts)
            except EngineIsPaused:
                raise
            except BaseException:
                for request_id in ids:
                    if request_id not in outputs:
                        self.engine.abort(request_id)
                raise
        return [outputs[request_id] for request_id in ids]

    def _live(self, request_ids: Sequence[str]) -> list[Request]:
        """Live requests by their ids."""
        self.engine.core.look()
        known = self.engine.core.requests
        for request_id in request_ids:
            if not isinstance(request_id, str) or request_id not in known:
                raise UnknownRequest(f"no live request has the id {shown(request_id)}")
        return [known[request_id] for request_id in request_ids]

    @contextmanager
    def _kept(self, requests: list[Request], outputs: dict[str, RequestOutput]) -> Iterator[None]:
        """Within the block, keep what requests give when they end or pause; their own callbacks are called too."""

        def keeping(then: OnFinish | None) -> OnFinish:
            def keep(output: RequestOutput) -> None:
                outputs[output.request_id] = output
                if then is not None:
                    then(output)

            return keep

        own = [(request, request.on_finish, request.on_pause) for request in requests]
        for request, on_finish, on_pause in own:
            request.on_finish, request.on_pause = keeping(on_finish), keeping(on_pause)
        try:
            yield
        finally:
            for request, on_finish, on_pause in own:
                request.on_finish, request.on_pause = on_finish, on_pause

    def _step_until(
        self, outputs: dict[str, RequestOutput], ids: Sequence[str], use_tqdm: bool, held: HeldInterrupts | None = None
    ) -> None:
        """Step until each of `ids` has an output: it has ended, or has paused."""
        from tqdm import tqdm

        wanted = {"total": len(ids), "desc": "requests", "disable": not use_tqdm, "dynamic_ncols": True}
        with HeldInterrupts() as own, tqdm(**wanted) as bar:
            interrupts = held or own
            while len(outputs) < len(ids):
                interrupts.check()
                if not self.engine.step() and self.engine.engine_paused:
                    left = [request_id for request_id in ids if request_id not in outputs]
                    raise EngineIsPaused(
                        f"the engine is paused ({self.engine.engine_paused}); {len(left)} requests stay as they are: "
                        "continue_engine(), then wait(error.request_ids)",
                        left,
                        dict(outputs),
                    )
                if len(outputs) > bar.n:
                    bar.update(len(outputs) - bar.n)


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or many, as many.

    Raises:
        InvalidRequest: a list that mixes token ids and prompts.
    """
    if isinstance(prompts, str | bytes | bytearray | memoryview | Mapping | Set) or not isinstance(prompts, Iterable):
        return [prompts]  # not a list: a prompt, or what is none and refused as one
    if getattr(prompts, "ndim", None) in (0, 1):
        return [prompts]  # type: ignore[list-item]  # an array: of one dimension, it is one prompt
    items = list(prompts)
    if items and all(isinstance(item, Integral) for item in items):
        return [items]  # type: ignore[list-item]
    if any(isinstance(item, Integral) for item in items):
        raise InvalidRequest("prompts", "prompts mixes token ids and prompts: give a list of one kind")
    return items  # type: ignore[return-value]


def as_params(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> Sequence[SamplingParams | None]:
    """Parameters for each of `count` prompts.

    Raises:
        InvalidRequest: with field `params`: of another type, or not as many as there are prompts.
    """
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    if isinstance(params, str | bytes | bytearray | memoryview) or not isinstance(params, Sequence):
        raise InvalidRequest("params", f"params: must be SamplingParams or a list of them, not {type(params).__name__}")
    if len(params) != count:
        raise InvalidRequest("params", f"{len(params)} params for {count} prompts: give one, or one each")
    return list(params)


def close_at_exit(core: EngineCore, exporting: Exporting | None = None) -> None:
    """Close an engine that nobody closed."""
    try:
        core.close("exit")
    finally:
        if exporting is not None:
            exporting.finish()
