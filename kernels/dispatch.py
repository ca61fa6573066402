"""Where the GPU versions of the operations come from. Triton is imported at the first call on a GPU, never before."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from ..errors import InvalidConfig


@cache
def on_gpu(module: str, name: str) -> Callable[..., Any]:
    """A function of one of this folder's GPU modules; it takes what the operation of that name takes.

    Args:
        module: file without its ending, `triton_norm`.
        name: of the function.

    Raises:
        InvalidConfig: Triton can't be imported.
    """
    try:
        import_module("triton")
    except (ImportError, OSError) as error:
        raise InvalidConfig(
            f"the model is on a GPU, whose kernels need Triton, and importing Triton failed ({error}): install it "
            "with `pip install triton` (the extra nanolens[gpu] brings it), or run with device='cpu'"
        ) from error
    function: Callable[..., Any] = getattr(import_module(f".{module}", __package__), name)
    return function
