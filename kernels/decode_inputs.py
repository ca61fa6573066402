"""A decode step's inputs, worked out on the device from the running batch there. Knows rows, not sequences."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .dispatch import on_gpu


@dataclass(frozen=True)
class DecodeInputs:
    """Static tensors of a decode step of up to B sequences; padding has context length 0 and slot -1.

    Attributes:
        rows: [B] int32, the row of each sequence in the running batch; the last row is the padding's.
        starts: [B] int32, the position that each computes; -1: padding.
        input_ids: [B] int64.
        positions: [B] int64.
        slots: [B] int64.
        context_lens: [B] int32, this step's token included.
        temperature: [B] float32.
        seeds: [B] int64.
        sample_positions: [B] int64, of the token that will be sampled.
    """

    rows: Tensor
    starts: Tensor
    input_ids: Tensor
    positions: Tensor
    slots: Tensor
    context_lens: Tensor
    temperature: Tensor
    seeds: Tensor
    sample_positions: Tensor

    @classmethod
    def empty(cls, control: Tensor) -> DecodeInputs:
        """On a control tensor [2, B] int32 whose rows are `rows` and `starts`; the host writes it in one copy."""
        size, device = control.shape[1], control.device

        def zeros(dtype: torch.dtype) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        return cls(
            rows=control[0],
            starts=control[1],
            input_ids=zeros(torch.int64),
            positions=zeros(torch.int64),
            slots=zeros(torch.int64),
            context_lens=zeros(torch.int32),
            temperature=zeros(torch.float32),
            seeds=zeros(torch.int64),
            sample_positions=zeros(torch.int64),
        )

    def head(self, size: int) -> DecodeInputs:
        """The first `size` sequences, on the same memory."""
        return DecodeInputs(*(getattr(self, name)[:size] for name in self.__dataclass_fields__))


def fill_decode_inputs(
    inputs: DecodeInputs, last_tokens: Tensor, block_tables: Tensor, temperature: Tensor, seeds: Tensor, block_size: int
) -> None:
    """Fill everything from `rows` and `starts`.

    Args:
        inputs: of the step; written.
        last_tokens: [R] int64, the token sampled last for each row; below 0 (none valid) counts as 0.
        block_tables: [R, M] int32.
        temperature: [R] float32.
        seeds: [R] int64.
        block_size: tokens in a page.
    """
    if inputs.rows.is_cuda:
        on_gpu("triton_decode_inputs", "fill_decode_inputs")(
            inputs, last_tokens, block_tables, temperature, seeds, block_size
        )
        return
    torch_fill_decode_inputs(inputs, last_tokens, block_tables, temperature, seeds, block_size)


def torch_fill_decode_inputs(
    inputs: DecodeInputs, last_tokens: Tensor, block_tables: Tensor, temperature: Tensor, seeds: Tensor, block_size: int
) -> None:
    """`fill_decode_inputs` in torch."""
    rows, starts = inputs.rows.long(), inputs.starts.long()
    positions = starts.clamp(min=0)
    pages = block_tables[rows, positions // block_size].long()
    slots = pages * block_size + positions % block_size
    inputs.input_ids.copy_(last_tokens[rows].clamp(min=0))
    inputs.positions.copy_(positions)
    inputs.slots.copy_(torch.where(starts < 0, -1, slots))
    inputs.context_lens.copy_(starts + 1)
    inputs.temperature.copy_(temperature[rows])
    inputs.seeds.copy_(seeds[rows])
    inputs.sample_positions.copy_(starts + 1)
