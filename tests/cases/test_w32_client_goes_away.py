"""W32: a client that goes away leaves sequences behind that generate on, or entries of its request that never go.

Here its engine side: what an abort does to a request of two sequences, wherever they are.
"""

from __future__ import annotations

import pytest

from fake_engine import FakeEngine, solo
from nanolens.engine.outputs import Delta
from nanolens.engine.sampling_params import SamplingParams
from nanolens.telemetry.events import StatusChanged, StepPlanned

PROMPT = list(range(6))
LONG = SamplingParams(n=2, max_tokens=500, temperature=0.0)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("streams", [True, False])
def test_all_sequences_end_within_the_step_and_nothing_of_them_is_left(streams: bool, overlap: bool) -> None:
    engine = FakeEngine(num_blocks=400, overlap=overlap)
    stays = engine.add([7, 8, 9], 60)
    deltas: list[Delta] = []
    name = engine.add_request(
        PROMPT, LONG, on_output=deltas.append if streams else None, on_finish=engine._finished
    )
    for _ in range(6):
        engine.step()
    assert not streams or len(deltas) >= 2
    own = {seq.seq_id for seq in engine.core.requests[name].sequences}
    assert engine.abort(name)
    generated = engine.core.recorder.totals.counts["generated_tokens"]
    assert [seq.request for seq in engine.snapshot().sequences] == [stays]
    assert not own & engine.core.book._owner.keys() and name not in engine.core.requests
    read = [len(out.token_ids) for out in engine.outputs[name].outputs]
    assert [out.finish_reason for out in engine.outputs[name].outputs] == ["abort", "abort"]
    engine.run()
    assert engine.ids(stays) == solo([7, 8, 9], 60)
    assert [len(out.token_ids) for out in engine.outputs[name].outputs] == read
    after = [e for e in engine.of(StatusChanged) if e.seq in own][-2:]
    assert [(e.new, e.reason) for e in after] == [("FINISHED", "aborted")] * 2
    planned = [chunk[0] for e in engine.of(StepPlanned) if e.step > after[-1].step for chunk in e.chunks]
    assert not own.intersection(planned)
    counts = engine.core.recorder.totals.counts
    assert counts["requests_finished_abort"] == 1
    of_the_other = 60 - (generated - sum(read))
    assert counts["generated_tokens"] == generated + of_the_other
    engine.check_empty()


@pytest.mark.parametrize("overlap", [False, True])
def test_a_client_that_goes_away_from_within_its_callback_is_gone_within_two_steps(overlap: bool) -> None:
    engine = FakeEngine(num_blocks=400, overlap=overlap)
    deltas: list[Delta] = []

    def leave(delta: Delta) -> None:
        deltas.append(delta)
        if len(deltas) == 2:
            engine.abort("r")

    engine.add_request(PROMPT, LONG, request_id="r", on_output=leave, on_finish=engine._finished)
    steps = 0
    while "r" in engine.core.requests:
        engine.step()
        steps += 1
    assert engine.core.blocks.num_free == 400 and not engine.core.book._owner
    engine.step()
    assert not engine.has_work
    assert engine.core.recorder.totals.counts["requests_finished_abort"] == 1
    engine.check_empty()


@pytest.mark.parametrize("delay", [0, 3])
def test_sequences_that_are_paused_or_in_the_swap_space_go_too(delay: int) -> None:
    engine = FakeEngine(num_blocks=10, host_blocks=8)
    name = engine.add(PROMPT, 6, n=2, on_stop="pause")
    engine.run()
    engine.add(list(range(50, 80)), 4)
    engine.run()
    assert any(entry < 0 for seq in engine.snapshot().sequences for entry in seq.block_table)
    engine.runner.move_delay = delay
    engine.resume(name, index=0, max_tokens=300)
    engine.step()
    assert engine.abort(name)
    assert not engine.has_work and not engine.core.book._owner
    engine.check_empty()
