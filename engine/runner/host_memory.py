"""Main memory that a device copies from and to by itself: pinned on a GPU. Knows nothing of blocks."""

from __future__ import annotations

import mmap

import torch

from ...errors import InvalidConfig
from .kv_cache import available_memory

_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every context of the process


class HostMemory:
    """Bytes of main memory, pinned where `device` is a GPU.

    Mapped on its own and then pinned, because torch's pinned allocations round up to a power of two and are kept by
    its cache when they are freed.

    Args:
        num_bytes: at least 1.
        device: what will copy from and to it.
        purpose: the setting that asked for it, for the message.

    Attributes:
        bytes: [num_bytes] uint8; invalid after `close`.

    Raises:
        InvalidConfig: there is not so much memory, or it can't be pinned.
    """

    def __init__(self, num_bytes: int, device: torch.device, purpose: str) -> None:
        self._pinned = False
        free = available_memory()
        if num_bytes > free:
            raise InvalidConfig(f"{purpose}: needs {num_bytes >> 20} MiB of main memory, {free >> 20} MiB are free")
        try:
            mapped = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError, ValueError) as error:
            raise InvalidConfig(f"{purpose}: {num_bytes >> 20} MiB of main memory can't be had: {error}") from error
        self.bytes = torch.frombuffer(mapped, dtype=torch.uint8)  # keeps the mapping alive
        if device.type == "cuda":
            self._pin(purpose)

    def _pin(self, purpose: str) -> None:
        runtime = torch.cuda.cudart()
        status = runtime.cudaHostRegister(self.bytes.data_ptr(), self.bytes.nbytes, _PORTABLE)
        if status != runtime.cudaError.success:
            raise InvalidConfig(
                f"{purpose}: {self.bytes.nbytes >> 20} MiB of main memory can't be pinned ({status}); lower it, or "
                "raise the limit on locked memory"
            )
        self._pinned = True

    def close(self) -> None:
        """Give the memory back; nothing may be copying. A second call does nothing."""
        if self._pinned:
            self._pinned = False
            torch.cuda.cudart().cudaHostUnregister(self.bytes.data_ptr())
        self.bytes = torch.empty(0, dtype=torch.uint8)
