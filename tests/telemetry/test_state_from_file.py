"""The state folded from the journal's file is the engine's own, field by field, at any moment of a real run."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from nanolens.engine.llm import LLM
from nanolens.engine.sampling_params import SamplingParams
from nanolens.telemetry.differences import keyframe_differences
from nanolens.telemetry.events import Keyframe
from nanolens.telemetry.reader import JournalReader
from nanolens.telemetry.state import EngineState
from real_engine import is_idle, prompt_of, tiny_llm

MOMENTS = 20


def own_state(llm: LLM) -> Keyframe:
    """The engine's state from its objects, with the counters of its recorder."""
    keyframe = llm.engine.snapshot()
    keyframe.totals = llm.engine.core.recorder.totals.snapshot()
    return keyframe


def from_file(journal: Path) -> EngineState:
    state = EngineState()
    for frame in JournalReader(journal).frames():
        state.apply_all(frame.events)
    return state


def add_requests(llm: LLM, rng: random.Random) -> list[str]:
    """Eighteen requests: shared prefixes, siblings, priorities, seeds and none."""
    names = []
    for i in range(18):
        prompt = prompt_of(12)[: 4 * (i % 4)] + prompt_of(1 + rng.randrange(9), i)
        params = SamplingParams(
            max_tokens=rng.randint(2, 24), n=1 + 2 * (i % 5 == 4), temperature=0.7, priority=i % 3,
            seed=i if i % 2 else None, ignore_eos=True, logprobs=1 if i % 6 == 0 else None,
        )  # fmt: skip
        names.append(llm.engine.add_request(prompt, params))
    return names


@pytest.mark.parametrize(
    "way",
    [
        {},
        {"overlap": True},
        {"batching": "prefill_first", "policy": "priority", "max_prefill_chunk": 3},
        {"overlap": True, "policy": "sjf", "max_num_batched_tokens": 12},
        {"prefix_cache": False},
    ],
    ids=str,
)
def test_the_file_tells_the_engines_state(way: dict[str, Any], tmp_path: Path) -> None:
    rng = random.Random(3)
    compared = steps = 0
    with tiny_llm(num_blocks=24, max_num_seqs=6, journal=str(tmp_path), **way) as llm:
        names = add_requests(llm, rng)
        while llm.engine.step():
            steps += 1
            if rng.random() < 0.1:
                llm.engine.abort(names.pop(rng.randrange(len(names))))
            if steps % 2 == 0 and compared < MOMENTS:
                assert keyframe_differences(from_file(tmp_path).to_keyframe(), own_state(llm)) == []
                compared += 1
        assert compared == MOMENTS
        found, own = from_file(tmp_path).to_keyframe(), own_state(llm)
        assert keyframe_differences(found, own) == []
        assert is_idle(own) and is_idle(found)
        assert own.totals["preemptions"] > 0
        assert own.totals["requests_finished_abort"] > 0
        assert own.totals["prefix_hit_tokens"] > 0 or way == {"prefix_cache": False}
    assert from_file(tmp_path).stopped is not None
