"""Launching Triton kernels: with little work on the host, and before the kernel ahead has ended.

`launch` does what `kernel[grid](...)` does, and remembers the compiled kernel. A kernel that starts before the one
ahead of it in the stream has ended (programmatic dependent launch) may read constants, weights above all, at once; it
waits before it touches what earlier kernels write or read. One that lets its successor start early also waits itself:
to wait for one is to wait for all before it.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
from __future__ import annotations

from functools import cache
from typing import Any

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


# Launchers whose interface this file knows; with others every launch goes the long way.
_KNOWN = triton.__version__.startswith("3.6.")
_compiled: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """`kernel[grid](*args, **options)`, the compiled kernel of an earlier launch of the same kind being used again.

    Triton finds it anew at each launch, which takes longer than the kernel itself runs on the device where the host
    is slow. What tells compiled kernels apart is looked at here too: dtypes, 16-byte alignment, and of whole numbers
    whether they are 1, multiples of 16, or longer than 32 bits.

    Args:
        kernel: a `triton.jit` function whose constants come after its other parameters.
        grid: one to three numbers of programs.
        args: its parameters that are not constants, in order.
        options: its constants, and Triton's own options, by name.
    """
    if not _KNOWN or not hasattr(kernel, "device_caches"):  # the latter: the interpreter
        kernel[grid](*args, **options)
        return
    device = torch.cuda.current_device()
    key = (id(kernel), device, tuple(map(_kind, args)), tuple(options.items()))
    found = _compiled.get(key)
    if found is None:
        compiled = kernel[grid](*args, **options)
        defaults = {name: each.default for name, each in kernel.signature.parameters.items()}
        constants = tuple(options.get(name, defaults[name]) for name in kernel.arg_names[len(args) :])
        _compiled[key] = (compiled, constants)
        return
    compiled, constants = found
    width, height, depth = (*grid, 1, 1)[:3]
    stream = torch._C._cuda_getCurrentRawStream(device)
    compiled.run(
        width, height, depth, stream, compiled.function, compiled.packed_metadata, None, None, None, *args, *constants
    )


def _kind(value: Any) -> Any:
    """What a compiled kernel assumes of a parameter."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() & 15 == 0
    if isinstance(value, int):
        return 1 if value == 1 else (value & 15 == 0, -(1 << 31) <= value < 1 << 31)
    return type(value)
