"""The compiled decode attention against float64, alone, in CUDA graphs, and beyond 2^31 elements of pages."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from decode_rows import DecodeRows, make_rows, relative_error

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)
pytest.importorskip("triton", reason="needs triton, which is not here")

from nanolens.kernels.triton_decode_attention import decode_attention  # noqa: E402

BOUNDS = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 1e-2}
RAGGED = [1, 16, 0, 129, 128, 127, 1000, 5, 2048, 333]


def attend(rows: DecodeRows, **options: int | bool | None) -> Tensor:
    return decode_attention(rows.q, rows.keys, rows.values, rows.tables, None, rows.contexts, rows.scale, **options)


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("splits", [None, 1, 7])
def test_every_head_dim_and_dtype(head_dim: int, dtype: torch.dtype, splits: int | None) -> None:
    rows = make_rows(RAGGED, head_dim=head_dim, dtype=dtype, device="cuda", seed=head_dim)
    assert relative_error(attend(rows, num_splits=splits), rows.expected) < BOUNDS[dtype]


@pytest.mark.parametrize(("num_kv_heads", "group"), [(1, 1), (3, 3), (2, 7), (8, 2), (1, 8), (4, 16), (1, 24)])
@pytest.mark.parametrize("page", [16, 48, 256])
def test_every_group_and_page(num_kv_heads: int, group: int, page: int) -> None:
    rows = make_rows(RAGGED, page, num_kv_heads, group, 128, torch.bfloat16, "cuda", seed=page + group)
    assert relative_error(attend(rows), rows.expected) < 1e-2


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
def test_full_batches_take_other_settings(head_dim: int, dtype: torch.dtype) -> None:
    rows = make_rows([*range(1, 161)], 16, 8, 2, head_dim, dtype, "cuda", seed=head_dim)
    assert relative_error(attend(rows), rows.expected) < BOUNDS[dtype]


@pytest.mark.parametrize("dependent", [False, True])
def test_a_graph_follows_lengths_and_tables_that_change(dependent: bool) -> None:
    if dependent and torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("dependent launches need compute capability 9")
    first, second = (make_rows(lengths, seed=s, device="cuda") for s, lengths in enumerate([[900, 3, 0], [1, 0, 1000]]))
    columns = max(first.tables.shape[1], second.tables.shape[1])
    pages = max(first.keys.shape[0], second.keys.shape[0])
    buffers = DecodeRows(
        torch.zeros_like(first.q),
        torch.zeros(pages, *first.keys.shape[1:], device="cuda"),
        torch.zeros(pages, *first.keys.shape[1:], device="cuda"),
        torch.zeros(3, columns, dtype=torch.int32, device="cuda"),
        torch.zeros_like(first.contexts),
        first.scale,
        first.expected,
    )
    attend(buffers, num_splits=8, dependent=dependent)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend(buffers, num_splits=8, dependent=dependent)
    for rows in (first, second, first):
        buffers.q.copy_(rows.q)
        buffers.keys[: len(rows.keys)] = rows.keys
        buffers.values[: len(rows.values)] = rows.values
        buffers.tables[:, : rows.tables.shape[1]] = rows.tables
        buffers.contexts.copy_(rows.contexts)
        out.fill_(torch.nan)
        for _ in range(20):
            graph.replay()
        assert relative_error(out, rows.expected) < 1e-5


def test_pages_beyond_two_to_the_31_elements() -> None:
    rows = make_rows([40, 200], num_kv_heads=8, group=2, head_dim=128, dtype=torch.bfloat16, device="cuda")
    far = (2**31 // rows.keys[0].numel()) + 3
    keys = torch.empty(far + len(rows.keys), *rows.keys.shape[1:], dtype=torch.bfloat16, device="cuda")
    values = torch.empty_like(keys)
    keys[far:], values[far:] = rows.keys, rows.values
    tables = torch.where(rows.tables < 2**30, rows.tables + far, rows.tables)
    got = decode_attention(rows.q, keys, values, tables, None, rows.contexts, rows.scale)
    assert relative_error(got, rows.expected) < 1e-2
