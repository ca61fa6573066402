"""Copies of a step's results to the host that don't wait for the steps launched after it, and the step's time."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from ...kernels.logprobs import Logprobs


class Readback:
    """Transfers of one step, from its launch until it is collected.

    Created when the step begins; `tensor` and `logprobs` enqueue copies into pinned memory; `seal` ends the step;
    `wait` makes the copies readable. On a CPU everything is done when enqueued.

    Args:
        device: where the step runs.
        waited: nanoseconds spent in collectives so far, [1] int64 on `device`; None where there are none.
    """

    def __init__(self, device: torch.device, waited: Callable[[], torch.Tensor] | None = None) -> None:
        self._waited = waited
        self._collective_ns: torch.Tensor | int = 0
        self._events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
        self._began = time.monotonic_ns()
        self._elapsed = 0
        if device.type == "cuda":
            self._events = (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            self._events[0].record()

    def tensor(self, value: torch.Tensor) -> torch.Tensor:
        """The tensor as it will be on the host after `wait`."""
        if self._events is None:
            return value
        return torch.empty(value.shape, dtype=value.dtype, pin_memory=True).copy_(value, non_blocking=True)

    def logprobs(self, value: Logprobs) -> Logprobs:
        """Likewise for log-probabilities."""
        return Logprobs(
            self.tensor(value.chosen),
            self.tensor(value.ranks),
            self.tensor(value.top_ids),
            self.tensor(value.top_logprobs),
        )

    def seal(self) -> None:
        """Nothing more will be enqueued."""
        if self._waited is not None:
            self._collective_ns = self.tensor(self._waited())
        if self._events is None:
            self._elapsed = time.monotonic_ns() - self._began
        else:
            self._events[1].record()

    def is_done(self) -> bool:
        """Whether `wait` would not wait."""
        return self._events is None or self._events[1].query()

    def wait(self) -> int:
        """Wait until the step is done; its nanoseconds on the device (on a CPU, those of its launch)."""
        if self._events is None:
            return self._elapsed
        self._events[1].synchronize()
        return int(self._events[0].elapsed_time(self._events[1]) * 1e6)

    def collective_ns(self) -> int:
        """Nanoseconds that this rank had spent in collectives by the step's end; readable after `wait`."""
        return int(self._collective_ns)
