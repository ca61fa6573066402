"""Random pauses, resumes and moves of KV on a real model: tokens and texts of an engine with room for everything."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from nanolens.engine.engine import Engine
from nanolens.engine.llm import LLM
from nanolens.engine.outputs import Delta, RequestOutput
from nanolens.engine.sampling_params import SamplingParams
from nanolens.engine.sequence import SequenceStatus
from nanolens.telemetry.audit import Audit
from nanolens.telemetry.events import SequencePreempted
from real_engine import prompt_of, recorded, tiny_llm

LONG = os.environ.get("NANOLENS_HYPOTHESIS") == "long"
PAUSED = SequenceStatus.PAUSED


@dataclass
class Piece:
    """One request on a real model: what was appended when so many tokens had been generated."""

    prompt: list[int]
    params: SamplingParams
    given: list[tuple[int, list[int]]] = field(default_factory=list)
    text: str = ""
    output: RequestOutput | None = None

    def take(self, delta: Delta) -> None:
        self.text += delta.text

    def end(self, output: RequestOutput) -> None:
        self.output = output


@cache
def roomy() -> LLM:
    return tiny_llm(num_blocks=256, overlap=False)


def undisturbed(piece: Piece, count: int) -> tuple[list[int], str]:
    """The tokens and text of a request that runs alone, and only stops where something was appended."""
    engine = roomy().engine
    alone = Piece(piece.prompt, piece.params)
    name = engine.add_request(alone.prompt, replace(alone.params, max_tokens=100), on_finish=alone.end)
    seq = engine.core.requests[name].sequences[0]
    for at, tokens in [*piece.given, (count, [])]:
        while seq.num_read_output_tokens < at:
            assert engine.step()
        engine.pause(name)
        if tokens:
            engine.resume(name, append=tokens, max_tokens=100)
    engine.finish(name)
    assert alone.output is not None
    [out] = alone.output.outputs
    return out.token_ids, out.text


real_operations = st.one_of(
    st.tuples(st.just("step"), st.integers(1, 6)),
    st.tuples(st.just("pause"), st.integers(0, 3)),
    st.tuples(st.just("resume"), st.integers(0, 3)),
    st.tuples(st.just("append"), st.integers(0, 3)),
)


@settings(
    derandomize=not LONG, database=None, deadline=None, max_examples=1000 if LONG else 30, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    options=st.fixed_dictionaries(
        {
            "num_blocks": st.integers(9, 16),
            "policy": st.sampled_from(["fcfs", "priority", "sjf"]),
            "host_blocks": st.sampled_from([12, 3, 0, 40]),
            "disk_blocks": st.sampled_from([20, 4, 0]),
            "preemption_mode": st.sampled_from(["swap", "auto", "recompute"]),
            "max_prefill_chunk": st.sampled_from([None, 5]),
            "max_num_seqs": st.integers(2, 4),
            "overlap": st.booleans(),
            "prefix_cache": st.booleans(),
        }
    ),
    sampled=st.lists(st.booleans(), min_size=3, max_size=4),
    operations=st.lists(real_operations, min_size=8, max_size=40),
)
def test_a_real_model_gives_its_tokens_and_text_wherever_its_kv_has_been(
    options: dict[str, Any], sampled: list[bool], operations: list[tuple[str, int]]
) -> None:
    with TemporaryDirectory() as folder:
        swap = {"swap_path": Path(folder) / "swap"} if options["disk_blocks"] else {}
        with tiny_llm(**options, **swap) as llm:
            events, started = recorded(llm), llm.engine.core.started
            pieces = real_life(llm, sampled, operations)
            blocks = llm.engine.core.blocks
            assert blocks.num_free == blocks.num_blocks
            assert len(blocks.slots.free_host) + len(blocks.slots.free_disk) == (
                blocks.slots.host_blocks + blocks.slots.disk_blocks
            )
        Audit().apply_all([started, *events])
    for piece in pieces:
        assert piece.output is not None and piece.output.error is None
        [out] = piece.output.outputs
        assert (out.token_ids, out.text) == undisturbed(piece, len(out.token_ids))
        assert piece.text == out.text


def real_life(llm: LLM, sampled: list[bool], operations: list[tuple[str, int]]) -> list[Piece]:
    """Requests under these operations until each has ended."""
    engine = llm.engine
    pieces: dict[str, Piece] = {}
    for number, is_sampled in enumerate(sampled):
        params = SamplingParams(
            temperature=0.8 if is_sampled else 0.0, seed=number, max_tokens=9 + 4 * number, ignore_eos=True,
            on_stop="pause", priority=-number,
        )  # fmt: skip
        piece = Piece(prompt_of(6 + 3 * number, number // 2), params)
        pieces[f"r{number}"] = piece
        engine.add_request(
            piece.prompt, params, request_id=f"r{number}", on_output=piece.take, on_finish=piece.end
        )
        engine.step()  # the next one, more urgent under "priority", finds this one running
    for what, number in operations:
        name = f"r{number}"
        if what == "step":
            for _ in range(number):
                engine.step()
        elif name in pieces and what == "pause":
            engine.pause(name)
        elif name in pieces and engine.core.requests[name].sequences[0].status is PAUSED:
            go_on(engine, name, pieces[name], [(7 * number + i) % 256 for i in range(5)] if what == "append" else [])
    for name, piece in pieces.items():
        while engine.step():
            pass
        if engine.core.requests[name].sequences[0].status is PAUSED:
            go_on(engine, name, piece, [1, 2, 3])
    while engine.step():
        pass
    for name in pieces:
        engine.finish(name)
    return list(pieces.values())


def go_on(engine: Engine, name: str, piece: Piece, tokens: list[int]) -> None:
    seq = engine.core.requests[name].sequences[0]
    if len(seq.token_ids) > 29:
        return
    if tokens:
        piece.given.append((seq.num_read_output_tokens, tokens))
    engine.resume(name, append=tokens, max_tokens=3)


@pytest.mark.parametrize("overlap", [False, True], ids=["in_turn", "overlapped"])
@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["greedy", "sampled"])
@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_a_real_sequence_that_lost_its_place_to_urgent_ones_goes_on_the_same(
    mode: str, temperature: float, overlap: bool
) -> None:
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=20, ignore_eos=True, on_stop="pause")
    room = {"num_blocks": 12, "host_blocks": 24, "max_num_seqs": 2}
    with tiny_llm(policy="priority", preemption_mode=mode, overlap=overlap, **room) as llm:
        engine, events = llm.engine, recorded(llm)
        pieces = [Piece(prompt_of(9, i), replace(params, priority=-i)) for i in range(4)]
        for i, piece in enumerate(pieces):
            engine.add_request(
                piece.prompt, piece.params, request_id=f"r{i}", on_output=piece.take, on_finish=piece.end
            )
            for _ in range(4):
                engine.step()
        while engine.step():
            pass
        for i in range(4):
            engine.finish(f"r{i}")
    lost = [event for event in events if isinstance(event, SequencePreempted)]
    assert "priority" in {event.cause for event in lost} and {event.mode for event in lost} == {mode}
    for piece in pieces:
        assert piece.output is not None
        [out] = piece.output.outputs
        assert (out.token_ids, out.text) == undisturbed(piece, 20)
