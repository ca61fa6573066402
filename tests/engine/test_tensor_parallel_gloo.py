"""Two ranks over gloo, each with its part of a real model: the tokens are those of one process, whatever happens."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fake_ranks import is_running, shared_descriptors
from nanolens.engine.config import EngineConfig
from nanolens.engine.llm import LLM
from nanolens.engine.outputs import RequestOutput
from nanolens.engine.plan import StepPlan
from nanolens.engine.runner import tensor_parallel_watch as watching
from nanolens.engine.runner.load import load_parts
from nanolens.engine.runner.model_runner import ModelRunner
from nanolens.engine.runner.tensor_parallel import TensorParallelRunner
from nanolens.engine.runner.tensor_parallel_ranks import Ranks
from nanolens.engine.sampling_params import SamplingParams
from nanolens.engine.sequence import Sequence
from nanolens.errors import InvalidConfig
from nanolens.models import load_model
from nanolens.telemetry.events import BlocksSwapped, EngineError, PrefixMatched, SequencePreempted, StepRanks
from real_engine import TINY, greedy, prompt_of, recorded
from tiny_models import save_tiny

HANGING = "hanging_ranks:build"
SMALL: dict[str, Any] = {"num_blocks": 40, "block_size": 4, "audit": True, "seed": 0, "device": "cpu"}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@contextmanager
def opened(model: str, size: int, **options: Any) -> Iterator[LLM]:
    with LLM(model, dtype="float32", tensor_parallel_size=size, **(SMALL | options)) as llm:
        yield llm
        runner = llm.engine.core.runner
    if isinstance(runner, TensorParallelRunner):
        assert not any(map(is_running, runner.pids)) and not shared_descriptors()


def asked() -> tuple[list[list[int]], list[SamplingParams]]:
    """Prompts with shared prefixes, and parameters of each kind."""
    shared = prompt_of(24)
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.0, "logprobs": 3, "prompt_logprobs": 2},
        {"temperature": 1.0, "seed": 5, "n": 3},
        {"temperature": 0.8, "seed": 6, "top_p": 0.9, "top_k": 20},
        {"temperature": 0.0, "presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
        {"temperature": 0.0, "logit_bias": {7: 3.0}, "min_tokens": 5, "stop_token_ids": [7]},
    ]
    prompts = [shared[: 10 + 2 * index] + prompt_of(3 + index, index) for index in range(len(kinds))]
    return prompts, [SamplingParams(max_tokens=20, ignore_eos=True, **own) for own in kinds]


def told(outputs: list[RequestOutput]) -> list[Any]:
    return [
        [(one.token_ids, one.finish_reason, [entry.token_id for entry in one.logprobs or []]) for one in output.outputs]
        for output in outputs
    ]


def run(llm: LLM) -> list[Any]:
    """Everything that may happen to a request, in a pool that is too small."""
    engine = llm.engine
    prompts, params = asked()
    aborted = engine.add_request(prompt_of(20, 90), greedy(40))
    ended: dict[str, RequestOutput] = {}
    paused = engine.add_request(
        prompt_of(15, 91), greedy(6, on_stop="pause"), on_finish=lambda output: ended.update({"paused": output})
    )
    for _ in range(4):
        engine.step()
    engine.abort(aborted)
    first = told(llm.generate(prompts, params))
    engine.resume(paused, append=[1, 2, 3], max_tokens=5)
    second = told(llm.generate(prompts[::-1], greedy(12)))
    while engine.step():
        pass
    engine.finish(paused)
    return [first, second, told([ended["paused"]])]


@pytest.mark.parametrize("options", [{"preemption_mode": "recompute"}, {"host_blocks": 60}], ids=["recompute", "swap"])
def test_all_that_happens_to_requests_leaves_their_tokens_alone(options: dict[str, Any]) -> None:
    found = []
    for size in (1, 2):
        with opened(TINY, size, **options) as llm:
            events = recorded(llm)
            found.append(run(llm))
            llm.engine.core.flush()
            kinds = {type(event) for event in events}
            assert {PrefixMatched, SequencePreempted} <= kinds
            assert (BlocksSwapped in kinds) == ("host_blocks" in options)
            assert (StepRanks in kinds) == (size == 2)
            late = [event.late_ns for event in events if isinstance(event, StepRanks)]
            assert all(len(each) == size and min(each) == 0 for each in late)
    assert found[0] == found[1]


def test_plain_draws_are_those_of_one_rank() -> None:
    """No request asks for more than a temperature, so that ranks sample from their own tokens all the time."""
    heats = [(0.0, None), (0.3, 1), (1.0, 2), (2.5, -3), (0.8, 2**62)]
    params = [SamplingParams(temperature=heat, seed=seed, max_tokens=30, ignore_eos=True) for heat, seed in heats]
    found = []
    for size in (1, 2):
        with opened(TINY, size, num_blocks=200) as llm:
            found.append(told(llm.generate([prompt_of(9 + index, index) for index in range(len(params))], params)))
    assert found[0] == found[1]


@pytest.mark.parametrize(("family", "changes"), [
    ("Llama", {"vocab_size": 97, "num_key_value_heads": 1}),  # the only KV head is on both ranks
    ("Qwen2", {"tie_word_embeddings": True}),
    ("Qwen3", {"vocab_size": 95}),
])  # fmt: skip
@pytest.mark.parametrize("block_size", [32, 512])
def test_families_and_block_sizes(family: str, changes: dict[str, Any], block_size: int, tmp_path: Path) -> None:
    save_tiny(tmp_path, family, **changes)
    config = EngineConfig(model=str(tmp_path), dtype="float32", device="cpu", num_blocks=12)
    prompts = [[(7 * i + k) % 90 for i in range(40)] for k in range(3)]
    split = replace(config, tensor_parallel_size=2, block_size=block_size)
    assert greedy_ids(split, prompts) == greedy_ids(config, prompts)


def greedy_ids(config: EngineConfig, prompts: list[list[int]]) -> list[list[int]]:
    """Tokens by the runner itself: these models have no tokenizer."""
    runner: Any = None
    if config.tensor_parallel_size == 1:
        runner = ModelRunner(load_model(config.model, config.dtype, "cpu"), config, torch.device("cpu"))
    else:
        runner = TensorParallelRunner(config, 1 << 20)
    sequences = []
    blocks = -(-60 // config.block_size)
    for index, prompt in enumerate(prompts):
        params = SamplingParams(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0)
        seq = Sequence(index, "", prompt, params, 0, 0, lambda event: None, lambda: 0, 60)
        seq.block_table = list(range(index * blocks, (index + 1) * blocks))
        sequences.append(seq)
    starts = [0] * len(sequences)
    try:
        for step in range(12):
            counts = [len(seq.token_ids) - start for seq, start in zip(sequences, starts, strict=True)]
            kind = "decode" if step else "prefill"
            ones = [True] * len(sequences)
            plan = StepPlan(step, kind, sequences, starts, counts, ones, [0] * len(sequences), [])
            starts = [len(seq.token_ids) for seq in sequences]
            for seq, token in zip(sequences, runner.collect(runner.launch(plan)).tokens, strict=True):
                seq.token_ids.append(token)
    finally:
        runner.close()
    return [seq.token_ids for seq in sequences]


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize(("number", "lost"), [(signal.SIGKILL, 1), (signal.SIGSTOP, 0)], ids=["kill", "stop"])
def test_a_lost_rank_ends_all_requests(number: int, lost: int, phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "HANG_S", 3.0)
    with opened(TINY, 2, num_blocks=200) as llm:
        engine, events = llm.engine, recorded(llm)
        runner = engine.core.runner
        assert isinstance(runner, TensorParallelRunner)
        ended: list[RequestOutput] = []
        for salt in range(3):
            engine.add_request(prompt_of(60, salt), greedy(100), on_finish=ended.append)
        for _ in range(3 if phase == "decode" else 0):
            engine.step()
        os.kill(runner.pids[lost], number)
        while engine.core.requests:
            engine.step()
        assert [output.outputs[0].finish_reason for output in ended] == ["error"] * 3
        messages = [event.message for event in events if isinstance(event, EngineError)]
        assert f"rank {lost} of 2 (process {runner.pids[lost]}) " in messages[-1]
        assert "; its last step was 3" in messages[-1] if phase == "decode" else "has begun no step" in messages[-1]


@pytest.mark.parametrize(("hung", "step"), [(0, 1), (1, 3)], ids=["prefill", "decode"])
def test_a_rank_that_hangs_while_it_lives_ends_all_requests(
    hung: int, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first step is slow, and longer than the bound, but gets further all the time."""
    start = Ranks.start
    monkeypatch.setattr(Ranks, "start", lambda self, config, count, _: start(self, config, count, HANGING))
    monkeypatch.setenv("HANGING_RANK", f"{hung}:{step}")
    monkeypatch.setenv("SLOW_SUMS", "0.5")
    with opened(TINY, 2, num_blocks=200, rank_timeout_s=1.5) as llm:
        engine, events = llm.engine, recorded(llm)
        ended: list[RequestOutput] = []
        for salt in range(3):
            engine.add_request(prompt_of(60, salt), greedy(100), on_finish=ended.append)
        while engine.core.requests:
            engine.step()
        assert [output.outputs[0].finish_reason for output in ended] == ["error"] * 3
        assert {len(output.outputs[0].token_ids) for output in ended} == {step - 1}
        message = [event.message for event in events if isinstance(event, EngineError)][-1]
        pid = engine.core.runner.pids[hung]
        assert f"rank {hung} of 2 (process {pid}) hangs: it has not got further for 1.5 s (rank_timeout_s)" in message
        assert f"; its last step was {step}" in message


def test_a_loaded_model_is_not_split() -> None:
    with pytest.raises(InvalidConfig, match="tensor_parallel_size=2 with a model that is loaded already"):
        LLM(TINY, parts=load_parts(EngineConfig(model=TINY, device="cpu")), tensor_parallel_size=2)


def test_heads_that_can_not_be_split_are_refused_in_words() -> None:
    with pytest.raises(InvalidConfig, match="tensor_parallel_size=3: must divide the model's 4 query heads"):
        LLM(TINY, tensor_parallel_size=3, **SMALL)
    assert not shared_descriptors()


def test_one_gpu_can_not_hold_several_ranks() -> None:
    with pytest.raises(InvalidConfig, match="tensor_parallel_size=2 with device='cuda:1'"):
        EngineConfig(device="cuda:1", tensor_parallel_size=2)
