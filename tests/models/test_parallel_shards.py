"""Which part of a model each rank holds, and what can't be split."""

from __future__ import annotations

import dataclasses
from itertools import product

import pytest
import torch

from nanolens.errors import InvalidConfig
from nanolens.models import load_config
from nanolens.models.config import ModelConfig
from nanolens.models.parallel import Shard, check_size, join_vocabulary


def shape(**changes: int) -> ModelConfig:
    return dataclasses.replace(load_config("dummy:llama-tiny"), **changes)


def sizes(num_heads: int) -> list[int]:
    return [size for size in range(1, num_heads + 1) if num_heads % size == 0]


HEADS = [(heads, kv) for heads, kv in product((1, 4, 6, 9, 12, 14, 32), repeat=2) if heads % kv == 0]


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [*HEADS, (9, 3), (12, 2), (12, 3), (14, 2), (32, 8)])
def test_every_query_head_finds_its_kv_head_on_its_rank(num_heads: int, num_kv_heads: int) -> None:
    whole = shape(num_heads=num_heads, num_kv_heads=num_kv_heads, vocab_size=4096)
    for size in sizes(num_heads):
        served = []
        for rank in range(size):
            shard = Shard(rank, size)
            own, held = shard.config(whole), shard.kv_heads(whole)
            assert own.num_kv_heads == len(held)
            group = own.num_heads // own.num_kv_heads
            assert group * own.num_kv_heads == own.num_heads
            served += [held[head // group] for head in range(own.num_heads)]
        assert served == [head // (num_heads // num_kv_heads) for head in range(num_heads)]


@pytest.mark.parametrize(("size", "held"), [(1, 4), (2, 2), (4, 1), (8, 1), (16, 1)])
def test_kv_heads_are_split_and_replicated_only_beyond_their_number(size: int, held: int) -> None:
    whole = shape(num_heads=16, num_kv_heads=4)
    assert {Shard(rank, size).config(whole).num_kv_heads for rank in range(size)} == {held}


@pytest.mark.parametrize("width", [7, 112, 1536, 4864, 12288])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_columns_are_dealt_without_gap_and_nearly_evenly(width: int, size: int) -> None:
    parts = [Shard(rank, size).columns(width) for rank in range(size)]
    assert [column for part in parts for column in range(width)[part]] == list(range(width))
    lengths = [part.stop - part.start for part in parts]
    assert min(lengths) > 0
    assert max(lengths) - min(lengths) <= (0 if width % size == 0 else 31)
    if width >= 16 * size and width % size:
        assert all(part.start % 16 == 0 for part in parts)


@pytest.mark.parametrize(("vocab_size", "size"), [(96, 2), (97, 2), (97, 4), (151936, 8), (10, 3), (32003, 4)])
def test_the_vocabulary_is_dealt_in_blocks_of_one_size_of_which_the_last_may_be_short(
    vocab_size: int, size: int
) -> None:
    parts = [Shard(rank, size).vocabulary(vocab_size) for rank in range(size)]
    assert [token for part in parts for token in range(vocab_size)[part]] == list(range(vocab_size))
    assert {part.stop - part.start for part in parts[:-1]} == {Shard(0, size).vocabulary_rows(vocab_size)}


@pytest.mark.parametrize("vocab_size", [8, 7, 6])
@pytest.mark.parametrize("into", [False, True])
def test_logits_of_all_ranks_are_joined_without_padding(vocab_size: int, into: bool) -> None:
    logits = torch.arange(3.0 * vocab_size).view(3, vocab_size)
    padded = torch.nn.functional.pad(logits, (0, 8 - vocab_size), value=torch.nan)
    pieces = padded.view(3, 2, 4).transpose(0, 1).contiguous()
    out = torch.full((3, vocab_size), torch.nan) if into else None
    joined = join_vocabulary(pieces, vocab_size, out)
    assert torch.equal(joined, logits)
    assert out is None or joined is out


def test_one_rank_has_the_whole_shape() -> None:
    whole = shape()
    assert Shard().config(whole) is whole


@pytest.mark.parametrize("size", [0, 3, 5, 8])
def test_a_size_that_does_not_divide_the_query_heads_is_refused(size: int) -> None:
    with pytest.raises(InvalidConfig, match=rf"tensor_parallel_size={size}: must divide .* 4 query heads; .* 1, 2, 4$"):
        check_size(shape(num_heads=4), size)


@pytest.mark.parametrize("changes", [{"vocab_size": 9}, {"intermediate_size": 3}])
def test_a_size_that_leaves_a_rank_with_nothing_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(InvalidConfig, match="leave some rank with nothing"):
        check_size(shape(num_heads=4, **changes), 4)


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_that_there_is_not_is_refused(rank: int, size: int) -> None:
    with pytest.raises(InvalidConfig, match=f"rank={rank} of size={size}"):
        Shard(rank, size)
