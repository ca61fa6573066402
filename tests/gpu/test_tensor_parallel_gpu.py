"""An engine on two GPUs, or with two ranks on one: the tokens stay the same, and a lost rank leaves nothing."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from gpu_checks import need_gpu

need_gpu()

import one_gpu  # noqa: E402
from fake_ranks import is_running, shared_descriptors  # noqa: E402
from nanolens import LLM, SamplingParams  # noqa: E402
from nanolens.engine.outputs import RequestOutput  # noqa: E402
from nanolens.engine.runner.tensor_parallel import TensorParallelRunner  # noqa: E402
from nanolens.engine.runner.tensor_parallel_ranks import Ranks  # noqa: E402
from nanolens.telemetry.events import (  # noqa: E402
    AnyEvent,
    BlocksSwapped,
    EngineError,
    PrefixMatched,
    SequencePreempted,
    StepFinished,
    StepRanks,
)

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
TINY = ("dummy:llama-tiny", "dummy:qwen3-tiny")
REAL, REAL_BYTES = "dummy:qwen3-8b", 48 << 30
SMALL: dict[str, Any] = {
    "dtype": "float32", "device": DEVICE, "num_blocks": 400, "max_num_seqs": 7, "max_model_len": 512, "audit": True,
    "seed": 0,
}  # fmt: skip
ENDS_S = 10.0  # the bound for a lost rank


@pytest.fixture(autouse=True, scope="module")
def enough_gpus() -> Iterator[None]:
    """Where there is one GPU, ranks share it."""
    start = Ranks.start
    with pytest.MonkeyPatch.context() as patch:
        if torch.cuda.device_count() == 1:
            patch.setattr(Ranks, "start", lambda self, config, count, _: start(self, config, count, one_gpu.TARGET))
        yield


@contextmanager
def opened(model: str, size: int, **options: Any) -> Iterator[tuple[LLM, list[AnyEvent]]]:
    """An engine and its events; afterwards its ranks are gone, and what they shared."""
    events: list[AnyEvent] = []
    with LLM(model, tensor_parallel_size=size, **(SMALL | options)) as llm:
        llm.engine.core.recorder.subscribe(events.extend)
        yield llm, events
        runner = llm.engine.core.runner
    if isinstance(runner, TensorParallelRunner):
        assert not any(map(is_running, runner.pids))
        assert not shared_descriptors()


def prompt(length: int, salt: int = 0, top: int = 256) -> list[int]:
    draw = random.Random(f"{length} {salt}")
    return [draw.randrange(top) for _ in range(length)]


def greedy(max_tokens: int, **own: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **own)


def ids(outputs: list[RequestOutput]) -> list[list[list[int]]]:
    return [[one.token_ids for one in output.outputs] for output in outputs]


def greedy_ids(model: str, size: int, prompts: list[list[int]], count: int, **options: Any) -> list[list[list[int]]]:
    with opened(model, size, **options) as (llm, events):
        found = ids(llm.generate(prompts, greedy(count), use_tqdm=False))
        llm.engine.core.flush()
        graphs = any(event.graph for event in events if isinstance(event, StepFinished))
        assert graphs == (DEVICE == "cuda" and not options.get("enforce_eager", False))
    return found


@pytest.fixture(scope="module")
def alone() -> dict[str, list[list[list[int]]]]:
    """200 greedy tokens of each model on one GPU."""
    return {model: greedy_ids(model, 1, tiny_prompts(), 200) for model in TINY}


def tiny_prompts() -> list[list[int]]:
    return [prompt(3 + 8 * index, index) for index in range(12)]


@pytest.mark.parametrize(("model", "options"), [
    (TINY[0], {}),
    (TINY[1], {}),
    (TINY[1], {"overlap": False}),
    (TINY[1], {"enforce_eager": True}),
    (TINY[1], {"num_blocks": 60, "max_prefill_chunk": 16}),
])  # fmt: skip
def test_greedy_ids_are_those_of_one_gpu(
    alone: dict[str, list[list[list[int]]]], model: str, options: dict[str, Any]
) -> None:
    assert greedy_ids(model, 2, tiny_prompts(), 200, **options) == alone[model]


@pytest.mark.skipif(torch.cuda.mem_get_info(0)[1] < REAL_BYTES, reason="needs 48 GiB for 8 billion float32 weights")
def test_greedy_ids_of_a_real_shape_are_those_of_one_gpu() -> None:
    prompts = [prompt(20 + 37 * index, index, 10_000) for index in range(6)]
    one, gaps = real_ids(1, prompts)
    two, _ = real_ids(2, prompts)
    for row, (expected, found) in enumerate(zip(one, two, strict=True)):
        first = next((at for at, pair in enumerate(zip(expected, found, strict=True)) if pair[0] != pair[1]), None)
        where = first is not None and f"prompt {row}, token {first}: the best two are {gaps[row][first]:.2e} apart"
        assert first is None, where


def real_ids(size: int, prompts: list[list[int]]) -> tuple[list[list[int]], list[list[float]]]:
    """Ids, and how far the likeliest token of each step was ahead of the next."""
    with opened(REAL, size) as (llm, _):
        outputs = [one.outputs[0] for one in llm.generate(prompts, greedy(40, logprobs=2), use_tqdm=False)]
    tops = [[[value for _, value in entry.top] for entry in one.logprobs or []] for one in outputs]
    return [one.token_ids for one in outputs], [[top[0] - top[1] for top in row] for row in tops]


def run_all(llm: LLM) -> list[Any]:
    """Everything that may happen to a request, in a pool that is too small."""
    engine = llm.engine
    shared = prompt(48)
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.0, "logprobs": 3, "prompt_logprobs": 2},
        {"temperature": 1.0, "seed": 5, "n": 3},
        {"temperature": 0.8, "seed": 6, "top_p": 0.9, "top_k": 20},
        {"temperature": 0.0, "presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
        {"temperature": 0.0, "logit_bias": {7: 3.0}, "min_tokens": 5, "stop_token_ids": [7]},
    ]
    prompts = [shared[: 33 + 2 * index] + prompt(3 + index, index) for index in range(len(kinds))]
    params = [SamplingParams(max_tokens=40, ignore_eos=True, **own) for own in kinds]
    ended: list[RequestOutput] = []
    aborted = engine.add_request(prompt(40, 90), greedy(80))
    paused = engine.add_request(prompt(50, 91), greedy(12, on_stop="pause"), on_finish=ended.append)
    for _ in range(6):
        engine.step()
    engine.abort(aborted)
    first = ids(llm.generate(prompts, params, use_tqdm=False))
    engine.resume(paused, append=[1, 2, 3], max_tokens=20)
    second = ids(llm.generate(prompts[::-1], greedy(24), use_tqdm=False))
    while engine.step():
        pass
    engine.finish(paused)
    return [first, second, ids(ended)]


@pytest.mark.parametrize("options", [{"preemption_mode": "recompute"}, {"host_blocks": 60}], ids=["recompute", "swap"])
def test_all_that_happens_to_requests_leaves_their_tokens_alone(options: dict[str, Any]) -> None:
    found = []
    for size in (1, 2):
        with opened(TINY[1], size, num_blocks=20, max_model_len=256, **options) as (llm, events):
            found.append(run_all(llm))
            llm.engine.core.flush()
            kinds = {type(event) for event in events}
        assert {PrefixMatched, SequencePreempted} <= kinds
        assert (BlocksSwapped in kinds) == ("host_blocks" in options)
        assert (StepRanks in kinds) == (size == 2)
    assert found[0] == found[1]


def test_each_step_tells_what_each_gpu_did() -> None:
    with opened(TINY[0], 2) as (llm, events):
        llm.generate(tiny_prompts(), greedy(30), use_tqdm=False)
        llm.engine.core.flush()
    told = [event for event in events if isinstance(event, StepRanks)]
    assert len(told) >= sum(isinstance(event, StepFinished) for event in events) - 2  # the last ones may come too late
    for event in told:
        assert len(event.device_ns) == len(event.collective_ns) == 2
        for device, waited in zip(event.device_ns, event.collective_ns, strict=True):
            assert 0 < waited < 1.05 * device + 20_000  # two clocks


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGKILL, "was killed by signal SIGKILL"), (signal.SIGSTOP, "hangs")],
    ids=["kill", "stop"],
)
def test_a_lost_rank_ends_all_requests_and_the_gpus_are_free_again(
    number: int, words: str, lost: int, phase: str
) -> None:
    with opened(TINY[1], 2) as (llm, events):
        engine, ended = llm.engine, []
        runner = engine.core.runner
        assert isinstance(runner, TensorParallelRunner)
        for salt in range(3):
            engine.add_request(prompt(300, salt), greedy(200), on_finish=ended.append)
        for _ in range(8 if phase == "decode" else 0):
            engine.step()
        os.kill(runner.pids[lost], number)
        began = time.monotonic()
        while engine.core.requests:
            engine.step()
        assert time.monotonic() - began < ENDS_S
        assert [output.outputs[0].finish_reason for output in ended] == ["error"] * 3
        message = next(event.message for event in reversed(events) if isinstance(event, EngineError))
        assert f"rank {lost} of 2 (process {runner.pids[lost]}) {words}" in message
        assert not any(map(is_running, runner.pids))
    if (number, phase) == (signal.SIGKILL, "decode"):
        with opened(TINY[1], 2) as (llm, _):
            again = llm.generate(tiny_prompts()[:2], greedy(10), use_tqdm=False)
        assert [output.outputs[0].finish_reason for output in again] == ["length"] * 2
