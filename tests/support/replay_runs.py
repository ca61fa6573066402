"""Runs of a fake engine that are recorded to be replayed: random commands, faults, and callbacks that give commands."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fake_engine import Clock, FakeEngine
from nanolens.engine.plan import RankTimes, StepPlan, StepResult
from nanolens.engine.sampling_params import SamplingParams
from nanolens.errors import OutOfDeviceMemory
from nanolens.telemetry.events import AnyEvent, EngineReady
from nanolens.telemetry.journal import JournalWriter
from nanolens.telemetry.reader import JournalReader
from nanolens.telemetry.recorder import Recorder
from random_lives import Driver

SMALL: dict[str, Any] = {
    "num_blocks": 10, "host_blocks": 4, "disk_blocks": 9, "max_num_seqs": 4, "max_prefill_chunk": 6, "aging_s": 1e-4,
    "paused_ttl_s": None, "max_model_len": 40,
}  # fmt: skip
EOS = frozenset(range(0, 1000, 25))  # one token in 25 ends a sequence
PREDICATES = ("on=preempted", "on=status to=PAUSED", "on=blocks.allocated free<3", "on=status to=RUNNING")


def recorded_engine(path: Path, **options: Any) -> FakeEngine:
    """A small engine that keeps a journal; where it has several ranks, each step tells what the one before took."""
    clock = Clock()
    recorder = Recorder(JournalWriter(path, "run", clock=clock), clock)
    engine = FakeEngine(recorder=recorder, clock=clock, **(SMALL | options))
    if engine.core.config.tensor_parallel_size > 1:
        tell_ranks(engine, engine.core.config.tensor_parallel_size)
    recorder.record(EngineReady(clock(), {"swap_ns_per_block": 1}))  # as FakeRunner has it
    return engine


def tell_ranks(engine: FakeEngine, size: int) -> None:
    """Have each step tell what the one before took on each rank."""
    runner, untold = engine.runner, [RankTimes(0, [5] * size, [1] * size)]
    launch, collect = runner.launch, runner.collect

    def launch_numbered(plan: StepPlan) -> Any:
        return plan, launch(plan)

    def collect_telling(handle: Any) -> StepResult:
        plan, own = handle
        result = collect(own)
        result.ranks, untold[:] = list(untold), [RankTimes(plan.step, [5] * size, [1] * size)]
        return result

    runner.launch, runner.collect = launch_numbered, collect_telling  # type: ignore[method-assign]


def random_run(path: Path, seed: int, commands: int = 300, **options: Any) -> FakeEngine:
    """A run of random commands, to its end."""
    engine = recorded_engine(path, **options)
    driver = Driver(engine, random.Random(seed))
    for _ in range(commands):
        driver.rng.choice(driver.commands())()
    driver.drain()
    engine.close()
    return engine


def wild_run(path: Path, seed: int, commands: int = 300, **options: Any) -> FakeEngine:
    """The same with faults of the runner, breakpoints, and callbacks that give commands or fail."""
    engine = recorded_engine(path, **options)
    make_faulty(engine, random.Random(seed + 1))
    driver = WildDriver(engine, random.Random(seed))
    for _ in range(commands):
        driver.rng.choice(driver.commands())()
    for number in list(engine.breakpoints):
        engine.remove_breakpoint(number)
    driver.drain()
    engine.close()
    return engine


def make_faulty(engine: FakeEngine, rng: random.Random) -> None:
    """Have launches, reads, rows and moves fail now and then."""
    runner = engine.runner
    collect = runner.collect

    def fail_launch(plan: StepPlan) -> Exception | None:
        draw = rng.random()
        if draw < 0.02:
            return RuntimeError("boom: it broke")
        return OutOfDeviceMemory("no room: at all") if draw < 0.05 else None

    def collect_or_fail(handle: Any) -> StepResult:
        result = collect(handle)
        if rng.random() < 0.01:
            raise ValueError("late")
        return result

    runner.fail_launch = fail_launch
    runner.fail_rows = lambda plan: {s.seq_id: "not: finite" for s in plan.sequences if rng.random() < 0.01}
    runner.fail_move = lambda move: "no space left" if rng.random() < 0.1 else ""
    runner.collect = collect_or_fail  # type: ignore[method-assign]


class WildDriver(Driver):
    """Random commands, from callbacks too."""

    def commands(self) -> list[Callable[[], None]]:
        return [*super().commands(), self.breakpoint, self.calling, self.calling, self.abort]

    def breakpoint(self) -> None:
        if self.rng.random() < 0.2:
            self.engine.add_breakpoint(self.rng.choice(PREDICATES), self.rng.choice(["engine", "sequence"]))
        elif self.engine.breakpoints and self.rng.random() < 0.5:
            self.engine.remove_breakpoint(next(iter(self.engine.breakpoints)))

    def calling(self) -> None:
        """A request whose callbacks give commands."""
        if len(self.core.requests) > 9:
            return
        rng = self.rng
        prompt = [1, 2, 3, 4, 5, 6, 7, 8][: 4 * rng.randrange(3)] + [30] * rng.randint(1, 6)
        params = SamplingParams(max_tokens=rng.randint(4, 18), temperature=0.0, n=rng.choice([1, 2]))
        self.engine.add_request(
            prompt, params, on_output=self.called, on_finish=self.called, on_pause=self.called
        )

    def called(self, output: object) -> None:
        rng = self.rng
        actions: list[Callable[[], object]] = [
            self.add, self.abort_one, self.pause, self.resume, self.priority, self.finish, self.fail,
            lambda: self.engine.pause_engine("callback"),
        ]  # fmt: skip
        if rng.random() < 0.3:
            rng.choice(actions)()

    def abort_one(self) -> None:
        if self.core.requests:
            self.engine.abort(self.rng.choice(list(self.core.requests)))

    def fail(self) -> None:
        raise RuntimeError("a callback fails")


def frames_of(path: Path) -> list[list[AnyEvent]]:
    """A journal's frames, decoded anew: they can be changed."""
    return [frame.events for frame in JournalReader(path).frames()]


def write_journal(path: Path, frames: list[list[AnyEvent]]) -> None:
    """A journal of these frames."""
    writer = JournalWriter(path, "run")
    for frame in frames:
        writer.append(frame)
    writer.close()
