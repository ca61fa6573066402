"""What the routes of one server share: the engine, the tokenizer, names, limits, and who is let in."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from fastapi import Request

from ..engine.async_engine import AsyncEngine
from ..errors import InvalidRequest
from ..models.tokenizer import AnyTokenizer
from .errors import ApiError
from .token_text import TokenTexts


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

    max_body_bytes: int = 32 << 20
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
        on_stall: told of a stream whose reader held it up: request id, seconds, pieces that waited.
    """

    engine: AsyncEngine
    tokenizer: AnyTokenizer
    model_names: tuple[str, ...]
    limits: Limits = field(default_factory=Limits)
    admission: Admission = field(default_factory=OpenAdmission)
    started: int = field(default_factory=lambda: int(time.time()))
    system_fingerprint: str = "nanolens"
    on_stall: Callable[[str, float, int], None] = lambda request_id, seconds, pieces: None
    names: set[str] = field(default_factory=set)  # ids of the HTTP requests that are open

    def __post_init__(self) -> None:
        """Prepare what the answers need."""
        self.texts = TokenTexts(self.tokenizer)

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

    def take_name(self, given: str | None, prefix: str) -> str:
        """An id for a request of the engine: the one given if no live request has it, else a new one.

        It is taken until `names` lets go of it.
        """
        name = given
        while name is None or name in self.names or self.engine.has_request(name):
            name = f"{prefix}-{secrets.token_hex(12)}"
        self.names.add(name)
        return name


def state_of(request: Request) -> ServerState:
    """The server that a request came to."""
    state = request.app.state.server
    if not isinstance(state, ServerState):
        raise RuntimeError("the application was not made by create_app")
    return state
