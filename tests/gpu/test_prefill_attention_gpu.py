"""The compiled prefill attention, and mixed batches through it, against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paged_batches import RELATIVE_ERROR, PagedBatch, relative_error
from poison import poisoned_memory

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytest.importorskip("triton", reason="needs triton, which is not here")

from nanolens.kernels.attention import build_metadata, decode_metadata, paged_attention  # noqa: E402
from nanolens.kernels.triton_prefill_attention import prefill_attention  # noqa: E402

RAGGED = ([0, 1, 300, 63, 2, 128, 129], [7, 500, 300, 1024, 17, 128, 640])


def check(batch: PagedBatch, **tunables: int) -> None:
    with poisoned_memory():
        out = prefill_attention(
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
    assert relative_error(out, batch.expected()) < RELATIVE_ERROR[batch.q.dtype]


def attend(batch: PagedBatch, q: Tensor | None = None) -> Tensor:
    rows = batch.rows.tolist() if batch.rows is not None else None
    metadata = build_metadata(batch.block_tables, batch.query_lens, batch.contexts, batch.block_size, rows, "triton")
    q = batch.q if q is None else q
    with poisoned_memory():
        return paged_attention(q, batch.key_cache, batch.value_cache, metadata, batch.scale)


@pytest.mark.parametrize("dtype", list(RELATIVE_ERROR))
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("longest", [30, 300])
def test_every_head_size_and_dtype(head_dim: int, dtype: torch.dtype, longest: int) -> None:
    lens = [min(longest, queries) for queries in RAGGED[0]]
    check(PagedBatch(lens, RAGGED[1], 16, 2, 2, head_dim, dtype, "cuda"))


@pytest.mark.parametrize("block_size", [16, 32, 48, 64, 128, 256])
@pytest.mark.parametrize("dtype", list(RELATIVE_ERROR))
def test_page_sizes(block_size: int, dtype: torch.dtype) -> None:
    check(PagedBatch(*RAGGED, block_size, 2, 2, 128, dtype, "cuda", extra_tables=3))


@pytest.mark.parametrize(("num_kv_heads", "group"), [(1, 1), (3, 3), (2, 7), (8, 2), (1, 16), (1, 71), (1, 130)])
def test_head_counts(num_kv_heads: int, group: int) -> None:
    check(PagedBatch(*RAGGED, 16, num_kv_heads, group, 64, torch.bfloat16, "cuda", strided=True))


def test_a_long_context_behind_a_short_chunk() -> None:
    check(PagedBatch([40, 500], [20_000, 9000], 16, 2, 4, 128, torch.bfloat16, "cuda"))


def test_pages_beyond_two_to_the_31_elements() -> None:
    batch = PagedBatch([200], [700], 16, 8, 2, 128, torch.bfloat16, "cuda")
    used, row = batch.key_cache.shape[0], batch.key_cache[0].numel()
    moved = 2**31 // row + 5
    expected = batch.expected()
    for name in ("key_cache", "value_cache"):
        cache = torch.empty(moved + used, *batch.key_cache.shape[1:], dtype=torch.bfloat16, device="cuda")
        cache[moved:] = getattr(batch, name)
        setattr(batch, name, cache)
    batch.block_tables += moved
    assert relative_error(attend(batch), expected) < 1e-2


@pytest.mark.parametrize("dtype", list(RELATIVE_ERROR))
@pytest.mark.parametrize("extra_tables", [0, 3])
def test_a_mixed_batch_with_padding(extra_tables: int, dtype: torch.dtype) -> None:
    batch = PagedBatch(
        [1, 1, 1, 200, 1, 70], [300, 1, 17, 200, 64, 400], 16, 4, 2, 128, dtype, "cuda", extra_tables=extra_tables
    )
    padded = torch.cat([batch.q, torch.full_like(batch.q[:5], torch.nan)])
    out = attend(batch, padded)
    assert relative_error(out[:-5], batch.expected()) < RELATIVE_ERROR[dtype]
    assert torch.equal(out[-5:], torch.zeros_like(out[-5:]))


def test_building_metadata_and_attending_never_wait_for_the_device() -> None:
    batch = PagedBatch([1, 1, 200], [300, 17, 400], 16, 4, 2, 128, torch.bfloat16, "cuda", extra_tables=2)
    attend(batch)
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        rows = [0, 1, 2]
        metadata = build_metadata(batch.block_tables, batch.query_lens, batch.contexts, 16, rows, "triton")
        paged_attention(batch.q, batch.key_cache, batch.value_cache, metadata, batch.scale)
    finally:
        torch.cuda.set_sync_debug_mode(before)


def test_static_decodes_in_a_graph_follow_their_tensors() -> None:
    batch = PagedBatch([1, 1, 1], [300, 9, 170], 16, 4, 2, 128, torch.bfloat16, "cuda", extra_tables=2)
    assert batch.rows is not None
    contexts, rows = torch.ones_like(batch.context_lens), torch.zeros_like(batch.rows)
    metadata = decode_metadata(batch.block_tables, rows, contexts, 16, 512)

    def step() -> Tensor:
        return paged_attention(batch.q, batch.key_cache, batch.value_cache, metadata, batch.scale)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    contexts.copy_(batch.context_lens)
    rows.copy_(batch.rows)
    graph.replay()
    assert relative_error(out, batch.expected()) < 1e-2
