"""Eight threads, 5,000 random commands, one engine with a small pool: every call is answered, nothing leaks."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from fake_engine import VOCAB_SIZE, FakeEngine
from nanolens.engine.engine import Engine
from nanolens.engine.loop import EngineLoop
from nanolens.engine.sampling_params import SamplingParams
from nanolens.errors import InvalidRequest, NotPaused, UnknownRequest
from nanolens.telemetry.events import (
    BlocksSwapped,
    EngineError,
    EnginePaused,
    RequestArrived,
    RequestFinished,
    SequencePreempted,
    SequenceResumed,
)

NUM_THREADS, NUM_COMMANDS = 8, 5000
WAIT_S = 60.0

Command = Callable[[Engine], Any]


class Client:
    """One thread's random commands, over its own requests, those of all others, and names that nobody has.

    Most add, pause, resume or finish; some change priorities, look, or pause the whole engine and continue it.
    """

    def __init__(self, number: int, names: list[str], paused: list[str]) -> None:
        self.rng = random.Random(number)
        self.number = number
        self.names = names  # of all requests so far; shared, only ever appended to
        self.paused = paused  # of requests that were paused some time; shared too
        self.ended: Counter[str] = Counter()
        self.asked: list[tuple[str, Future[Any]]] = []

    def run(self, loop: EngineLoop, count: int) -> None:
        kinds = {
            "add": 30, "abort": 6, "pause": 18, "resume": 22, "finish": 8, "set_priority": 6, "snapshot": 4,
            "pause_engine": 1,
        }  # fmt: skip
        for _ in range(count):
            (kind,) = self.rng.choices(list(kinds), list(kinds.values()))
            call = loop.call(getattr(self, kind)())
            self.asked.append((kind, call))
            if kind == "pause_engine":
                self.asked.append(("continue_engine", loop.call(lambda engine: engine.continue_engine())))
            if self.rng.random() < 0.5:  # the other half of the calls pile up
                call.exception(WAIT_S)

    def add(self) -> Command:
        rng = self.rng
        shared = [5] * rng.choice((0, 4, 8))
        prompt = shared + [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 9))]
        params = SamplingParams(
            max_tokens=rng.randint(1, 16), temperature=0.0, n=rng.choice((1, 1, 1, 2)), ignore_eos=True,
            on_stop=rng.choice(("finish", "finish", "pause")), pause_after_prefill=rng.random() < 0.2,
            priority=rng.randrange(4),
        )  # fmt: skip
        name = f"{self.number}-{len(self.asked)}" if rng.random() < 0.97 else self.name()
        self.names.append(name)
        return lambda engine: engine.add_request(
            prompt,
            params,
            request_id=name,
            on_finish=lambda output: self.ended.update([output.request_id]),
            on_pause=lambda output: self.paused.append(output.request_id),
        )

    def name(self) -> str:
        recent = self.names[-40:] or ["nobody"]
        return "nobody" if self.rng.random() < 0.05 else self.rng.choice(recent)

    def abort(self) -> Command:
        name = self.name()
        return lambda engine: engine.abort(name)

    def pause(self) -> Command:
        name, index = self.name(), self.rng.choice((None, None, 0, 1))
        return lambda engine: engine.pause(name, index)

    def resume(self) -> Command:
        rng = self.rng
        name, index = rng.choice(self.paused[-30:] or ["nobody"]), rng.choice((None, None, None, 1))
        append = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 6))] if rng.random() < 0.6 else None
        max_tokens = rng.choice((None, 4, 8))
        return lambda engine: engine.resume(name, append, max_tokens, index)

    def finish(self) -> Command:
        name = self.name()
        return lambda engine: engine.finish(name)

    def set_priority(self) -> Command:
        name, priority = self.name(), self.rng.randrange(5)
        return lambda engine: engine.set_priority(name, priority)

    def snapshot(self) -> Command:
        return lambda engine: engine.snapshot()

    def pause_engine(self) -> Command:
        return lambda engine: engine.pause_engine()


def abort_all(engine: Engine) -> None:
    for name in list(engine.core.requests):
        engine.abort(name)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_random_commands_of_eight_threads(overlap: bool, policy: str) -> None:
    engine = FakeEngine(
        num_blocks=24, max_num_seqs=6, max_prefill_chunk=5, host_blocks=12, disk_blocks=8, policy=policy,
        overlap=overlap,
    )  # fmt: skip
    names: list[str] = []
    paused: list[str] = []
    clients = [Client(number, names, paused) for number in range(NUM_THREADS)]
    with EngineLoop(engine) as loop:
        threads = [threading.Thread(target=c.run, args=(loop, NUM_COMMANDS // NUM_THREADS)) for c in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        loop.call(abort_all).result(WAIT_S)
        loop.call(lambda engine: engine.core.audit()).result(WAIT_S)  # type: ignore[attr-defined]
        assert not loop.call(lambda engine: engine.snapshot().sequences).result(WAIT_S)
        assert loop.is_alive
    calls = [(kind, call) for client in clients for kind, call in client.asked]
    assert len(calls) >= NUM_COMMANDS and all(call.done() for _, call in calls)
    failed = Counter((kind, type(e)) for kind, call in calls if (e := call.exception()) is not None)
    assert {kind for _, kind in failed} <= {UnknownRequest, NotPaused, InvalidRequest}, failed
    assert {kind for kind, call in calls if call.exception() is None} == {kind for kind, _ in calls}
    engine.check_empty()
    arrived, ended = [e.request for e in engine.of(RequestArrived)], [e.request for e in engine.of(RequestFinished)]
    assert sorted(arrived) == sorted(ended) == sorted(name for c in clients for name in c.ended.elements())
    assert not engine.of(EngineError)
    assert {event.kind for event in engine.of(BlocksSwapped)} >= {"out", "in"}
    for kind in (EnginePaused, SequencePreempted, SequenceResumed):
        assert engine.of(kind), f"no {kind.__name__} came about"
