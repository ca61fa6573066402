"""Who is let in: a bounded number of requests, none any more once the server stops. Knows no route and no engine."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable

from .errors import ApiError

WINDOW = 128  # ends that the rate is estimated from
LONGEST_S = 300  # that a client is told to stay away
UNKNOWN_S = 5  # where nothing has ended yet, so that no rate is known


class QueueAdmission:
    """Counts the requests that are with the engine.

    Args:
        max_running: requests that the engine runs at once.
        max_queue: requests that may wait beyond them; None: any number.
        clock: seconds.

    Attributes:
        in_flight: requests that are let in and have not ended.
        admitted: requests let in since the start.
        refused: HTTP requests turned away since the start, by why: full, stopping.
    """

    def __init__(
        self, max_running: int, max_queue: int | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._capacity = None if max_queue is None else max_running + max_queue
        self._clock = clock
        self._ends: deque[float] = deque(maxlen=WINDOW)
        self._is_stopping = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.in_flight = 0
        self.admitted = 0
        self.refused = {"full": 0, "stopping": 0}

    @property
    def is_stopping(self) -> bool:
        """Whether nobody is let in any more."""
        return self._is_stopping

    def enter(self, num_requests: int) -> Callable[[], None]:
        """Let so many requests in; returns what gives their places back, which is called once.

        Raises:
            ApiError: 503 when stopping; 429 with Retry-After when full; 400 where an empty queue could not hold them.
        """
        if self._is_stopping:
            self.refused["stopping"] += 1
            raise ApiError(503, "the server is stopping; send the request again, to another one or later",
                           code="stopping", headers={"Retry-After": "1"})  # fmt: skip
        if self._capacity is not None:
            self._check_room(num_requests, self._capacity)
        self.admitted += num_requests
        self.in_flight += num_requests
        self._idle.clear()
        is_in = True

        def leave() -> None:
            nonlocal is_in
            if is_in:
                is_in = False
                self._leave(num_requests)

        return leave

    def stop(self) -> None:
        """Let nobody in from here on."""
        self._is_stopping = True

    async def wait_idle(self) -> None:
        """Wait until every request that was let in has ended."""
        await self._idle.wait()

    def retry_after_s(self, num_ends: int) -> int:
        """Whole seconds until so many requests may have ended, at the rate of the last ones."""
        if not self._ends:
            return UNKNOWN_S
        span = max(self._clock() - self._ends[0], 1e-3)  # up to now: while nothing ends the estimate grows
        return max(1, min(LONGEST_S, math.ceil(num_ends * span / len(self._ends))))

    def _check_room(self, num_requests: int, capacity: int) -> None:
        if num_requests > capacity:
            raise ApiError(400, f"{num_requests} requests in one call, of {capacity} that are held; send fewer prompts",
                           param="prompt", code="invalid_value")  # fmt: skip
        excess = self.in_flight + num_requests - capacity
        if excess > 0:
            self.refused["full"] += 1
            seconds = self.retry_after_s(excess)
            raise ApiError(
                429, f"the server holds {self.in_flight} requests of {capacity} that it may; try again in {seconds} s",
                kind="rate_limit_error", code="queue_full", headers={"Retry-After": str(seconds)},
            )  # fmt: skip

    def _leave(self, num_requests: int) -> None:
        now = self._clock()
        self._ends.extend([now] * num_requests)
        self.in_flight -= num_requests
        if not self.in_flight:
            self._idle.set()
