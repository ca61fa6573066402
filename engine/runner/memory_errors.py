"""Tells a shortage of memory from other faults, whichever library met it."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ...errors import OutOfDeviceMemory

_PHRASES = ("can't allocate memory", "out of memory", "ALLOC_FAILED")  # allocators of CPUs, CUDA and its libraries


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory was short, on the device or of the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _PHRASES)


@contextmanager
def out_of_device_memory(device: torch.device, what: str) -> Iterator[None]:
    """Turn a shortage of memory within the block into OutOfDeviceMemory, once the block's tensors are given back.

    Raises:
        OutOfDeviceMemory: `what` did not fit.
    """
    try:
        yield
    except BaseException as error:
        if not is_out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)  # they hold tensors
        if device.type == "cuda":
            torch.cuda.empty_cache()
        raise OutOfDeviceMemory(f"{what} does not fit into the memory of {device}: {error}") from error
