"""A step that does not fit into memory: the runner says so, and the step comes right when it is launched again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from nanolens.engine import faults
from nanolens.engine.plan import StepPlan, StepResult
from nanolens.engine.runner import sampler as sampler_module
from nanolens.engine.runner.decode_steps import DecodeSteps, graph_sizes
from nanolens.engine.runner.memory_errors import is_out_of_memory
from nanolens.engine.runner.readback import Readback
from nanolens.engine.runner.staging import Staging
from nanolens.engine.runner.token_counts import TokenCounts
from nanolens.engine.sequence import Sequence
from nanolens.errors import OutOfDeviceMemory
from nanolens.kernels.attention import AttentionMetadata, build_metadata
from runner_host import BLOCK, MODEL, VOCAB, Host, Spoiled, prompt_of

SITES: dict[str, Any] = {  # what fails: before or after the forward pass, and after tokens were sampled
    "admission": (TokenCounts, "admit"),
    "inputs": (Staging, "send"),
    "sampling": (sampler_module, "sample_checked"),
    "logprobs": (sampler_module, "token_logprobs"),
    "readback": (Readback, "tensor"),
    "counting": (TokenCounts, "add"),
}
PARAMS: list[dict[str, Any]] = [
    {"repetition_penalty": 1.7, "presence_penalty": 0.5, "frequency_penalty": 0.9, "logprobs": 2},
    {},
    {"temperature": 0.9, "top_p": 0.9, "frequency_penalty": 0.7},
]


class Shortage:
    """Makes one call of something fail for want of memory: call number `at` while it is armed."""

    def __init__(self) -> None:
        self.armed, self.at, self.calls, self.failures = False, 0, 0, 0

    def reach(self) -> None:
        if self.armed:
            self.calls += 1
            if self.calls > self.at:
                self.armed, self.failures = False, self.failures + 1
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")

    def put_into(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            self.reach()
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, call)


def metadata(block_tables: torch.Tensor, rows: torch.Tensor, context_lens: torch.Tensor) -> AttentionMetadata:
    lengths = context_lens.clamp(min=1).tolist()
    return build_metadata(block_tables, [1] * len(lengths), lengths, BLOCK, rows)


def halves(plan: StepPlan) -> Iterator[StepPlan]:
    """The plan's sequences in two parts; a lone chunk in two pieces."""
    size = len(plan.sequences)
    if size > 1:
        for cut in (slice(size // 2), slice(size // 2, size)):
            yield StepPlan(
                plan.step, plan.kind, plan.sequences[cut], plan.starts[cut], plan.counts[cut], plan.samples[cut],
                plan.epochs[cut], [],
            )  # fmt: skip
        return
    seq, start, count = plan.sequences, plan.starts[0], plan.counts[0]
    if count > 1:
        yield StepPlan(plan.step, plan.kind, seq, [start], [count // 2], [False], plan.epochs, [])
    rest = count - count // 2 if count > 1 else count
    yield StepPlan(plan.step, plan.kind, seq, [start + count - rest], [rest], plan.samples, plan.epochs, [])


def launch(host: Host, plan: StepPlan) -> list[Any]:
    """Launch a plan, in halves where it does not fit: handles in order."""
    try:
        return [host.runner.launch(plan)]
    except OutOfDeviceMemory:
        return [host.runner.launch(part) for part in halves(plan)]


def collect(host: Host, plan: StepPlan, handles: list[Any]) -> dict[int, Any]:
    """Append a plan's tokens; which ones have log-probabilities, by sequence."""
    results: list[StepResult] = [host.runner.collect(handle) for handle in handles]
    tokens = iter([token for result in results for token in result.tokens])
    for seq, samples in zip(plan.sequences, plan.samples, strict=True):
        if samples:
            seq.num_pending -= 1
            seq.token_ids.append(next(tokens))
    return {seq_id: entry.token_id for result in results for seq_id, entry in result.logprobs.items()}


def lives(decode_steps: bool, overlap: bool, before: Callable[[int], None] = lambda step: None) -> list[Any]:
    """Nine tokens for a sequence per PARAMS; the first alone for a step, and each step of three to be halved."""
    host = Host()
    if decode_steps:
        runner, sizes = host.runner, graph_sizes(4)
        runner._decodes = DecodeSteps(MODEL, runner.kv_caches, runner._rows, BLOCK, VOCAB, VOCAB, sizes, metadata)
    sequences = [host.add(prompt_of(9, i), seed=i, **params) for i, params in enumerate(PARAMS)]
    sequences[1].bad_words_ids = [[5, 6], [40, 41, 42]]
    flying: list[tuple[StepPlan, list[Any]]] = []
    found: list[Any] = []
    for number in range(10):
        batch = sequences[:1] if number == 0 else sequences
        plan = host.plan(*((seq, seq.num_tokens - seq.num_computed_tokens) for seq in batch))
        before(number)
        flying.append((plan, launch(host, plan)))
        if len(flying) > overlap:
            found.append(collect(host, *flying.pop(0)))
    found += [collect(host, *step) for step in flying]
    return [found, *(seq.output_token_ids for seq in sequences)]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("decode_steps", [False, True])
@pytest.mark.parametrize("site", ["forward", *SITES])
def test_a_step_launched_again_in_halves_gives_the_same_tokens(
    site: str, decode_steps: bool, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = lives(decode_steps, overlap)
    shortage = Shortage()
    if site != "forward":
        shortage.put_into(monkeypatch, *SITES[site])
    with faults.armed("forward", shortage.reach if site == "forward" else lambda: None):
        for step in (0, 1, 2, 6):
            for call in range(5 if site == "inputs" else 2):

                def before(number: int, step: int = step, call: int = call) -> None:
                    shortage.armed, shortage.at, shortage.calls = number == step, call, 0

                assert lives(decode_steps, overlap, before) == expected, f"step {step}, call {call}"
    assert shortage.failures >= (1 if site == "admission" else 4)


def test_penalties_count_each_token_once_whatever_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    host, shortage = Host(), Shortage()
    shortage.put_into(monkeypatch, Readback, "tensor")
    seq = host.add(prompt_of(5), frequency_penalty=0.1)
    for _ in range(6):
        shortage.armed, shortage.calls = True, 0
        plan = host.plan((seq, seq.num_tokens - seq.num_computed_tokens))
        collect(host, plan, launch(host, plan))
    counts = host.runner._sampler.counts.output_counts[host.runner._sampler.counts.slot(0)]
    assert shortage.failures == 6
    assert counts.tolist() == torch.bincount(torch.tensor(seq.output_token_ids), minlength=VOCAB).tolist()


def test_a_failed_admission_leaves_no_row_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    host, shortage = Host(max_num_seqs=1), Shortage()
    shortage.put_into(monkeypatch, TokenCounts, "admit")
    shortage.armed = True
    first, second = (host.add(prompt_of(5, i), frequency_penalty=1.0) for i in range(2))
    with pytest.raises(OutOfDeviceMemory):
        host.step((first, 5))
    host.step((second, 5))


@pytest.mark.parametrize(
    ("error", "is_short"),
    [
        (torch.OutOfMemoryError("x"), True),
        (MemoryError(), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("can't allocate memory"), False),
    ],
)
def test_what_counts_as_a_shortage_of_memory(error: Exception, is_short: bool) -> None:
    assert is_out_of_memory(error) is is_short
    host = Host()

    def fail() -> None:
        raise error

    with faults.armed("forward", fail), pytest.raises(OutOfDeviceMemory if is_short else type(error)) as caught:
        host.step((host.add([1, 2, 3]), 3))
    if is_short:
        assert "a step of 3 tokens does not fit into the memory of cpu" in str(caught.value)


def test_the_allocator_of_a_cpu_is_understood() -> None:
    class Greedy(Spoiled):
        def forward(self, *arguments: Any) -> torch.Tensor:
            return torch.empty(1 << 50)

    host = Host(Greedy(-1))
    with pytest.raises(OutOfDeviceMemory):
        host.step((host.add([1, 2]), 2))


def test_moves_copies_and_releases_of_a_step_that_failed_are_done() -> None:
    host = Host(max_num_seqs=1, host_blocks=2)
    gone = host.add([1, 2])
    host.generate(gone, 1)
    host.leave(gone)
    seq = host.add(prompt_of(6))
    for keys, _ in host.runner.kv_caches:
        keys[0], keys[1] = 3.0, 4.0
    host.free = [block for block in host.free if block > 3]

    def fail() -> None:
        raise torch.OutOfMemoryError("x")

    plan = host.plan((seq, 6), moves=[host.move("out", [0], [-1])], copies=[(1, 2)])
    with faults.armed("forward", fail), pytest.raises(OutOfDeviceMemory):
        host.runner.launch(plan)
    plan.moves, plan.copies, plan.released = [], [], []
    tokens = collect(host, plan, [host.runner.launch(plan)])
    assert not tokens and len(seq.output_token_ids) == 1
    assert host.step(moves=[host.move("in", [-1], [3])]).moved[-1].error == ""
    assert [host.runner.kv_caches[0][0][block, 0, 0, 0].item() for block in (2, 3)] == [4.0, 3.0]


def test_any_other_fault_leaves_the_sequences_to_be_launched_again() -> None:
    host, other = Host(), Host()
    seqs: list[Sequence] = [host.add(prompt_of(7), seed=3, temperature=0.8, presence_penalty=1.0)]
    same = other.add(prompt_of(7), seed=3, temperature=0.8, presence_penalty=1.0)

    def fail() -> None:
        raise ValueError("a bug")

    for _ in range(5):
        plan = host.plan(*((seq, seq.num_tokens - seq.num_computed_tokens) for seq in seqs))
        for point in ("launch", "forward"):
            with faults.armed(point, fail), pytest.raises(ValueError, match="a bug"):
                host.runner.launch(plan)
        handle = host.runner.launch(plan)
        with faults.armed("collect", fail), pytest.raises(ValueError, match="a bug"):
            host.runner.collect(handle)
        collect(host, plan, [handle])
    assert seqs[0].output_token_ids == other.generate(same, 5)
