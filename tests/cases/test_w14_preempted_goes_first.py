"""W14: a preempted request goes to the back of the queue, behind requests that never ran."""

from __future__ import annotations

import pytest

from fake_engine import FakeEngine, solo
from nanolens.engine.outputs import Delta
from nanolens.engine.sampling_params import SamplingParams
from nanolens.telemetry.events import SequencePreempted, StatusChanged


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("batching", ["mixed", "prefill_first"])
def test_the_preempted_one_runs_before_those_that_waited(overlap: bool, batching: str) -> None:
    engine = FakeEngine(num_blocks=6, block_size=4, max_num_seqs=2, overlap=overlap, batching=batching)
    prompts = {name: list(range(i * 20, i * 20 + 7)) for i, name in enumerate(["older", "a", "b", "c"])}
    came: list[tuple[str, int]] = []  # (request, step) of each token

    def note(name: str) -> None:
        def take(delta: Delta) -> None:
            came.append((name, engine.core.scheduler.step))

        params = SamplingParams(max_tokens=10)
        engine.add_request(prompts[name], params, request_id=name, on_output=take, on_finish=finished)

    def finished(output: object) -> None:
        engine._finished(output)  # type: ignore[arg-type]

    for name in prompts:
        note(name)
    engine.run()
    preempted = engine.of(SequencePreempted)[0]
    assert preempted.seq == 1
    admitted = [e for e in engine.of(StatusChanged) if e.new == "RUNNING" and e.step > preempted.step]
    assert (admitted[0].seq, admitted[0].reason) == (1, "readmitted")
    after = [name for name, step in came if step >= admitted[0].step]
    assert after.index("a") < after.index("b") < after.index("c")
    for name, prompt in prompts.items():
        assert engine.ids(name) == solo(prompt, 10)
