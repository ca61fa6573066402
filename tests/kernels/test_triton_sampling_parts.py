"""Sampling from parts of the vocabulary in Triton, interpreted: the tokens of the whole rows, to the bit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from poison import poisoned_memory
from sampling_rows import mixed_params
from split_sampling import sample_in_parts
from triton_interpreter import load_interpreter

load_interpreter()

from nanolens.kernels import triton_sampling, triton_sampling_parts  # noqa: E402
from nanolens.kernels.sampling import SamplingTensors, sample_checked  # noqa: E402
from nanolens.kernels.sampling_parts import Gather, VocabularyPart  # noqa: E402

# The reference's exponentials may overflow to the infinity that they mean.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value", "ignore:divide by zero")


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    with poisoned_memory():
        yield


def in_parts(logits: Tensor, params: SamplingTensors, size: int, num_tokens: int | None = None) -> list[list[int]]:
    """The interpreter knows one running kernel: ranks take turns between gatherings."""
    turn = threading.Lock()

    def sample(own: Tensor, part: VocabularyPart, params: SamplingTensors, gather: Gather) -> Tensor:
        def gather_meanwhile(x: Tensor) -> Tensor:
            turn.release()
            try:
                return gather(x)
            finally:
                turn.acquire()

        with turn:
            return triton_sampling_parts.sample_part_checked(own, part, params, gather_meanwhile, chunk=64)

    return sample_in_parts(logits, params, size, num_tokens, sample)


def whole(logits: Tensor, params: SamplingTensors) -> list[int]:
    found: list[int] = triton_sampling.sample(logits, params, checked=True, chunk=128).tolist()
    return found


def gaussian(rows: int, vocab: int, spread: float = 3.0) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(rows * vocab)) * spread


@pytest.mark.parametrize(("size", "vocab"), [(2, 96), (2, 97), (2, 601), (3, 100), (3, 128), (3, 506), (4, 255)])
def test_tokens_are_those_of_the_whole_rows(size: int, vocab: int) -> None:
    logits, params = gaussian(15, vocab), mixed_params(15)
    expected = whole(logits, params)
    assert expected == sample_checked(logits, params).tolist()
    assert in_parts(logits, params, size) == [expected] * size


@pytest.mark.parametrize("any_random", [False, True])
def test_of_equal_logits_the_lowest_token_is_taken_whichever_rank_has_it(any_random: bool) -> None:
    logits = gaussian(10, 203, spread=1.0).round()
    logits[0] = 0.0
    params = replace(mixed_params(10), temperature=torch.zeros(10), any_random=any_random)
    best = (logits == logits.amax(-1, keepdim=True)).int().argmax(-1)
    assert in_parts(logits, params, 3) == [best.tolist()] * 3


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_bad_logit_of_one_rank_fails_the_row_on_all(bad: float) -> None:
    logits, params = gaussian(6, 99), mixed_params(6)
    healthy = whole(logits, params)
    logits[0, 98], logits[1, 98], logits[3, 0] = bad, bad, bad
    logits[4] = -torch.inf
    assert in_parts(logits, params, 2) == [[-1, -1, healthy[2], -1, -1, healthy[5]]] * 2


@pytest.mark.parametrize("num_tokens", [1, 34, 35, 90])
def test_tokens_beyond_the_valid_ones_are_never_drawn(num_tokens: int) -> None:
    logits, params = gaussian(6, 100), mixed_params(6)
    logits[:, num_tokens:] = 90.0
    logits[::2, num_tokens:] = torch.nan
    assert in_parts(logits, params, 3, num_tokens) == [whole(logits[:, :num_tokens], params)] * 3


def test_a_rank_may_forbid_all_its_tokens() -> None:
    logits, params = torch.full((5, 150), -torch.inf), mixed_params(5)
    logits[range(5), [149, 0, 75, 74, 80]] = -5.0
    assert in_parts(logits, params, 2) == [[149, 0, 75, 74, 80]] * 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_sampled_as_their_values(dtype: torch.dtype) -> None:
    logits, params = gaussian(9, 301).to(dtype), mixed_params(9)
    assert in_parts(logits, params, 2) == [whole(logits.float(), params)] * 2


def test_no_rows_give_no_tokens() -> None:
    assert in_parts(torch.empty(0, 50), mixed_params(5), 2) == [[], []]
