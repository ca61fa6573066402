"""`fill_decode_inputs` in Triton: one launch for what would be a dozen tiny ones."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .decode_inputs import DecodeInputs
from .triton_launch import launch

_BLOCK = 64


@triton.jit
def _fill(
    rows_ptr,
    starts_ptr,
    last_tokens_ptr,
    tables_ptr,
    temperature_by_row_ptr,
    seeds_by_row_ptr,
    input_ids_ptr,
    positions_ptr,
    slots_ptr,
    context_lens_ptr,
    temperature_ptr,
    seeds_ptr,
    sample_positions_ptr,
    size,
    table_stride,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < size
    row = tl.load(rows_ptr + index, mask=inside, other=0).to(tl.int64)
    start = tl.load(starts_ptr + index, mask=inside, other=-1).to(tl.int64)
    position = tl.maximum(start, 0)
    page = tl.load(tables_ptr + row * table_stride + position // PAGE, mask=inside, other=0).to(tl.int64)
    slot = tl.where(start < 0, -1, page * PAGE + position % PAGE)
    token = tl.load(last_tokens_ptr + row, mask=inside, other=0)
    tl.store(input_ids_ptr + index, tl.maximum(token, 0), mask=inside)
    tl.store(positions_ptr + index, position, mask=inside)
    tl.store(slots_ptr + index, slot, mask=inside)
    tl.store(context_lens_ptr + index, (start + 1).to(tl.int32), mask=inside)
    tl.store(temperature_ptr + index, tl.load(temperature_by_row_ptr + row, mask=inside, other=0.0), mask=inside)
    tl.store(seeds_ptr + index, tl.load(seeds_by_row_ptr + row, mask=inside, other=0), mask=inside)
    tl.store(sample_positions_ptr + index, start + 1, mask=inside)


def fill_decode_inputs(
    inputs: DecodeInputs, last_tokens: Tensor, block_tables: Tensor, temperature: Tensor, seeds: Tensor, block_size: int
) -> None:
    """See kernels/decode_inputs.py."""
    size = inputs.rows.shape[0]
    launch(_fill, (triton.cdiv(size, _BLOCK),),
        inputs.rows,
        inputs.starts,
        last_tokens,
        block_tables,
        temperature,
        seeds,
        inputs.input_ids,
        inputs.positions,
        inputs.slots,
        inputs.context_lens,
        inputs.temperature,
        inputs.seeds,
        inputs.sample_positions,
        size,
        block_tables.stride(0),
        PAGE=block_size,
        BLOCK=_BLOCK,
    )
