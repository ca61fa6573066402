"""One call of a client, passed to replicas until one has answered it: a replica that is gone is left for another one,
as long as nothing that was generated has reached the client. Knows no Ray.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.types import Message, Send

from .errors import ApiError
from .fleet_messages import HttpCall
from .fleet_metrics import RouterMetrics
from .fleet_spans import RouterSpan
from .request_ids import USED
from .sse import DONE, event

MAX_TRIES = 4
_ID = USED.encode()
_ELSEWHERE = (429, 503)  # what one replica has no room for, another one may have
_ERROR = b'data: {"error"'  # what an event that is one begins with
_LOST = frozenset({"engine_dead", "engine_silent", "stopping"})
Messages = AsyncIterator[list[dict[str, Any]]]


class Elsewhere(Exception):
    """A replica does not answer a call, and another one may."""


class Silent(Elsewhere):
    """It gives no sign of life, and where there is no other one, asking it again helps nobody."""


@dataclass
class Attempt:
    """One try: the messages of the answer, and how to give it up.

    Attributes:
        messages: of the answer; Elsewhere means that the replica is gone.
        cancel: to be called when the answer is not wanted any more.
        end: to be called once nothing more is read.
    """

    messages: Messages
    cancel: Callable[[], None]
    end: Callable[[], None] = lambda: None


class Relay:
    """Passes one call on.

    Args:
        ask: starts a try.
        send: to the client.
        others: whether there are replicas beside these.
        metrics: counts.
        span: notes what happens.
        on_head: told the id that the request goes by, as its replica has it, once that answers.
    """

    def __init__(
        self,
        ask: Callable[[HttpCall], Attempt],
        send: Send,
        others: Callable[[frozenset[str]], bool],
        metrics: RouterMetrics,
        span: RouterSpan,
        on_head: Callable[[str], None] = lambda request: None,
    ) -> None:
        self._ask, self._others, self._on_head = ask, others, on_head
        self._metrics, self._span = metrics, span
        self._passing = Passing(send)
        self._is_noted = self._is_counted = False

    async def run(self, call: HttpCall) -> None:
        """Answer it, with an error where no replica does. A client that is gone is the caller's to notice."""
        avoid: frozenset[str] = frozenset()
        for number in range(1, MAX_TRIES + 1):
            call = call.again(avoid, number)
            self._passing.begin(may_refuse=number < MAX_TRIES, must_hold=not call.pinned)
            attempt = self._ask(call)
            self._is_noted = False
            try:
                await self._follow(attempt, call, avoid)
                return
            except asyncio.CancelledError:
                self._note(call)
                self._count(call)
                raise
            except Elsewhere as error:
                tried = call.route.replica or next(iter(call.route.order), "")
                avoid |= {tried}
                self._span.left(tried, str(error))
                if self._may_try_again(call, error, avoid):
                    self._metrics.retried[tried] += 1
                    continue
                self._count(call)
                self._metrics.broken[tried] += 1
                self._span.error = f"replica {tried}: {error}"
                await self._passing.fail(_broken(tried, error, self._passing.has_generated))
                return
            finally:
                if code := self._passing.lost:
                    self._metrics.broken[call.route.replica] += 1
                    self._span.error = f"replica {call.route.replica}: {code}"
                if not self.has_ended:
                    attempt.cancel()
                attempt.end()

    @property
    def has_ended(self) -> bool:
        """Whether the client has got the whole answer of a replica."""
        return self._passing.has_ended

    def _may_try_again(self, call: HttpCall, error: Elsewhere, avoid: frozenset[str]) -> bool:
        """Whether a call that failed may be sent once more."""
        if isinstance(error, Silent) and (call.pinned or not self._others(avoid)):
            return False
        return call.attempt < MAX_TRIES and self._passing.can_begin_anew

    async def _follow(self, attempt: Attempt, call: HttpCall, avoid: frozenset[str]) -> None:
        """Pass an answer on."""
        async for messages in attempt.messages:
            if not self._is_noted:
                self._note(call)
                if request := _id_in(messages[0]):
                    self._on_head(request)
                if call.pinned or not self._others(avoid | {call.route.replica}):
                    self._passing.must_take()
            for message in messages:
                await self._passing.take(message)
            if not self._passing.can_begin_anew:
                self._count(call)
        if not self._passing.has_ended:
            raise Elsewhere("the answer has no end")

    def _note(self, call: HttpCall) -> None:
        """Note where a call went, as soon as that is known."""
        if not self._is_noted and call.route.replica:
            self._is_noted = True
            self._span.note(call.route)

    def _count(self, call: HttpCall) -> None:
        """Count a request, once: at the replica that its answer, or its last error, is of."""
        if not self._is_counted and call.generates and call.route.replica:
            self._is_counted = True
            self._metrics.routed[call.route.replica, call.route.reason] += 1


class Passing:
    """What has reached the client of an answer that may be begun more than once.

    Attributes:
        has_generated: whether it got something that a model has made.
        has_ended: whether it got it all.
        lost: code of the error that it got as the engine was gone; "": none.
    """

    def __init__(self, send: Send) -> None:
        self._send: Callable[[Message], Awaitable[None]] = send
        self.has_generated = False
        self.has_ended = False
        self.lost = ""
        self._held: list[dict[str, Any]] = []  # the head, and openings, until there is something behind them
        self._status = 0
        self._is_stream = False
        self._has_begun = False
        self._may_refuse = self._must_hold = False

    @property
    def can_begin_anew(self) -> bool:
        """Whether another answer can take the place of this one: the client has got nothing, not even a head."""
        return not self._has_begun

    def begin(self, may_refuse: bool, must_hold: bool = True) -> None:
        """A new answer comes.

        Args:
            may_refuse: whether one that says that there is no room is left for another replica's.
            must_hold: whether another replica may come to give the text of a stream: its head names who did.
        """
        self._held, self._may_refuse, self._must_hold = [], may_refuse, must_hold

    def must_take(self) -> None:
        """There is no other replica that could have room."""
        self._may_refuse = False

    async def take(self, message: dict[str, Any]) -> None:
        """Pass a message on, in its time.

        Raises:
            Elsewhere: this answer is none, and nothing is lost by asking another replica.
        """
        if message["type"] == "http.response.start":
            await self._take_head(message)
        elif message["type"] == "http.response.body":
            await self._take_body(message)

    async def _take_head(self, head: dict[str, Any]) -> None:
        self._status = head["status"]
        if self._status in _ELSEWHERE and self._may_refuse:
            raise Elsewhere(f"status {self._status}")
        self._is_stream = any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in
                              head["headers"])  # fmt: skip
        self._held = [head]
        if self._is_stream and not self._must_hold:
            await self._let_go()

    async def _take_body(self, message: dict[str, Any]) -> None:
        body: bytes = message.get("body", b"")
        if self._is_stream and not self.has_generated and body and body != DONE:
            kind = kind_of(body)
            if kind == "lost" and self._may_refuse and not self._has_begun:
                raise Elsewhere("its engine is gone")
            if kind == "opening" and self._held:
                self._held.append(message)
                return
            self.has_generated = kind != "opening"
        if body.startswith(_ERROR) or self._status >= 500:
            self.lost = lost_code(body) or self.lost
        await self._let_go()
        await self._send(message)
        self.has_ended = not message.get("more_body", False)

    async def _let_go(self) -> None:
        """Send what was held back."""
        held, self._held = self._held, []
        for each in held:
            self._has_begun = True
            await self._send(each)

    async def fail(self, error: ApiError) -> None:
        """End the answer with an error: an event of a stream, or the whole answer.

        Raises:
            RuntimeError: half of an answer that is no stream was sent: all that is left is to break the connection.
        """
        if self._has_begun and not self._is_stream:
            raise RuntimeError(str(error))
        if self._has_begun:
            await self._send({"type": "http.response.body", "body": event(error.body()), "more_body": True})
            await self._send({"type": "http.response.body", "body": DONE, "more_body": False})
            return
        response = error.response()
        await self._send(
            {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
        )
        await self._send({"type": "http.response.body", "body": bytes(response.body), "more_body": False})


def lost_code(data: bytes) -> str:
    """The code of an error, as an event or a whole answer, that says that the engine is gone; "" for all else."""
    try:
        value = msgspec.json.decode(data.removeprefix(b"data: "))
    except msgspec.DecodeError:
        return ""
    error = value.get("error") if isinstance(value, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    return str(code) if code in _LOST else ""


def _id_in(message: dict[str, Any]) -> str:
    """The id that the head of an answer says that the request goes by; "": none."""
    return next((value.decode("latin-1") for name, value in message.get("headers", ()) if name == _ID), "")


def kind_of(data: bytes) -> str:
    """What an event of a stream is: "opening" (it says who speaks, and no more), "lost" (the engine is gone), or
    "text" for everything else.
    """
    try:
        value = msgspec.json.decode(data.removeprefix(b"data: "))
    except msgspec.DecodeError:
        return "text"
    if not isinstance(value, dict):
        return "text"
    error = value.get("error")
    if isinstance(error, dict):
        return "lost" if error.get("code") in _LOST else "text"
    choices = value.get("choices")
    if isinstance(choices, list) and choices and all(map(_is_opening, choices)):
        return "opening"
    return "text"


def _is_opening(choice: Any) -> bool:
    delta = choice.get("delta") if isinstance(choice, dict) else None
    if not isinstance(delta, dict) or choice.get("finish_reason") is not None:
        return False
    return "role" in delta and not delta.get("content")


def _broken(replica: str, error: Elsewhere, in_the_middle: bool) -> ApiError:
    words = "in the middle of the answer" if in_the_middle else "and no other replica has taken the request"
    state, code = (f"gives {error}", "replica_silent") if isinstance(error, Silent) else ("is gone", "replica_died")
    return ApiError(503, f"replica {replica or '(none)'} {state} {words}; send the request again", code=code,
                    headers={"Retry-After": "1"})  # fmt: skip
