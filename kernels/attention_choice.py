"""Which attention backend runs, by device, dtype, page size and head size.

Knows what each can do, and imports a package only to see whether it can be imported.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Literal

import torch

from ..errors import InvalidConfig

Backend = Literal["torch", "triton", "flash"]

_MAX_HEAD_DIM = 256  # of both GPU backends: a tile of keys and values must fit the multiprocessor's shared memory
_FLASH_PAGE = 256
_FLASH_DTYPES = (torch.float16, torch.bfloat16)
_TRITON_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def choose_attention(
    requested: str, device: torch.device, dtype: torch.dtype, block_size: int, head_dim: int
) -> Backend:
    """Give the backend to run.

    "auto" takes the Triton kernels on a GPU, which measure faster there than flash-attn 2 (docs/performance.md), and
    flash-attn where they can't run; torch elsewhere.

    Args:
        requested: "auto", "torch", "triton" or "flash".
        device: where the pages are.
        dtype: of queries and pages.
        block_size: tokens in a page.
        head_dim: D.

    Raises:
        InvalidConfig: what was asked for doesn't fit, or on a GPU nothing fast does; it says what to change.
    """
    if requested not in ("auto", *_MISFITS):
        raise InvalidConfig(f"attention={requested!r}: must be one of auto, {', '.join(_MISFITS)}")
    if requested == "auto" and device.type != "cuda":
        return "torch"
    if requested == "auto" and _MISFITS["triton"](device, dtype, block_size, head_dim) is not None:
        if _MISFITS["flash"](device, dtype, block_size, head_dim) is None:
            return "flash"
    name: Backend = "triton" if requested == "auto" else requested  # type: ignore[assignment]  # checked above
    misfit = _MISFITS[name](device, dtype, block_size, head_dim)
    if misfit is not None:
        raise InvalidConfig(f"attention={requested!r}: {misfit}")
    return name


def _flash_misfit(device: torch.device, dtype: torch.dtype, block_size: int, head_dim: int) -> str | None:
    """Why flash-attn can't run, and what to change; None: it can."""
    if device.type != "cuda":
        return f"flash-attn needs an NVIDIA GPU, the device is {device.type}: use attention='torch'"
    if dtype not in _FLASH_DTYPES:
        return (
            f"flash-attn computes in float16 and bfloat16, not {_name(dtype)}: change dtype, or use attention='triton'"
        )
    if block_size % _FLASH_PAGE:
        return (
            f"flash-attn's pages are multiples of {_FLASH_PAGE} tokens, block_size={block_size} is not: "
            f"set block_size={_FLASH_PAGE}, or use attention='triton', which takes any"
        )
    if head_dim % 8 or head_dim > _MAX_HEAD_DIM:
        return (
            f"flash-attn takes head sizes that are multiples of 8 up to {_MAX_HEAD_DIM}, this model's is {head_dim}: "
            "use attention='triton' or 'torch'"
        )
    if torch.cuda.is_available() and torch.cuda.get_device_capability(device) < (8, 0):
        return "flash-attn needs compute capability 8.0 (Ampere) or newer: use attention='triton'"
    return _import_error("flash-attn", "the extra nanolens[flash]", "attention='triton'")


@cache
def _import_error(package: str, extra: str, instead: str) -> str | None:
    """What is wrong with a package; None: it can be imported. Of flash-attn only importing it tells."""
    try:
        import_module(package.replace("-", "_"))
    except (ImportError, OSError) as error:
        return (
            f"the package {package} can't be imported ({error}): install one that fits torch {torch.__version__} with "
            f"`pip install {package}` ({extra}), or use {instead}"
        )
    return None


def _triton_misfit(device: torch.device, dtype: torch.dtype, block_size: int, head_dim: int) -> str | None:
    """Why the Triton kernels can't run, and what to change; None: they can."""
    if device.type != "cuda":
        return f"the Triton kernels need a GPU, the device is {device.type}: use attention='torch'"
    if dtype not in _TRITON_DTYPES:
        return f"the Triton kernels take float16, bfloat16 and float32, not {_name(dtype)}: change dtype"
    if head_dim > _MAX_HEAD_DIM:
        return (
            f"the Triton kernels take head sizes up to {_MAX_HEAD_DIM}, this model's is {head_dim}: "
            "use attention='torch', which is slow on a GPU"
        )
    return _import_error("triton", "the extra nanolens[gpu]", "attention='torch', which is slow")


def _torch_misfit(device: torch.device, dtype: torch.dtype, block_size: int, head_dim: int) -> str | None:
    """The reference runs everywhere."""
    return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


_MISFITS: dict[str, Callable[[torch.device, torch.dtype, int, int], str | None]] = {
    "torch": _torch_misfit,
    "triton": _triton_misfit,
    "flash": _flash_misfit,
}
