"""Sampling parameters by the handful, for tests on the CPU, under the interpreter and on a GPU."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from nanolens.kernels.sampling import SamplingTensors

# Every filter alone and together; temperatures that make the distribution flat, so that filters have work to do.
FILTERS: list[dict[str, float]] = [
    {"top_k": 1},
    {"top_k": 5, "temperature": 0.5},
    {"top_k": 40, "temperature": 50.0},
    {"top_p": 0.8, "temperature": 2.0},
    {"top_p": 0.1, "temperature": 50.0},
    {"top_p": 1e-9, "temperature": 50.0},
    {"min_p": 0.1, "temperature": 1.5},
    {"min_p": 1.0, "temperature": 1.5},
    {"top_k": 20, "top_p": 0.95, "temperature": 0.6},
    {"top_k": 20, "top_p": 0.3, "temperature": 50.0},
    {"top_k": 30, "top_p": 0.7, "min_p": 0.2, "temperature": 3.0},
    {"top_k": 5, "top_p": 0.5, "temperature": 1e-38},
]


def make_params(
    rows: int,
    *,
    temperature: float = 1.0,
    top_k: float = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    device: str = "cpu",
) -> SamplingTensors:
    """The same parameters for all rows; seeds of 64 bits and positions of 32, drawn from `seed`; all flags set."""
    generator = torch.Generator().manual_seed(seed)
    return SamplingTensors(
        torch.full((rows,), temperature, device=device),
        torch.full((rows,), int(top_k), device=device),
        torch.full((rows,), top_p, device=device),
        torch.full((rows,), min_p, device=device),
        torch.randint(-(2**63), 2**63 - 1, (rows,), generator=generator).to(device),
        torch.randint(0, 2**32, (rows,), generator=generator).to(device),
    )


def join_params(parts: list[SamplingTensors]) -> SamplingTensors:
    """Rows of several parameter sets, one after the other."""

    def column(name: str) -> Tensor:
        return torch.cat([getattr(part, name) for part in parts])

    return SamplingTensors(
        column("temperature"),
        column("top_k"),
        column("top_p"),
        column("min_p"),
        column("seeds"),
        column("positions"),
    )


def mixed_params(rows: int, device: str = "cpu") -> SamplingTensors:
    """Greedy rows among warm, hot and cold ones, without filters."""
    heats = (0.0, 1.0, 30.0, 0.4, 1e-45)
    params = make_params(rows, seed=rows, device=device)
    temperature = torch.tensor([heats[row % 5] for row in range(rows)], device=device)
    return replace(params, temperature=temperature, any_top_k=False, any_top_p=False, any_min_p=False)


def chi_square(counts: Tensor, probabilities: Tensor) -> float:
    """Of observed counts against probabilities, all above 0; in float64."""
    expected = probabilities.double() * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())
