"""Sampling from parts of the vocabulary gives the tokens of the whole rows, on each of the ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from nanolens.kernels.philox import exponential_noise
from nanolens.kernels.sampling import SamplingTensors, sample_checked
from sampling_rows import join_params, make_params
from split_sampling import part_of, sample_in_parts


def gaussian(rows: int, vocab: int, spread: float = 3.0) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(rows * vocab)) * spread


def plain(params: SamplingTensors) -> SamplingTensors:
    return replace(params, any_top_k=False, any_top_p=False, any_min_p=False)


@pytest.mark.parametrize("first", [0, 1, 2, 3, 4, 50, 4097])
def test_noise_from_a_token_on_is_that_of_all(first: int) -> None:
    seeds, positions = torch.tensor([-5, 2**62]), torch.tensor([2**32 - 1, 3])
    whole = exponential_noise(seeds, positions, 5003)
    assert torch.equal(exponential_noise(seeds, positions, 5003 - first, first), whole[:, first:])


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("vocab", [5, 96, 97, 1001, 4099])
@pytest.mark.parametrize("temperature", [0.0, 1e-45, 0.3, 1.0, 50.0])
def test_tokens_are_those_of_the_whole_rows(size: int, vocab: int, temperature: float) -> None:
    if (size - 1) * -(-vocab // size) >= vocab:
        pytest.skip("a rank would have nothing")
    logits, params = gaussian(40, vocab), plain(make_params(40, temperature=temperature, seed=vocab))
    assert sample_in_parts(logits, params, size) == [sample_checked(logits, params).tolist()] * size


@pytest.mark.parametrize("size", [2, 3])
def test_greedy_and_random_rows_share_a_batch(size: int) -> None:
    parts = [make_params(9, temperature=heat, seed=index) for index, heat in enumerate((0.0, 0.8, 2.0))]
    logits, params = gaussian(27, 333), plain(join_params(parts))
    assert sample_in_parts(logits, params, size) == [sample_checked(logits, params).tolist()] * size


@pytest.mark.parametrize("any_random", [False, True])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_of_equal_logits_the_lowest_token_is_taken_whichever_rank_has_it(size: int, any_random: bool) -> None:
    logits = gaussian(50, 101, spread=1.0).round()
    logits[0] = 0.0
    logits[1] = -torch.tensor(0.0)
    logits[1, 99] = 0.0
    params = plain(replace(make_params(50, temperature=0.0), any_random=any_random))
    best = (logits == logits.amax(-1, keepdim=True)).int().argmax(-1)
    assert sample_in_parts(logits, params, size) == [best.tolist()] * size


def test_greedy_batches_read_no_parameters() -> None:
    logits, nothing = gaussian(3, 100), torch.empty(0)
    params = SamplingTensors(nothing, nothing, nothing, nothing, nothing, nothing, False, False, False, False)
    assert sample_in_parts(logits, params, 2) == [logits.argmax(-1).tolist()] * 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_bad_logit_of_one_rank_fails_the_row_on_all(bad: float, temperature: float) -> None:
    logits, params = gaussian(6, 99), plain(make_params(6, temperature=temperature))
    healthy = sample_checked(logits, params).tolist()
    logits[1, 98], logits[3, 0] = bad, bad
    assert sample_in_parts(logits, params, 3) == [[healthy[0], -1, healthy[2], -1, *healthy[4:]]] * 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_rank_may_forbid_all_its_tokens_but_not_all_ranks(temperature: float) -> None:
    logits = torch.full((3, 60), -torch.inf)
    logits[1, 59], logits[2, 0] = -5.0, -7.0
    assert sample_in_parts(logits, plain(make_params(3, temperature=temperature)), 3) == [[-1, 59, 0]] * 3


@pytest.mark.parametrize("num_tokens", [1, 20, 33, 34, 90])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_beyond_the_valid_ones_are_never_drawn(num_tokens: int, temperature: float) -> None:
    """Nor seen: some ranks then have nothing to draw from at all."""
    logits, params = gaussian(20, 100), plain(make_params(20, temperature=temperature))
    logits[:, num_tokens:] = 90.0
    logits[::2, num_tokens:] = torch.nan
    expected = sample_checked(logits[:, :num_tokens], params).tolist()
    assert sample_in_parts(logits, params, 3, num_tokens) == [expected] * 3


def test_half_precision_logits_are_sampled_as_their_values() -> None:
    logits, params = gaussian(8, 200).bfloat16(), plain(make_params(8))
    assert sample_in_parts(logits, params, 2) == [sample_checked(logits.float(), params).tolist()] * 2


def test_parts_cover_the_vocabulary() -> None:
    parts = [part_of(rank, 4, 97, 97) for rank in range(4)]
    assert [(part.first, part.usable) for part in parts] == [(0, 25), (25, 25), (50, 25), (75, 22)]
