"""Random commands to a fake engine, for tests of what follows its events."""

from __future__ import annotations

import random
from collections.abc import Callable

from fake_engine import FakeEngine
from nanolens.engine.sequence import Sequence, SequenceStatus


class Driver:
    """Random commands to an engine."""

    def __init__(self, engine: FakeEngine, rng: random.Random) -> None:
        self.engine, self.core, self.rng = engine, engine.core, rng

    def commands(self) -> list[Callable[[], None]]:
        """By their weight."""
        return [
            self.add, self.pause, self.pause, self.resume, self.resume, self.finish, self.priority, self.abort,
            self.engine_pause, *[self.step] * 8,
        ]  # fmt: skip

    def live(self, *statuses: SequenceStatus) -> list[Sequence]:
        return [seq for seq in self.core.book.live_sequences if seq.status in statuses]

    def add(self) -> None:
        if len(self.core.requests) > 9:
            return
        rng = self.rng
        prompt = [1, 2, 3, 4, 5, 6, 7, 8][: 4 * rng.randrange(3)] + [20 + rng.randrange(5)] * rng.randint(1, 6)
        self.engine.add(
            prompt, rng.randint(4, 18), n=rng.choice([1, 1, 1, 2, 3]), priority=rng.randrange(3),
            on_stop=rng.choice(["finish", "pause"]), pause_after_prefill=rng.random() < 0.1,
        )  # fmt: skip

    def pause(self) -> None:
        if live := self.live(SequenceStatus.RUNNING, SequenceStatus.WAITING):
            self.core.pause([self.rng.choice(live)], "operator")

    def resume(self) -> None:
        if paused := self.live(SequenceStatus.PAUSED):
            seq = self.rng.choice(paused)
            appended = [9] * self.rng.choice([0, 0, 1, 5])
            if seq.num_tokens + len(appended) + 3 < self.core.max_model_len:
                self.core.resume([seq], appended, [max(seq.max_tokens, seq.num_output_tokens + 2)])

    def finish(self) -> None:
        if self.rng.random() < 0.3 and (paused := self.live(SequenceStatus.PAUSED)):
            self.core.finish([self.rng.choice(paused)])

    def priority(self) -> None:
        if live := self.live(SequenceStatus.RUNNING, SequenceStatus.WAITING, SequenceStatus.PAUSED):
            self.core.set_priority([self.rng.choice(live)], self.rng.randrange(3))

    def abort(self) -> None:
        if self.rng.random() < 0.1 and self.core.requests:
            self.engine.abort(self.rng.choice(list(self.core.requests)))

    def engine_pause(self) -> None:
        if self.core.scheduler.paused or self.rng.random() < 0.5:
            self.core.continue_engine(self.rng.choice([0, 1, 3]))
        if self.rng.random() < 0.2:
            self.core.pause_engine(self.rng.choice(["operator", "someone else"]))

    def step(self) -> None:
        self.engine.runner.move_delay = self.rng.choice([0, 0, 1, 2])
        self.engine.step()

    def drain(self) -> None:
        """Let all that lives end."""
        while self.core.requests:
            self.core.continue_engine(0)
            self.core.finish(self.live(SequenceStatus.PAUSED))
            self.engine.step()
