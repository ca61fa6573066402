"""Random lives on a small engine with a swap space: its state, its record and the audit agree after every command."""

from __future__ import annotations

import itertools
import random

import pytest

from fake_engine import FakeEngine
from nanolens.telemetry.audit import Audit
from nanolens.telemetry.differences import keyframe_differences
from nanolens.telemetry.events import AnyEvent, Keyframe
from nanolens.telemetry.lives import Lives
from nanolens.telemetry.state import EngineState
from random_lives import Driver

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
