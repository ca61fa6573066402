"""The large engine that nano-inspect is measured on, and the measuring itself on a small one."""

from __future__ import annotations

import pytest

from nanolens.benchmarks.inspect_load import BigSource, big_keyframe, big_steps
from nanolens.benchmarks.inspect_refresh import main
from nanolens.inspector.view import EVENTS_SHOWN
from nanolens.telemetry.state import EngineState


def test_the_large_engine_keeps_its_size_step_after_step() -> None:
    keyframe = big_keyframe(50, 8)
    state, steps = EngineState.from_keyframe(keyframe), big_steps(keyframe, 10.0)
    for _ in range(200):
        state.apply_all(next(steps))
    now = state.to_keyframe()
    assert now.step == 200 and len(now.sequences) == 50
    assert (len(now.running), len(now.waiting)) == (40, 5)
    assert sum(len(each.block_table) for each in now.sequences) == 45 * 8
    assert len(now.free_blocks) == 10 * 8


def test_its_steps_go_on_in_real_time() -> None:
    source = BigSource(20, 4, step_ms=0.001, steps=300)
    source.view()
    view = source.view()
    while view.keyframe.step < 300:
        view = source.view()
    assert len(view.events) == EVENTS_SHOWN and view.steps[-1].planned.step == 300
    running = view.keyframe.running[-1]
    story = source.story(running, view.moment)
    assert story is not None and story.seq == running and story.events
    assert source.story(10_000, view.moment) is None


@pytest.mark.slow
def test_the_measuring_prints_a_line_a_view(capfd: pytest.CaptureFixture[str]) -> None:
    main(["--sequences", "30", "--blocks", "4", "--seconds", "0.5", "--keys", "4", "--views", "sequences", "queue"])
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-2:]] == ["sequences", "queue"]
