"""Random lives on a small engine with a swap space: its state, its record and the audit agree after every command."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from fake_engine import FakeEngine
from nanolens.engine.sequence import Sequence, SequenceStatus
from nanolens.telemetry.audit import Audit
from nanolens.telemetry.differences import keyframe_differences
from nanolens.telemetry.events import AnyEvent, Keyframe
from nanolens.telemetry.lives import Lives
from nanolens.telemetry.state import EngineState

PARTS = ("queued_ns", "prefill_ns", "decode_ns", "preempted_ns", "paused_ns")
WAYS = (("recompute", 0.0), ("swap", 0.0), ("swap", 0.15))  # of preempting, and how many moves fail
MODES = [(*way, *rest) for way, *rest in itertools.product(WAYS, (False, True), ("fcfs", "priority", "sjf"))]
COMMANDS = 1200


class Witness:
    """Every projection, fed with the events of an engine and held against its objects."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.audit, self.lives = Audit(), Lives()
        self.late = EngineState()
        self.late_audit = Audit()
        self.seen = 0

    def own(self) -> Keyframe:
        """The engine's own state, with the counters of its recorder."""
        keyframe = self.engine.snapshot()
        keyframe.totals = self.engine.core.recorder.totals.snapshot()
        return keyframe

    def join_late(self) -> None:
        """A reader comes at this point."""
        self.late = EngineState.from_keyframe(self.own())
        self.late_audit = Audit()
        self.late_audit.apply(self.own())

    def check(self) -> None:
        self.engine.core.flush()
        fresh: list[AnyEvent] = self.engine.events[self.seen :]
        self.seen = len(self.engine.events)
        self.audit.apply_all(fresh)
        self.lives.apply_all(fresh)
        self.late.apply_all(fresh)
        own = self.own()
        assert keyframe_differences(own, self.audit.state.to_keyframe()) == []
        if self.late.joined:
            self.late_audit.apply_all([*fresh, own])
            if self.late.is_order_sure:
                assert keyframe_differences(own, self.late.to_keyframe()) == []
        for snapshot in own.sequences:
            life = self.lives.lives[snapshot.seq]
            assert (life.status, life.num_output_tokens) == (snapshot.status, snapshot.num_output_tokens)
            assert life.num_blocks == sum(1 for entry in snapshot.block_table if entry >= 0)


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
        self.core.continue_engine(0)
        while self.core.requests:
            self.core.finish(self.live(SequenceStatus.PAUSED))
            self.engine.step()


@pytest.mark.parametrize(("mode", "failing", "overlap", "policy"), MODES)
def test_every_projection_agrees_with_the_engine(mode: str, failing: float, overlap: bool, policy: str) -> None:
    rng = random.Random(f"{overlap}{policy}{mode}{failing}")
    engine = FakeEngine(
        num_blocks=10, host_blocks=4, disk_blocks=9, max_num_seqs=4, max_prefill_chunk=6, overlap=overlap,
        policy=policy, preemption_mode=mode, aging_s=1e-4, paused_ttl_s=None, max_model_len=40,
    )  # fmt: skip
    engine.runner.fail_move = lambda move: "no space left" if rng.random() < failing else ""
    driver, witness = Driver(engine, rng), Witness(engine)
    for number in range(COMMANDS):
        rng.choice(driver.commands())()
        witness.check()
        if number % 40 == 20:
            witness.join_late()
    driver.drain()
    witness.check()
    engine.core.close()
    witness.audit.apply_all(engine.events[witness.seen :])
    assert witness.audit.state.stopped is not None
    for life in witness.lives.lives.values():
        assert sum(getattr(life, part) for part in PARTS) == life.lifetime_ns
    counts = engine.core.recorder.totals.counts
    wanted = ["pauses", "resumes", "appended_tokens", "preemptions", "swapped_out_blocks", "demoted_blocks"]
    wanted += ["swap_failures", "dropped_tokens"] if failing else ["swapped_in_blocks", "copied_blocks"]
    assert {name for name in wanted if not counts[name]} == set()
