"""What `nano-bench serve` sends: bodies, when each is sent, and how its client behaves. Knows no sockets.

Every draw comes from the seed: the same flags send the same requests at the same times.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from ..errors import InvalidConfig
from .traces import read_times
from .workload import WorkloadSpec, make_workload

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Prompt:
    """What is asked, as token ids or as a conversation, and for how many tokens."""

    content: list[int] | Messages
    max_tokens: int

    @property
    def is_chat(self) -> bool:
        """Whether it goes to the chat endpoint."""
        return bool(self.content) and isinstance(self.content[0], dict)


@dataclass(frozen=True)
class Ask:
    """One request.

    Attributes:
        index: counts from 0 in the order of sending.
        at_s: when it is sent, seconds from the start.
        path: endpoint.
        body: JSON.
        key: which prompt; equal ones have the same answer. None: of no interest.
        max_tokens: that it asks for.
        is_stream: whether the answer is one of events.
        exact: whether the answer has to have `max_tokens` tokens.
        is_bad: the server has to refuse it.
        close_after: pieces after which the client goes away.
        is_slow: the client reads slowly.
    """

    index: int
    at_s: float
    path: str
    body: bytes
    key: int | None
    max_tokens: int
    is_stream: bool = True
    exact: bool = True
    is_bad: bool = False
    close_after: int | None = None
    is_slow: bool = False


@dataclass(frozen=True)
class Behaviour:
    """How clients misbehave: shares of all requests, each from 0 to 1, together at most 1."""

    early_close: float = 0.0
    bad_requests: float = 0.0
    slow_readers: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what is no share.

        Raises:
            InvalidConfig: naming the flag.
        """
        for name in ("early_close", "bad_requests", "slow_readers"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise InvalidConfig(f"{name}={getattr(self, name)}: must be from 0 to 1, a share of the requests")
        if self.early_close + self.bad_requests + self.slow_readers > 1.0:
            raise InvalidConfig("early_close, bad_requests and slow_readers: must be at most 1 together")

    @property
    def is_good(self) -> bool:
        """Whether every client reads every answer to its end."""
        return self == Behaviour()


@dataclass(frozen=True)
class Pace:
    """When requests are sent.

    Attributes:
        rate: requests a second on average; infinite: all at once, or as soon as `max_concurrency` lets them.
        burstiness: shape of the gamma distribution of the gaps: 1 is a Poisson process, less is burstier.
        trace_times: seconds of each request where a trace's own times are kept; then `rate` means nothing.
    """

    rate: float = math.inf
    burstiness: float = 1.0
    trace_times: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse what can't be kept.

        Raises:
            InvalidConfig: naming the flag.
        """
        for name in ("rate", "burstiness"):
            if not getattr(self, name) > 0:
                raise InvalidConfig(f"{name}={getattr(self, name)}: must be above 0")

    def times(self, seed: int) -> Iterator[float]:
        """Seconds from the start, rising; as many as the trace has, or without end."""
        if self.trace_times is not None:
            yield from self.trace_times
            return
        rng, now = random.Random(f"pace {seed}"), 0.0
        while True:
            yield now
            if math.isfinite(self.rate):
                now += rng.gammavariate(self.burstiness, 1.0 / (self.rate * self.burstiness))


@dataclass(frozen=True)
class Shape:
    """What all bodies share. `stop_at_eos`: an answer may end before its length, where the model ends it."""

    model: str
    temperature: float = 0.0
    stop_at_eos: bool = False
    is_stream: bool = True


def trace_pace(spec: WorkloadSpec, scale: float) -> Pace | None:
    """The pace of a trace's own times, each times `scale`; None where it holds none.

    Raises:
        InvalidConfig: it can't be read, or the factor can't be used.
    """
    if not 0.0 < scale < math.inf:
        raise InvalidConfig(f"scale_times={scale}: must be above 0")
    times = read_times(spec.trace, spec.limit) if spec.trace is not None else None
    return None if times is None else Pace(trace_times=tuple(time * scale for time in times))


def prompts(spec: WorkloadSpec, vocab_size: int) -> list[Prompt]:
    """The prompts of a workload; a text stays text, and the server makes tokens of it.

    Raises:
        InvalidConfig: the trace can't be read or has no known format.
    """
    texts: list[Messages] = []

    def chat(messages: Messages) -> list[int]:
        texts.append(messages)
        return [0]

    jobs = make_workload(spec, vocab_size, chat).jobs
    if texts:
        return [Prompt(text, job.max_tokens) for text, job in zip(texts, jobs, strict=True)]
    return [Prompt(job.prompt, job.max_tokens) for job in jobs]


def body_of(prompt: Prompt, shape: Shape) -> dict[str, Any]:
    """A request's body."""
    body: dict[str, Any] = {
        "model": shape.model,
        "messages" if prompt.is_chat else "prompt": prompt.content,
        "max_tokens": prompt.max_tokens,
        "temperature": shape.temperature,
        "stream": shape.is_stream,
    }
    if shape.is_stream:
        body["stream_options"] = {"include_usage": True}
    if not shape.stop_at_eos:
        body["ignore_eos"] = True
    return body


def bad_bodies(shape: Shape) -> list[bytes]:
    """Bodies that a server has to refuse, of different kinds."""
    good = body_of(Prompt([1, 2, 3], 4), shape)
    wrong: list[dict[str, Any]] = [
        {"prompt": []}, {"prompt": [-1]}, {"prompt": [1 << 40]}, {"prompt": ""}, {"prompt": {"text": "?"}},
        {"max_tokens": -1}, {"max_tokens": "many"}, {"temperature": -1.0}, {"top_p": 7}, {"n": 0},
        {"model": "no-such-model"}, {"stream": "perhaps"},
    ]  # fmt: skip
    encoded = [json.dumps(good | each).encode() for each in wrong]
    return [*encoded, json.dumps(good).encode()[:-9], b"[]"]


def asks(
    many: list[Prompt], pace: Pace, shape: Shape, behaviour: Behaviour, seed: int, total: int | None
) -> Iterator[Ask]:
    """Requests in the order of sending; the prompts go round where more than there are of them are sent.

    Args:
        many: at least one.
        pace: when.
        shape: of the bodies.
        behaviour: of the clients.
        seed: of all draws.
        total: how many; None: as long as `pace` goes.
    """
    rng = random.Random(f"behaviour {seed}")
    bodies = [json.dumps(body_of(prompt, shape)).encode() for prompt in many]
    bad = bad_bodies(shape)
    for index, at_s in zip(count() if total is None else range(total), pace.times(seed), strict=False):
        key = index % len(many)
        prompt, drawn = many[key], rng.random()
        if drawn < behaviour.bad_requests:
            yield Ask(index, at_s, COMPLETIONS, bad[index % len(bad)], None, 0, shape.is_stream, is_bad=True)
            continue
        ask = Ask(
            index, at_s, CHAT if prompt.is_chat else COMPLETIONS, bodies[key], key, prompt.max_tokens,
            shape.is_stream, not shape.stop_at_eos,
        )  # fmt: skip
        drawn -= behaviour.bad_requests
        if drawn < behaviour.early_close:
            yield replace(ask, close_after=rng.randint(1, max(1, prompt.max_tokens - 1)))
        else:
            yield replace(ask, is_slow=drawn - behaviour.early_close < behaviour.slow_readers)
