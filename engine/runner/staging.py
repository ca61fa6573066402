"""Host arrays onto the device: all of a call in one copy that the host doesn't wait for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

_ALIGN = 16  # bytes: every dtype may be viewed at such an offset
_DTYPES = {
    np.dtype(np.int64): torch.int64,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.bool_): torch.bool,
}

Array = npt.NDArray[np.generic]


class Staging:
    """Sends arrays to a device.

    A copy out of pageable memory makes the host wait for all work on the stream; one out of pinned memory does not.
    Pinned buffers come from torch's caching host allocator, which reuses one only after its copy is done.

    Args:
        device: where to.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def send(self, *arrays: Array) -> list[torch.Tensor]:
        """The arrays as tensors on the device, with their shapes and dtypes. On a CPU they share the arrays' memory."""
        if self.device.type == "cpu":
            return [torch.from_numpy(array) for array in arrays]
        starts, size = [], 0
        for array in arrays:
            starts.append(size)
            size += -(-array.nbytes // _ALIGN) * _ALIGN
        pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        host = pinned.numpy()
        for start, array in zip(starts, arrays, strict=True):
            host[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        there = pinned.to(self.device, non_blocking=True)
        return [
            there[start : start + array.nbytes].view(_DTYPES[array.dtype]).view(array.shape)
            for start, array in zip(starts, arrays, strict=True)
        ]
