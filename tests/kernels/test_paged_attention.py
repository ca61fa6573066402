"""Paged attention and page writes against a float64 loop, with every slot outside the contexts poisoned."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from nanolens.kernels.attention import build_metadata, paged_attention
from nanolens.kernels.norm import rms_norm
from nanolens.kernels.qkv import split_norm_rope_store
from nanolens.kernels.rotary import apply_rotary, rotary_tables

TOLERANCE = {torch.float32: 3e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}


class Pages:
    """A KV cache whose rows have scattered pages; slots that no context holds are NaN."""

    def __init__(
        self,
        contexts: Sequence[int],
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        spare_columns: int = 1,
    ) -> None:
        generator = torch.Generator().manual_seed(sum(contexts) + block_size)
        columns = -(-max(contexts) // block_size) + spare_columns
        num_blocks = len(contexts) * columns + 2
        order = torch.randperm(num_blocks, generator=generator)
        self.tables = order[: len(contexts) * columns].view(len(contexts), columns).int()
        shape = (num_blocks, block_size, num_kv_heads, head_dim)
        self.keys = torch.full(shape, torch.nan, dtype=dtype)
        self.values = torch.full(shape, torch.nan, dtype=dtype)
        self.contexts, self.block_size = contexts, block_size
        for row, context in enumerate(contexts):
            for position in range(context):
                place = (int(self.tables[row, position // block_size]), position % block_size)
                self.keys[place] = torch.randn(num_kv_heads, head_dim, generator=generator).to(dtype)
                self.values[place] = torch.randn(num_kv_heads, head_dim, generator=generator).to(dtype)

    def row(self, row: int, cache: Tensor) -> Tensor:
        """[context, Hkv, D] float64 of one row."""
        positions = range(self.contexts[row])
        size = self.block_size
        return torch.stack([cache[int(self.tables[row, p // size]), p % size] for p in positions]).double()


def reference(q: Tensor, pages: Pages, query_lens: Sequence[int], scale: float) -> Tensor:
    """One query and one head at a time."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    token = 0
    for row, queries in enumerate(query_lens):
        keys, values = pages.row(row, pages.keys), pages.row(row, pages.values)
        group = q.shape[1] // keys.shape[1]
        for i in range(queries):
            seen = pages.contexts[row] - queries + i + 1
            for head in range(q.shape[1]):
                scores = keys[:seen, head // group] @ q[token, head].double() * scale
                out[token, head] = scores.softmax(0) @ values[:seen, head // group]
            token += 1
    return out


def check(
    query_lens: Sequence[int],
    contexts: Sequence[int],
    block_size: int = 4,
    num_kv_heads: int = 3,
    group: int = 3,
    head_dim: int = 8,
    dtype: torch.dtype = torch.float32,
    padding: int = 0,
) -> None:
    pages = Pages(contexts, block_size, num_kv_heads, head_dim, dtype)
    q = torch.randn(sum(query_lens) + padding, num_kv_heads * group, head_dim).to(dtype)
    before = q.clone()
    metadata = build_metadata(pages.tables, query_lens, contexts, block_size)
    out = paged_attention(q, pages.keys, pages.values, metadata, head_dim**-0.5)
    expected = reference(q, pages, query_lens, head_dim**-0.5)
    assert out.dtype == dtype and out.shape == q.shape
    assert (out.double() - expected).abs().max() <= TOLERANCE[dtype]
    assert torch.equal(q, before)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("block_size", [1, 2, 16, 64])
def test_mixed_batch_equals_float64(block_size: int, dtype: torch.dtype) -> None:
    check([1, 1, 5, 7, 1], [9, 64, 5, 39, 1], block_size=block_size, dtype=dtype)


@pytest.mark.parametrize("block_size, edge", itertools.product([1, 3, 16], [-1, 0, 1]))
def test_contexts_around_a_page_edge(block_size: int, edge: int) -> None:
    context = 2 * block_size + edge
    check([1, min(2, context)], [context, context], block_size=block_size)


@pytest.mark.parametrize("num_kv_heads, group, head_dim", [(1, 1, 8), (1, 7, 16), (5, 1, 3), (3, 5, 24)])
def test_odd_head_counts_and_sizes(num_kv_heads: int, group: int, head_dim: int) -> None:
    check([1, 1, 4], [5, 12, 9], num_kv_heads=num_kv_heads, group=group, head_dim=head_dim)


def test_all_decodes() -> None:
    check([1] * 6, [1, 2, 3, 17, 8, 4])


def test_all_prefills_from_the_start() -> None:
    check([2, 6, 17], [2, 6, 17])


def test_decodes_behind_prefills() -> None:
    check([3, 1, 4, 1], [3, 9, 10, 2])


def test_very_unequal_decode_contexts_are_grouped_and_still_right() -> None:
    contexts = [900, 3, 5, 850, 2, 1]
    pages = Pages(contexts, 16, 1, 4)
    metadata = build_metadata(pages.tables, [1] * 6, contexts, 16)
    assert len(metadata.torch_plan(2, 1).decodes) > 1
    check([1] * 6, contexts, block_size=16, num_kv_heads=1, group=2, head_dim=4)


def test_chunk_longer_than_the_mask_limit_is_split() -> None:
    check([600], [620], block_size=16, num_kv_heads=1, group=1, head_dim=4)


@pytest.mark.parametrize("query_lens, contexts", [([1, 1], [5, 6]), ([1, 3], [5, 6]), ([3], [3])])
def test_padding_tokens_get_zeros(query_lens: list[int], contexts: list[int]) -> None:
    pages = Pages(contexts, 4, 1, 8)
    q = torch.full((sum(query_lens) + 3, 1, 8), torch.nan)
    q[: sum(query_lens)] = 1.0
    out = paged_attention(q, pages.keys, pages.values, build_metadata(pages.tables, query_lens, contexts, 4), 1.0)
    assert torch.equal(out[-3:], torch.zeros(3, 1, 8))
    assert out.isfinite().all()


def test_large_scores_do_not_overflow() -> None:
    pages = Pages([6], 4, 1, 8)
    q = torch.full((1, 1, 8), 1e4)
    out = paged_attention(q, pages.keys, pages.values, build_metadata(pages.tables, [1], [6], 4), 1.0)
    # Scores of about 1e4 are rounded by up to 1e-3, which is how far two near-equal weights may be off.
    torch.testing.assert_close(out.double(), reference(q, pages, [1], 1.0), rtol=0, atol=1e-2)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    contexts = [7, 90, 300, 12]
    pages = Pages(contexts, 16, 3, 64)
    q = torch.randn(4, 9, 64)
    together = paged_attention(q, pages.keys, pages.values, build_metadata(pages.tables, [1] * 4, contexts, 16), 0.125)
    for row, context in enumerate(contexts):
        metadata = build_metadata(pages.tables[row : row + 1], [1], [context], 16)
        alone = paged_attention(q[row : row + 1], pages.keys, pages.values, metadata, 0.125)
        torch.testing.assert_close(alone, together[row : row + 1], rtol=0, atol=1e-6)


def test_metadata_of_a_mixed_batch() -> None:
    metadata = build_metadata(torch.zeros(3, 4, dtype=torch.int32), [1, 1, 5], [3, 8, 6], 2)
    assert metadata.query_start.tolist() == [0, 1, 2, 7] and metadata.query_start.dtype == torch.int32
    assert metadata.context_lens.tolist() == [3, 8, 6] and metadata.context_lens.dtype == torch.int32
    assert (metadata.num_decodes, metadata.max_query_len, metadata.max_context_len) == (2, 5, 8)


@pytest.mark.parametrize(
    "query_lens, contexts", [([1], [2, 2]), ([1, 0], [2, 2]), ([1, 3], [2, 2]), ([1, 1], [2, 9])]
)
def test_contradicting_lengths_are_refused(query_lens: list[int], contexts: list[int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        build_metadata(torch.zeros(2, 4, dtype=torch.int32), query_lens, contexts, 2)


def run_store(
    tokens: int, slots: list[int], norms: bool = True, strided: bool = False, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Run the fused step with 5 query heads, 2 KV heads of 6; gives (q, k pages, v pages, expected k, expected v)."""
    q_heads, kv_heads, dim = 5, 2, 6
    width = (q_heads + 2 * kv_heads) * dim
    qkv = torch.randn(tokens, 2 * width).to(dtype)[:, width // 2 : width // 2 + width] if strided else None
    qkv = torch.randn(tokens, width).to(dtype) if qkv is None else qkv
    cos_sin = rotary_tables(torch.tensor([1.0, 0.3, 0.1]), 1.0, 50)
    positions = torch.arange(tokens) * 3
    weights = (torch.linspace(0.5, 2, dim).to(dtype), torch.linspace(-1, 1, dim).to(dtype)) if norms else (None, None)
    pages = [torch.full((4, 3, kv_heads, dim), torch.nan, dtype=dtype) for _ in range(2)]
    before = qkv.clone()
    q = split_norm_rope_store(
        qkv, positions, cos_sin, *weights, 1e-6, *pages, torch.tensor(slots, dtype=torch.int64), q_heads, kv_heads, dim
    )
    assert torch.equal(qkv, before)
    heads = qkv.reshape(tokens, q_heads + 2 * kv_heads, dim)
    query, key, value = heads[:, :q_heads], heads[:, q_heads:-kv_heads], heads[:, -kv_heads:]
    if weights[0] is not None and weights[1] is not None:
        query, key = rms_norm(query, weights[0], 1e-6), rms_norm(key, weights[1], 1e-6)
    torch.testing.assert_close(q, apply_rotary(query, cos_sin, positions))
    return q, pages[0], pages[1], apply_rotary(key, cos_sin, positions), value


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("strided", [False, True])
def test_keys_and_values_land_in_their_slots(norms: bool, strided: bool, dtype: torch.dtype) -> None:
    slots = [7, 2, 11, 0]
    _, keys, values, key, value = run_store(4, slots, norms, strided, dtype)
    for token, slot in enumerate(slots):
        torch.testing.assert_close(keys.flatten(0, 1)[slot], key[token])
        assert torch.equal(values.flatten(0, 1)[slot], value[token])
    assert int(keys.flatten(0, 1).isnan().all(-1).all(-1).sum()) == 12 - len(slots)


def test_slot_minus_one_writes_nothing() -> None:
    _, keys, values, key, _ = run_store(4, [-1, 5, -1, 8])
    written = ~keys.flatten(0, 1).isnan().any(-1).any(-1)
    assert written.nonzero().flatten().tolist() == [5, 8]
    torch.testing.assert_close(keys.flatten(0, 1)[5], key[1])
    assert int(values.flatten(0, 1).isnan().any(-1).any(-1).sum()) == 10


def test_no_tokens_write_nothing() -> None:
    q, keys, _, _, _ = run_store(0, [])
    assert q.shape == (0, 5, 6) and keys.isnan().all()
