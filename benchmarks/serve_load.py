"""Sends requests at their times and keeps what came of each. Knows HTTP through `serve_http`; no statistics."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from .serve_http import Broken, Target, exchange
from .serve_requests import Ask
from .serve_stream import Reply

REFUSED, LEFT = "refused", "left"
_NS = 1e9


@dataclass(frozen=True)
class Answer:
    """What came of a request. Times in nanoseconds of CLOCK_MONOTONIC.

    Attributes:
        ask: the request.
        request_id: that it was sent with.
        sent_t: when its connection was asked for.
        end_t: when it was over, in whichever way.
        status: HTTP status; 0: none came.
        times: of each piece of text.
        last_t: of the last piece or the finish reason; 0: none.
        pieces: the text, one for each of `times`.
        finish_reason: as the server gives it.
        num_prompt_tokens, num_output_tokens: as the server counts them; where it doesn't, 0 and the pieces.
        outcome: "" for a whole answer, `LEFT` for one that the client left, `REFUSED` for a bad request that was
            refused; else the kind of the error.
        message: of the error.
        ids: what its chunks were called.
    """

    ask: Ask
    request_id: str
    sent_t: int
    end_t: int
    status: int
    times: list[int] = field(repr=False)
    last_t: int
    pieces: list[str] = field(repr=False)
    finish_reason: str | None
    num_prompt_tokens: int
    num_output_tokens: int
    outcome: str
    message: str
    ids: frozenset[str]

    @property
    def text(self) -> str:
        """All pieces."""
        return "".join(self.pieces)

    @property
    def is_complete(self) -> bool:
        """Whether it is a whole answer."""
        return self.outcome == ""

    @property
    def is_error(self) -> bool:
        """Whether something went wrong that should not have."""
        return self.outcome not in ("", LEFT, REFUSED)

    @property
    def ttft_ms(self) -> float | None:
        """From sending to the first text; None without text."""
        return (self.times[0] - self.sent_t) / 1e6 if self.times else None

    @property
    def e2e_ms(self) -> float | None:
        """From sending to the last piece or the finish reason; None where neither came."""
        return (self.last_t - self.sent_t) / 1e6 if self.last_t else None

    @property
    def tpot_ms(self) -> float | None:
        """Mean time of an output token after the first; None with fewer than two."""
        if not self.times or self.num_output_tokens < 2:
            return None
        return (self.last_t - self.times[0]) / 1e6 / (self.num_output_tokens - 1)

    @property
    def itls_ms(self) -> list[float]:
        """Times between pieces of text."""
        return [(b - a) / 1e6 for a, b in zip(self.times, self.times[1:], strict=False)]


@dataclass
class Progress:
    """Counts while it runs."""

    began_t: int = 0
    sent: int = 0
    running: int = 0
    peak: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    num_output_tokens: int = 0

    def line(self, now: int) -> str:
        """One line."""
        seconds = (now - self.began_t) / _NS
        errors = sum(many for kind, many in self.outcomes.items() if kind not in ("", LEFT, REFUSED))
        others = "".join(f", {self.outcomes[kind]} {kind}" for kind in (LEFT, REFUSED) if self.outcomes[kind])
        return (
            f"{seconds:6.1f} s  {self.sent} sent, {self.running} open, {self.outcomes['']} whole{others}, "
            f"{errors} errors, {self.num_output_tokens / max(seconds, 1e-9):,.0f} output tokens/s"
        )


@dataclass(frozen=True)
class LoadResult:
    """All answers in the order of sending, seconds from the first sending to the last end, and most open at once."""

    answers: list[Answer]
    elapsed_s: float
    peak: int


@dataclass(frozen=True)
class Client:
    """How a load is sent.

    Attributes:
        target: the server.
        timeout_s: of each request.
        slow_pause_s: seconds that a slow reader sleeps after each read.
        max_concurrency: requests that are open at once; None: as many as their times bring.
        duration_s: stop sending after so long; None: send all.
        tell: told of the progress every `tell_s` seconds.
    """

    target: Target
    timeout_s: float = 600.0
    slow_pause_s: float = 1.0
    max_concurrency: int | None = None
    duration_s: float | None = None
    tell: Callable[[Progress], None] | None = None
    tell_s: float = 1.0


async def send_all(client: Client, asks: Iterable[Ask]) -> LoadResult:
    """Send requests at their times, and wait for the last answer.

    A request whose time has come but finds `max_concurrency` open ones waits for a place; its times count from then.
    """
    answers: list[Answer] = []
    progress = Progress(time.monotonic_ns())
    places = asyncio.Semaphore(client.max_concurrency) if client.max_concurrency is not None else None
    run = secrets.token_hex(4)
    teller = asyncio.create_task(_tell(client, progress))

    async def one(ask: Ask) -> None:
        try:
            answer = await send(client, ask, f"bench-{run}-{ask.index}")
        finally:
            progress.running -= 1
            if places is not None:
                places.release()
        answers.append(answer)
        progress.outcomes[answer.outcome] += 1
        progress.num_output_tokens += answer.num_output_tokens

    try:
        async with asyncio.TaskGroup() as group:
            for ask in asks:
                if not await _turn_of(ask, progress.began_t, client.duration_s, places):
                    break
                progress.sent += 1
                progress.running += 1
                progress.peak = max(progress.peak, progress.running)
                group.create_task(one(ask))
    finally:
        teller.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await teller
    answers.sort(key=lambda answer: answer.ask.index)
    first = min((answer.sent_t for answer in answers), default=0)
    last = max((answer.end_t for answer in answers), default=0)
    return LoadResult(answers, (last - first) / _NS, progress.peak)


async def _turn_of(ask: Ask, began_t: int, duration_s: float | None, places: asyncio.Semaphore | None) -> bool:
    """Wait for a request's time and place; False when the load is over before that."""

    def elapsed() -> float:
        return (time.monotonic_ns() - began_t) / _NS

    if duration_s is not None and max(ask.at_s, elapsed()) >= duration_s:
        return False
    if ask.at_s > elapsed():
        await asyncio.sleep(ask.at_s - elapsed())
    if places is None:
        if ask.index % 64 == 63:
            await asyncio.sleep(0)  # what was sent goes out before more is made
        return True
    try:
        async with asyncio.timeout(None if duration_s is None else max(0.0, duration_s - elapsed())):
            await places.acquire()
    except TimeoutError:
        return False
    return True


async def _tell(client: Client, progress: Progress) -> None:
    while client.tell is not None:
        await asyncio.sleep(client.tell_s)
        client.tell(progress)


async def send(client: Client, ask: Ask, request_id: str) -> Answer:
    """Send one request and read its answer; whatever happens is in it."""
    reply = Reply(ask.is_stream, ask.close_after)
    request = client.target.request("POST", ask.path, ask.body, request_id)
    sent_t = time.monotonic_ns()
    status, broken = 0, None
    try:
        pause_s = client.slow_pause_s if ask.is_slow else 0.0
        status, _ = await exchange(client.target, request, reply.take, client.timeout_s, pause_s)
    except Broken as error:
        broken = error
    end_t = time.monotonic_ns()
    if broken is None:
        reply.end(end_t)
    outcome, message = _outcome(ask, status, broken, reply)
    prompt_tokens, output_tokens = reply.usage or (0, len(reply.times))
    return Answer(
        ask=ask,
        request_id=request_id,
        sent_t=sent_t,
        end_t=end_t,
        status=status,
        times=reply.times,
        last_t=reply.last_t,
        pieces=reply.pieces,
        finish_reason=reply.finish_reasons[0] if reply.finish_reasons else None,
        num_prompt_tokens=prompt_tokens,
        num_output_tokens=output_tokens,
        outcome=outcome,
        message=message,
        ids=frozenset(reply.ids),
    )


def _outcome(ask: Ask, status: int, broken: Broken | None, reply: Reply) -> tuple[str, str]:
    """What became of a request, and the message that tells of an error."""
    if broken is not None:
        return broken.kind, str(broken)
    if ask.is_bad:
        if 400 <= status < 500 and status != 429 and reply.error:
            return REFUSED, reply.error
        if status < 400:
            return "bad_request_accepted", f"status {status} for {ask.body[:120]!r}"
    if status != 200:
        return f"http_{status}", reply.error or f"status {status}: {reply.unread[:120]!r}"
    if reply.error is not None:
        return "error_event", reply.error
    if reply.faults:
        return "malformed", reply.faults[0]
    if reply.was_left:
        return LEFT, ""
    reason = reply.finish_reasons[0]
    if reason not in ("stop", "length"):
        return f"finish_{reason}", f"the answer ended with the finish reason {reason!r}"
    if ask.exact and reply.usage is not None and reply.usage[1] != ask.max_tokens:
        return "short", f"{reply.usage[1]} of {ask.max_tokens} tokens ({reason})"
    return "", ""
