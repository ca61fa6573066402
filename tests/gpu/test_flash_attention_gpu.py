"""The flash-attn backend against float64: mixed batches, and decode steps in a CUDA graph."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paged_batches import RELATIVE_ERROR, PagedBatch, relative_error

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytest.importorskip("flash_attn", reason="needs flash-attn, which is not here", exc_type=ImportError)

from nanolens.kernels.attention import (  # noqa: E402
    build_metadata,
    choose_attention,
    decode_metadata,
    paged_attention,
)

MIXED = ([1, 1, 1, 200, 1, 70], [300, 1, 257, 200, 512, 400])


def attend(batch: PagedBatch, q: Tensor | None = None) -> Tensor:
    rows = batch.rows.tolist() if batch.rows is not None else None
    metadata = build_metadata(batch.block_tables, batch.query_lens, batch.contexts, batch.block_size, rows, "flash")
    q = batch.q if q is None else q
    return paged_attention(q, batch.key_cache, batch.value_cache, metadata, batch.scale)


def finite(batch: PagedBatch) -> PagedBatch:
    """The package multiplies what lies in a page behind the context by 0: there it must be finite, as in the engine."""
    batch.key_cache.nan_to_num_()
    batch.value_cache.nan_to_num_()
    return batch


def test_it_runs_where_it_is_asked_for() -> None:
    assert choose_attention("flash", torch.device("cuda"), torch.bfloat16, 256, 128) == "flash"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("extra_tables", [0, 3])
def test_mixed_batches(head_dim: int, dtype: torch.dtype, extra_tables: int) -> None:
    batch = finite(PagedBatch(*MIXED, 256, 2, 3, head_dim, dtype, "cuda", extra_tables, strided=True))
    assert relative_error(attend(batch), batch.expected()) < RELATIVE_ERROR[dtype]


@pytest.mark.parametrize(("query_lens", "contexts"), [([1, 1], [300, 5]), ([2, 300], [2, 900]), ([9, 1], [9, 600])])
def test_pure_batches_and_decodes_behind_prefills(query_lens: list[int], contexts: list[int]) -> None:
    batch = finite(PagedBatch(query_lens, contexts, 256, 2, 2, 128, torch.bfloat16, "cuda"))
    assert relative_error(attend(batch), batch.expected()) < 1e-2


def test_padding_tokens_get_zeros() -> None:
    batch = finite(PagedBatch(*MIXED, 256, 2, 2, 128, torch.bfloat16, "cuda"))
    out = attend(batch, torch.cat([batch.q, torch.full_like(batch.q[:5], torch.nan)]))
    assert relative_error(out[:-5], batch.expected()) < 1e-2
    assert torch.equal(out[-5:], torch.zeros_like(out[-5:]))


def test_static_decodes_in_a_graph_follow_their_tensors() -> None:
    batch = finite(PagedBatch([1, 1, 1], [300, 9, 700], 256, 4, 2, 128, torch.bfloat16, "cuda", extra_tables=2))
    assert batch.rows is not None
    contexts, rows = torch.zeros_like(batch.context_lens), torch.zeros_like(batch.rows)
    metadata = decode_metadata(batch.block_tables, rows, contexts, 256, 1024, "flash")

    def step() -> Tensor:
        return paged_attention(batch.q, batch.key_cache, batch.value_cache, metadata, batch.scale)

    assert torch.equal(step(), torch.zeros_like(batch.q))  # padding rows
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    contexts.copy_(batch.context_lens)
    rows.copy_(batch.rows)
    graph.replay()
    assert relative_error(out, batch.expected()) < 1e-2
