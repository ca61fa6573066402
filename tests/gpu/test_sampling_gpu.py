"""Compiled sampling and penalties: the reference's tokens, two launches, graphs, and distributions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sampling_rows import FILTERS, chi_square, join_params, make_params

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytest.importorskip("triton", reason="needs triton, which is not here")

from nanolens.kernels import penalties  # noqa: E402
from nanolens.kernels.sampling import SamplingTensors, sample, sample_checked, torch_sample  # noqa: E402

VOCAB = 151_937  # prime to everything


def gaussian(rows: int, vocab: int = VOCAB, spread: float = 3.0) -> Tensor:
    return torch.randn(rows, vocab, device="cuda") * spread


def to_cpu(params: SamplingTensors) -> SamplingTensors:
    names = ("temperature", "top_k", "top_p", "min_p", "seeds", "positions")
    return replace(params, **{name: getattr(params, name).cpu() for name in names})


def assert_reference(logits: Tensor, params: SamplingTensors, most_different: int = 0) -> None:
    """The CPU's tokens, but for draws in which two clocks ring within a rounding of each other."""
    expected = torch_sample(logits.float().cpu(), to_cpu(params))
    assert int((sample(logits, params).cpu() != expected).sum()) <= most_different


def kernels_of(function: Callable[[], object]) -> list[str]:
    """Names of the kernels that a call launches, after a call that compiles them."""
    function()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        function()
        torch.cuda.synchronize()
    return [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 8, 9, 128])
def test_plain_draws_equal_the_reference(rows: int, dtype: torch.dtype) -> None:
    assert_reference(gaussian(rows).to(dtype), make_params(rows, seed=rows, device="cuda"), most_different=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", FILTERS, ids=str)
def test_filtered_draws_equal_the_reference(options: dict[str, float], dtype: torch.dtype) -> None:
    params = make_params(32, device="cuda", **options)  # type: ignore[arg-type]
    assert_reference(gaussian(32).to(dtype), params, most_different=1)


def test_many_filtered_draws_of_few_tokens_equal_the_reference() -> None:
    for options in FILTERS:
        params = make_params(2000, device="cuda", **options)  # type: ignore[arg-type]
        assert_reference(gaussian(2000, 700).round(), params, most_different=2)


def test_greedy_rows_take_the_first_of_the_best_beside_random_ones() -> None:
    logits = gaussian(64).round()
    params = join_params([make_params(32, temperature=0.0, device="cuda"), make_params(32, device="cuda")])
    best = logits[:32] == logits[:32].amax(-1, keepdim=True)
    assert torch.equal(sample(logits, params)[:32], best.int().argmax(-1))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_rows_with_nan_or_infinity_give_minus_one(bad: float) -> None:
    logits = gaussian(16)
    params = join_params([make_params(8, top_k=20, top_p=0.9, device="cuda"), make_params(8, device="cuda")])
    healthy = sample_checked(logits, params)
    logits[3, VOCAB - 1], logits[12, 0] = bad, bad
    logits[5] = -torch.inf
    tokens, broken = sample_checked(logits, params), torch.tensor([3, 5, 12], device="cuda")
    assert torch.equal(tokens, healthy.index_fill(0, broken, -1))


def test_the_plain_path_is_two_launches_and_filters_are_one_more() -> None:
    logits, params = gaussian(16), make_params(16, top_k=20, device="cuda")
    plain = replace(params, any_top_k=False, any_top_p=False, any_min_p=False)
    assert len(kernels_of(lambda: sample(logits, plain))) == 2
    assert len(kernels_of(lambda: sample(logits, params))) == 3


def test_nothing_waits_for_the_device() -> None:
    logits, params = gaussian(16), make_params(16, top_k=20, top_p=0.9, device="cuda")
    sample_checked(logits, params)
    torch.cuda.set_sync_debug_mode("error")
    try:
        sample_checked(logits, params)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_graph_follows_logits_and_parameters_that_change() -> None:
    names = ("temperature", "top_k", "top_p", "min_p", "seeds", "positions")
    logits, params = gaussian(24), make_params(24, device="cuda")
    sample_checked(logits, params)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens = sample_checked(logits, params)
    for options in ({"temperature": 0.0}, {"temperature": 0.6}, {"top_k": 20, "top_p": 0.9, "temperature": 5.0}):
        fresh = make_params(24, seed=9, device="cuda", **options)
        logits.copy_(gaussian(24))
        for name in names:
            getattr(params, name).copy_(getattr(fresh, name))
        graph.replay()
        assert torch.equal(tokens, sample_checked(logits, fresh))


@pytest.mark.parametrize("options", [{}, {"top_k": 4}, {"top_p": 0.8}, {"min_p": 0.3}, {"temperature": 2.0}], ids=str)
def test_draws_follow_the_softmax_of_what_is_left(options: dict[str, float]) -> None:
    logits = torch.tensor([2.0, 0.0, 1.0, -1.0, 0.9, -3.0], device="cuda")
    count = 60_000
    params = make_params(count, seed=3, device="cuda", **options)  # type: ignore[arg-type]
    counts = sample(logits.expand(count, -1), params).bincount(minlength=6)
    filtered = "temperature" not in options and bool(options)
    left = ([0, 1, 2, 4] if "top_k" in options else [0, 2, 4]) if filtered else list(range(6))
    expected = (logits[left] / options.get("temperature", 1.0)).softmax(0)
    assert int(counts[left].sum()) == count
    assert chi_square(counts[left], expected) < 20.5  # once in a thousand with 5 degrees of freedom


def test_penalties_against_float64() -> None:
    logits = gaussian(8)
    mask, counts = torch.rand(5, VOCAB, device="cuda") < 0.01, torch.randint(0, 4, (5, VOCAB), device="cuda").int()
    slots = torch.tensor([4, -1, 0, 1, -1, 2, 3, -1], device="cuda")
    own = [torch.randn(8, device="cuda"), torch.randn(8, device="cuda"), torch.rand(8, device="cuda") + 0.5]
    doubled = [factor.double() for factor in own]
    expected = penalties.torch_apply_penalties(logits.double(), mask, counts, *doubled, slots)
    penalties.apply_penalties(logits, mask, counts, *own, slots)
    assert float((logits - expected).norm() / expected.norm()) < 1e-5


def test_biases_masks_and_counts() -> None:
    logits, counts = torch.zeros(4, VOCAB, device="cuda"), torch.zeros(4, VOCAB, dtype=torch.int32, device="cuda")
    rows, tokens = torch.tensor([0, 2, 2, -1], device="cuda"), torch.tensor([VOCAB - 1, 5, 5, 0], device="cuda")
    penalties.apply_logit_bias(logits, rows, tokens, torch.tensor([1.0, 2.0, 3.0, 9.0], device="cuda"))
    assert logits[0, VOCAB - 1] == 1.0 and logits[2, 5] == 5.0 and logits.sum() == 6.0
    penalties.mask_tokens(logits, rows, tokens)
    assert logits.isinf().nonzero().tolist() == [[0, VOCAB - 1], [2, 5]]
    penalties.count_tokens(counts, torch.tensor([0, -1, 3, 1], device="cuda"), tokens)
    assert counts.nonzero().tolist() == [[0, VOCAB - 1], [1, 0], [3, 5]]
