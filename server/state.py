"""What the routes of one server share: the engine, the tokenizer, names, limits, and who is let in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from fastapi import Request

from .. import __version__
from ..engine.async_engine import AsyncEngine
from ..errors import InvalidRequest, NotPaused, PromptTooLong, UnknownRequest
from ..models.tokenizer import AnyTokenizer
from .errors import ApiError
from .request_ids import new_id
from .token_text import TokenTexts

if TYPE_CHECKING:
    from .calls import Call
    from .replies import Reply
    from .shapes import Shape


ANSWER_S = 60.0  # that the engine may take for an answer, which comes between two steps

T = TypeVar("T")


SHRINKS = 4  # times that a normalizer may shorten a text before it becomes tokens; Unicode's NFC at most thrice


class Admission(Protocol):
    """Who is let in. A place taken is given back by calling what `enter` returned, once."""

    def enter(self, num_requests: int) -> Callable[[], None]:
        """Let a call in that brings so many requests to the engine; returns what gives its places back.

        Raises:
            ApiError: 429 with Retry-After when full, 503 when stopping.
        """


class OpenAdmission:
    """Lets everyone in."""

    def enter(self, num_requests: int) -> Callable[[], None]:
        """Nothing is counted."""
        return lambda: None


@dataclass(frozen=True, slots=True)
class Limits:
    """What one HTTP request may ask for.

    Attributes:
        max_body_bytes: of a body; more is answered by 413.
        max_prompts: prompts of one completion request.
        max_sequences: prompts times n.
        max_timeout_s: longest `timeout`, and the one of requests that give none; None: no deadline.
    """

    max_body_bytes: int = 4 << 20
    max_prompts: int = 1024
    max_sequences: int = 4096
    max_timeout_s: float | None = None

    def check_count(self, num_prompts: int, n: int) -> None:
        """Refuse too many prompts, or sequences of all of them.

        Raises:
            InvalidRequest: naming `prompt` or `n`.
        """
        if num_prompts > self.max_prompts:
            raise InvalidRequest("prompt", f"prompt: {num_prompts} prompts; must be at most {self.max_prompts}")
        if num_prompts * n > self.max_sequences:
            raise InvalidRequest("n", f"n={n}: for {num_prompts} prompts at most {self.max_sequences // num_prompts}")

    def timeout_s(self, asked: float | None) -> float | None:
        """The deadline of a request that asks for this one."""
        limits = [each for each in (asked, self.max_timeout_s) if each is not None]
        return min(limits) if limits else None


@dataclass
class ServerState:
    """One server.

    Attributes:
        engine: started, in the event loop that serves.
        tokenizer: the model's, in this process.
        model_names: what the model is called; the first is the one in answers.
        limits: of one request.
        admission: who is let in.
        started: seconds since 1970.
        system_fingerprint: of the model and its settings, in every answer.
        names: ids of the HTTP requests that are open.
        calls: open ones, so that a server that ends can tell their clients.
        replies: open ones, by the engine's request id: whoever steers the engine resumes a request through its reply.
        hung_up: set when nobody waits for the engine any more.
        on_stall: told of a stream whose reader held it up: its requests of the engine with how many pieces of each
            waited, and seconds.
        on_stream_end: told of the end of a stream, by its requests of the engine.
    """

    engine: AsyncEngine
    tokenizer: AnyTokenizer
    model_names: tuple[str, ...]
    limits: Limits = field(default_factory=Limits)
    admission: Admission = field(default_factory=OpenAdmission)
    started: int = field(default_factory=lambda: int(time.time()))
    on_stall: Callable[[Mapping[str, int], float], None] = lambda waiting, seconds: None
    on_stream_end: Callable[[Iterable[str]], None] = lambda requests: None
    system_fingerprint: str = ""
    names: set[str] = field(default_factory=set)
    calls: set[Call] = field(default_factory=set)
    replies: dict[str, Reply] = field(default_factory=dict)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    _paused: dict[str, Shape] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Prepare what the answers need."""
        self.texts = TokenTexts(self.tokenizer)
        if not self.system_fingerprint:
            config = self.engine.config
            told = (__version__, config.model, config.dtype, config.device)
            self.system_fingerprint = f"fp_{blake2b(repr(told).encode(), digest_size=5).hexdigest()}"

    async def ask(self, work: Coroutine[Any, Any, T], seconds: float = ANSWER_S) -> T:
        """Wait for an answer of the engine, which may hang.

        Raises:
            ApiError: 503, it has not answered within so many seconds, or the server ends.
        """
        tasks = asyncio.ensure_future(work), asyncio.ensure_future(self.hung_up.wait())
        try:
            await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                return tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        raise ApiError(503, f"the engine has not answered within {seconds:g} s; see /health", code="engine_silent")

    def check_model(self, model: str) -> str:
        """The name of the model that a request asks for.

        Raises:
            ApiError: 404, naming the models there are.
        """
        if model in self.model_names:
            return model
        known = ", ".join(self.model_names)
        raise ApiError(
            404, f"model={model[:200]!r} is not served here; there is {known}", param="model", code="model_not_found"
        )

    def free_name(self, wanted: str, path: str, count: int = 1) -> str:
        """An id that no live request has: the one wanted if that can be, else a new one for this path.

        Args:
            wanted: by the client.
            path: of the endpoint.
            count: requests of the engine that go by it; several have ids of their own, which must be free too.
        """
        name = wanted
        while any(each in self.names or self.engine.has_request(each) for each in (name, *parts_of(name, count))):
            name = new_id(path)
        return name

    def take_name(self, wanted: str, path: str, count: int) -> str:
        """As `free_name`; it and those of its parts are taken until `drop_name`."""
        name = self.free_name(wanted, path, count)
        self.names.update((name, *parts_of(name, count)))
        return name

    def drop_name(self, name: str, count: int) -> None:
        """Let go of a name that was taken for so many requests."""
        self.names.difference_update((name, *parts_of(name, count)))

    def check_fits(self, num_chars: int, field: str) -> None:
        """Refuse a prompt of so many characters where no text of that length can fit; this takes no tokenizing.

        Raises:
            PromptTooLong: naming `field`.
        """
        longest = self.engine.started.max_model_len
        most = longest * self.tokenizer.max_token_chars * SHRINKS
        if num_chars > most:
            raise PromptTooLong(
                field, f"{field} has {num_chars} characters: at most {most} can fit, since max_model_len={longest}"
            )

    def remember_paused(self, request_id: str, shape: Shape) -> None:
        """Keep how a request that pauses for its client is answered when it goes on."""
        for other in [each for each in self._paused if not self.engine.has_request(each)]:
            del self._paused[other]  # ended or expired meanwhile
        self._paused[request_id] = shape

    def paused(self, request_id: str) -> Shape:
        """How a request that pauses for its client is answered.

        Raises:
            NotPaused: it is being answered now.
            UnknownRequest: there is none of this id.
        """
        if request_id in self.replies:
            raise NotPaused(f"request {request_id[:200]!r} runs, or an operator paused it: wait for its answer")
        if request_id not in self._paused or not self.engine.has_request(request_id):
            raise UnknownRequest(f"no request {request_id[:200]!r} is paused here: it ended, expired or never was")
        return self._paused[request_id]


def parts_of(name: str, count: int) -> list[str]:
    """Ids of the requests that several prompts of one call become; one prompt's is the call's own."""
    return [f"{name}-{place}" for place in range(count)] if count > 1 else []


def state_of(request: Request) -> ServerState:
    """The server that a request came to."""
    state = request.app.state.server
    if not isinstance(state, ServerState):
        raise RuntimeError("the application was not made by create_app")
    return state
