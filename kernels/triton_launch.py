"""Starting a Triton kernel before the one ahead of it in the stream has ended (programmatic dependent launch).

Such a kernel may read constants, weights above all, at once; it waits before it touches what earlier kernels write or
read. A kernel that lets its successor start early also waits itself: to wait for one is to wait for all before it.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def start_next(EARLY: tl.constexpr):
    """Let the next kernel's programs start as soon as there is room for them."""
    if EARLY:
        gdc_launch_dependents()


@triton.jit
def wait_for_inputs(EARLY: tl.constexpr):
    """Wait until all earlier kernels have ended and what they wrote can be read."""
    if EARLY:
        gdc_wait()


def launches_early(x: Tensor) -> bool:
    """Whether the device of `x` supports it: NVIDIA from Hopper (compute capability 9.0) on."""
    return x.is_cuda and _supported(x.device)


@cache
def _supported(device: torch.device) -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)
