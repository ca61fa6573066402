"""A decode step's inputs filled from the running batch: in torch by known values, in interpreted Triton against it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from triton_interpreter import load_interpreter

load_interpreter()

from nanolens.kernels.decode_inputs import DecodeInputs, torch_fill_decode_inputs  # noqa: E402
from nanolens.kernels.triton_decode_inputs import fill_decode_inputs  # noqa: E402

UNTOUCHED = -7
OUTPUTS = ("input_ids", "positions", "slots", "context_lens", "temperature", "seeds", "sample_positions")


def make_inputs(rows: list[int], starts: list[int], spare: int = 0) -> DecodeInputs:
    """Inputs with room for `spare` sequences more, whose control entries name row 0 and position 3."""
    control = torch.tensor([rows + [0] * spare, starts + [3] * spare], dtype=torch.int32)
    inputs = DecodeInputs.empty(control)
    for name in OUTPUTS:
        getattr(inputs, name).fill_(UNTOUCHED)
    return inputs


@pytest.mark.parametrize("fill", [torch_fill_decode_inputs, fill_decode_inputs])
def test_known_values(fill: Callable[..., None]) -> None:
    inputs = make_inputs(rows=[2, 0, 1, 3], starts=[5, 3, 0, -1], spare=5).head(4)
    last_tokens = torch.tensor([11, -1, 49151, -1])
    tables = torch.tensor([[7, 1 << 30], [2, 1 << 30], [9, 6], [1 << 30, 1 << 30]], dtype=torch.int32)
    temperature, seeds = torch.tensor([0.5, 0.0, 1.25, 0.75]), torch.tensor([1 << 40, -3, 0, 8])
    fill(inputs, last_tokens, tables, temperature, seeds, 4)
    assert inputs.input_ids.tolist() == [49151, 11, 0, 0]  # no valid token counts as 0
    assert inputs.positions.tolist() == [5, 3, 0, 0]
    assert inputs.slots.tolist() == [6 * 4 + 1, 7 * 4 + 3, 2 * 4, -1]
    assert inputs.context_lens.tolist() == [6, 4, 1, 0]
    assert inputs.temperature.tolist() == [1.25, 0.5, 0.0, 0.75]
    assert inputs.seeds.tolist() == [0, 1 << 40, -3, 8]
    assert inputs.sample_positions.tolist() == [6, 4, 1, 0]
    assert inputs.rows.tolist() == [2, 0, 1, 3] and inputs.starts.tolist() == [5, 3, 0, -1]


@pytest.mark.parametrize("page", [1, 16, 17])
@pytest.mark.parametrize("size", [1, 63, 64, 65, 150])
def test_triton_fills_what_torch_fills_and_nothing_beyond(size: int, page: int) -> None:
    generator = torch.Generator().manual_seed(size * 32 + page)

    def draw(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator)

    batch, columns = 40, 6
    rows, starts = draw(0, batch, size).tolist(), draw(-1, columns * page, size).tolist()
    starts[-1], rows[-1] = columns * page - 1, batch - 1  # the last token of the last page of the last row
    starts[size // 3 : size // 2] = [-1] * (size // 2 - size // 3)
    tables = draw(0, 1 << 30, batch, columns + 3).int()[:, :columns]  # slots of more than 32 bits
    last_tokens = draw(-1, 3, batch)
    state = last_tokens, tables, torch.rand(batch, generator=generator), draw(-(1 << 62), 1 << 62, batch)
    ours, theirs = make_inputs(rows, starts, spare=5), make_inputs(rows, starts, spare=5)
    fill_decode_inputs(ours.head(size), *state, page)
    torch_fill_decode_inputs(theirs.head(size), *state, page)
    for name in OUTPUTS:
        got = getattr(ours, name)
        assert got.tolist() == getattr(theirs, name).tolist(), name
        assert (got[size:] == UNTOUCHED).all(), name
    padding = ours.starts[:size] < 0
    assert (ours.slots[:size][padding] == -1).all() and (ours.context_lens[:size][padding] == 0).all()
    assert (ours.input_ids[:size] >= 0).all()
