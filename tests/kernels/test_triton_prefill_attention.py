"""The Triton prefill kernel, interpreted, against float64; what it must not read or leave out is NaN."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paged_batches import RELATIVE_ERROR, PagedBatch, relative_error
from poison import poisoned_memory
from triton_interpreter import load_interpreter

load_interpreter()

from nanolens.kernels.triton_prefill_attention import default_tiles, prefill_attention  # noqa: E402


def run(batch: PagedBatch, **tunables: int) -> Tensor:
    with poisoned_memory():
        return prefill_attention(
            batch.q,
            batch.key_cache,
            batch.value_cache,
            batch.block_tables,
            batch.rows,
            batch.query_start,
            batch.context_lens,
            max(batch.query_lens),
            batch.scale,
            **tunables,
        )


def check(batch: PagedBatch, **tunables: int) -> None:
    out = run(batch, **tunables)
    assert out.dtype == batch.q.dtype and out.shape == batch.q.shape and out.is_contiguous()
    assert relative_error(out, batch.expected()) < RELATIVE_ERROR[batch.q.dtype]


@pytest.mark.parametrize("dtype", list(RELATIVE_ERROR))
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_every_head_size_and_dtype(head_dim: int, dtype: torch.dtype) -> None:
    check(PagedBatch([21, 6], [21, 55], head_dim=head_dim, dtype=dtype))


@pytest.mark.parametrize("block_size", [16, 24, 32, 48, 64, 128, 256])
def test_page_sizes_around_the_tile_of_keys(block_size: int) -> None:
    check(PagedBatch([40], [150], block_size), block_m=32, block_n=32)


@pytest.mark.parametrize("edge", [-1, 0, 1])
@pytest.mark.parametrize("queries", [1, 15, 16, 17, 33])
def test_contexts_and_chunks_around_page_and_tile_edges(queries: int, edge: int) -> None:
    check(PagedBatch([queries], [48 + edge]), block_m=32, block_n=16)


def test_rows_of_no_one_and_many_tokens() -> None:
    check(PagedBatch([0, 1, 30, 0, 1, 7, 0], [5, 64, 30, 1, 1, 33, 16]), block_m=16, block_n=16)


@pytest.mark.parametrize("num_kv_heads, group", [(1, 1), (3, 3), (1, 7), (5, 1), (2, 5)])
def test_head_counts_that_are_no_powers_of_two(num_kv_heads: int, group: int) -> None:
    check(PagedBatch([13, 2], [13, 40], num_kv_heads=num_kv_heads, group=group), block_m=16, block_n=16)


def test_a_group_larger_than_the_tile_is_not_packed() -> None:
    check(PagedBatch([18], [30], num_kv_heads=1, group=20), block_m=16, block_n=16)


def test_unpacked_heads_give_the_same() -> None:
    check(PagedBatch([18], [30], num_kv_heads=2, group=4), block_m=16, block_n=16, pack=1)


def test_rows_name_their_tables() -> None:
    check(PagedBatch([9, 20, 3], [40, 20, 17], extra_tables=4))


def test_queries_inside_a_joined_projection() -> None:
    batch = PagedBatch([9, 20], [40, 20], strided=True)
    assert not batch.q.is_contiguous()
    check(batch)


def test_queries_strided_in_the_head_dimension() -> None:
    batch = PagedBatch([9], [40])
    batch.q = batch.q.repeat_interleave(2, dim=2)[..., ::2]
    check(batch)


def test_tables_that_are_a_slice_of_a_wider_one() -> None:
    batch = PagedBatch([9, 20], [40, 20])
    batch.block_tables = torch.cat([batch.block_tables, torch.full((2, 5), -1, dtype=torch.int32)], 1)[:, :-5]
    check(batch)


def test_query_start_may_begin_behind_other_tokens_which_stay_unwritten() -> None:
    batch = PagedBatch([1, 9, 20], [30, 40, 20])
    expected = batch.expected()
    batch.query_start, batch.context_lens = batch.query_start[1:], batch.context_lens[1:]
    batch.block_tables = batch.block_tables[1:]
    out = run(batch)
    assert out[0].isnan().all()
    assert relative_error(out[1:], expected[1:]) < 1e-5


def test_large_scores_do_not_overflow() -> None:
    batch = PagedBatch([9], [40])
    batch.q *= 1e4
    # Scores of about 1e4 are rounded by up to 1e-3 in float32, which is how far two near-equal weights may be off.
    assert relative_error(run(batch), batch.expected()) < 1e-2


def test_a_row_is_the_same_beside_others_and_alone() -> None:
    batch = PagedBatch([5, 30], [50, 31])
    together = run(batch, block_m=32)
    batch.q, batch.query_lens, batch.contexts = batch.q[:5], [5], [50]
    batch.query_start, batch.context_lens = batch.query_start[:2], batch.context_lens[:1]
    assert torch.equal(run(batch, block_m=32), together[:5])


def test_no_tokens() -> None:
    batch = PagedBatch([0], [5])
    assert run(batch).shape == (0, 4, 64)


@pytest.mark.parametrize("dtype", list(RELATIVE_ERROR))
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_default_tiles_fit_the_shared_memory_of_a_multiprocessor(head_dim: int, dtype: torch.dtype) -> None:
    for lanes in (2, 64, 65, 4096):
        block_m, block_n, _, num_stages = default_tiles(head_dim, dtype, lanes)
        padded = 1 << (head_dim - 1).bit_length()
        elements = padded * (block_m + 2 * block_n * num_stages)
        assert elements * dtype.itemsize <= 227 * 1024
