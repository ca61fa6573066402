"""The Triton decode attention under the interpreter, against float64; slots outside the contexts are NaN."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from decode_rows import DecodeRows, make_rows, relative_error
from triton_interpreter import load_interpreter

load_interpreter()

from nanolens.kernels import triton_decode_attention as module  # noqa: E402
from nanolens.kernels.decode_settings import choose_settings  # noqa: E402
from nanolens.kernels.triton_decode_attention import decode_attention  # noqa: E402

BOUNDS = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
RAGGED = [1, 16, 0, 31, 32, 33, 97]


@pytest.fixture(autouse=True)
def poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a launcher allocates is infinite, so that what no program writes shows (a maximum would pass over NaN)."""

    def poisoned(*shape: Any, **options: Any) -> Tensor:
        return torch.full(*shape, torch.inf, **options)

    monkeypatch.setattr(module.torch, "empty", poisoned)


def attend(rows: DecodeRows, **options: Any) -> Tensor:
    return decode_attention(
        rows.q, rows.keys, rows.values, rows.tables, None, rows.contexts, rows.scale, **{"tile": 32} | options
    )


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_every_head_dim_and_dtype(head_dim: int, dtype: torch.dtype) -> None:
    rows = make_rows([37, 64], head_dim=head_dim, dtype=dtype, num_kv_heads=1, seed=head_dim)
    for splits in (1, 2):
        got = attend(rows, num_splits=splits)
        assert got.dtype == dtype and got.shape == rows.q.shape and got.is_contiguous()
        assert relative_error(got, rows.expected) < BOUNDS[dtype]


@pytest.mark.parametrize("page", [16, 24, 32, 48, 64, 256])
def test_contexts_around_the_edges_of_pages_and_tiles(page: int) -> None:
    contexts = sorted({1, page - 1, page, page + 1, 31, 32, 33, 2 * page})
    rows = make_rows(contexts, page=page, num_kv_heads=1, group=1, seed=page)
    assert relative_error(attend(rows), rows.expected) < 1e-6


@pytest.mark.parametrize(("num_kv_heads", "group"), [(1, 1), (3, 3), (2, 7), (5, 2), (1, 8), (1, 16), (1, 20)])
def test_head_counts_that_are_no_powers_of_two(num_kv_heads: int, group: int) -> None:
    rows = make_rows([33, 1], num_kv_heads=num_kv_heads, group=group, seed=group)
    for splits in (1, 2):
        assert relative_error(attend(rows, num_splits=splits), rows.expected) < 1e-6


@pytest.mark.parametrize(("peel", "ahead"), itertools.product([False, True], repeat=2))
@pytest.mark.parametrize("splits", [1, 3])
def test_the_ways_to_run_the_loop_agree(splits: int, peel: bool, ahead: bool) -> None:
    rows = make_rows(RAGGED, num_kv_heads=1, seed=splits)
    assert relative_error(attend(rows, num_splits=splits, peel=peel, ahead=ahead), rows.expected) < 1e-6


@pytest.mark.parametrize("splits", [2, 5, 33, 70])
def test_splits_of_which_most_are_empty(splits: int) -> None:
    rows = make_rows(RAGGED, num_kv_heads=1, group=2, seed=splits)
    assert relative_error(attend(rows, num_splits=splits, tile=16), rows.expected) < 1e-6


@pytest.mark.parametrize("num_kv_heads", [1, 2])
@pytest.mark.parametrize("splits", [64, 70])
def test_more_splits_in_use_than_the_combine_pass_reads_at_once(splits: int, num_kv_heads: int) -> None:
    rows = make_rows([1100], num_kv_heads=num_kv_heads, group=1, seed=splits)  # 69 tiles: 35 and 69 splits hold some
    assert relative_error(attend(rows, num_splits=splits, tile=16), rows.expected) < 1e-6


@pytest.mark.parametrize("splits", [1, 4])
def test_a_padding_row_gives_zeros_and_reads_nothing(splits: int) -> None:
    rows = make_rows([0, 40, 0])
    got = attend(rows, num_splits=splits)
    assert not got[0].any() and not got[2].any()
    assert relative_error(got, rows.expected) < 1e-6


def test_a_batch_of_no_rows() -> None:
    rows = make_rows([5])
    got = decode_attention(rows.q[:0], rows.keys, rows.values, rows.tables, None, rows.contexts[:0], 1.0)
    assert got.shape == (0, *rows.q.shape[1:])


@pytest.mark.parametrize("splits", [1, 2])
def test_rows_say_which_table_belongs_to_which_query(splits: int) -> None:
    rows = make_rows([40, 7, 64, 1])
    order = torch.tensor([2, 0, 3])
    got = decode_attention(
        rows.q[order], rows.keys, rows.values, rows.tables, order.int(), rows.contexts[order], rows.scale,
        tile=32, num_splits=splits,
    )  # fmt: skip
    assert relative_error(got, rows.expected[order]) < 1e-6


def test_queries_tables_and_pages_with_strides_of_their_own() -> None:
    rows = make_rows([40, 7, 64])
    batch, heads, dim = rows.q.shape
    joined = torch.full((batch, 2 * heads * dim + 5), torch.nan)
    q = joined[:, 3 : 3 + heads * dim].view(batch, heads, dim)
    q.copy_(rows.q)
    both = torch.full((rows.keys.shape[0], 2, *rows.keys.shape[1:]), torch.nan)
    keys, values = both[:, 0], both[:, 1]
    keys.copy_(rows.keys)
    values.copy_(rows.values)
    wide = torch.full((batch, rows.tables.shape[1] + 9), 2**30, dtype=torch.int32)
    tables = wide[:, : rows.tables.shape[1]]
    tables.copy_(rows.tables)
    got = decode_attention(q, keys, values, tables, None, rows.contexts, rows.scale, tile=32)
    assert relative_error(got, rows.expected) < 1e-6
    turned = rows.q.transpose(1, 2).contiguous().transpose(1, 2)
    got = decode_attention(turned, keys, values, tables, None, rows.contexts, rows.scale, tile=32)
    assert relative_error(got, rows.expected) < 1e-6


def test_scores_far_apart_do_not_overflow() -> None:
    rows = make_rows([70, 33], num_kv_heads=1, group=1)
    rows.keys.mul_(300)
    for splits in (1, 2):
        got = attend(rows, num_splits=splits)
        assert torch.isfinite(got).all()
        row, context = 0, 70
        tokens = torch.arange(context)
        place = (rows.tables[row, tokens // 16].long(), tokens % 16)
        scores = rows.keys[place][:, 0].double() @ rows.q[row, 0].double() * rows.scale
        expected = scores.softmax(0) @ rows.values[place][:, 0].double()
        assert relative_error(got[row, 0], expected) < 1e-4  # scores of 1,000 in float32 are true to 1e-4


def test_the_launcher_chooses_by_itself() -> None:
    rows = make_rows([300, 0, 5], num_kv_heads=1, dtype=torch.bfloat16)
    got = decode_attention(rows.q, rows.keys, rows.values, rows.tables, None, rows.contexts, rows.scale)
    assert relative_error(got, rows.expected) < 1e-2


def test_small_batches_are_split_until_programs_fill_the_device() -> None:
    def splits(batch: int, context: int = 4096) -> int:
        return choose_settings(batch, 8, context, 128, 2, 132).num_splits

    assert [splits(batch) for batch in (1, 2, 8, 16, 32, 256)] == [32, 16, 4, 2, 1, 1]
    assert splits(1, 300) == 3  # no more than the tiles of the longest context
    assert splits(1, 1) == 1


def test_a_split_is_never_chosen_beyond_the_limit() -> None:
    assert choose_settings(1, 1, 1 << 20, 128, 2, 132).num_splits == 64
