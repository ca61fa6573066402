"""Replicas that give no sign of life: which they are, and the end of waiting for their answers. Knows no Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

from starlette.responses import Response

from .errors import ApiError, json_response
from .fleet_messages import HttpCall, Report
from .fleet_relay import Silent
from .fleet_view import FleetView

# For a replica to count as silent. Reports come four times a second, from an event loop that the engine's work leaves
# alone, and one that is lost is asked for anew after 5 s: a busy machine does not get here.
SILENT_S = 8.0
FRESH_S = 2.0  # for which what a replica has said of itself is taken as what holds
NO_SIGN = f"no sign of life for {SILENT_S:g} s"
T = TypeVar("T")


class Silence:
    """Looks after the replicas of a fleet, and after whoever waits for them.

    Args:
        fleet: told which replicas are silent.

    Attributes:
        seconds: for how long nothing has been heard of each replica: of those that have left the list, too, until
            somebody says that they are gone. What they were asked before, clients still wait for.
    """

    def __init__(self, fleet: FleetView) -> None:
        self.seconds: dict[str, float] = {}
        self._fleet = fleet
        self._heard: set[str] = set()
        self._reads: dict[asyncio.Timeout, HttpCall] = {}

    async def read(self, call: HttpCall, source: AsyncIterator[T]) -> AsyncIterator[T]:
        """What comes of a call; each piece is a sign of life.

        Raises:
            Silent: its replica counts as silent, and nothing has come.
        """
        while True:
            try:
                async with asyncio.timeout(None) as limit:
                    self._reads[limit] = call
                    try:
                        found = await anext(source)
                    finally:
                        self._reads.pop(limit, None)
            except StopAsyncIteration:
                return
            except TimeoutError:
                if limit.expired():
                    raise Silent(NO_SIGN) from None
                raise
            self.hear(holder(call))
            yield found

    def hear(self, replica: str) -> None:
        """A replica has given a sign of life, on the list or not. "": nobody knows which."""
        if replica:
            self._heard.add(replica)

    def forget(self, replica: str) -> None:
        """A replica that has left the list is gone: nobody waits for it any more."""
        self._heard.discard(replica)
        self.seconds.pop(replica, None)

    @property
    def left(self) -> list[str]:
        """Replicas that have left the list, and may still run."""
        return sorted(self.seconds.keys() - set(self._fleet.replicas))

    def look(self, seconds: float) -> None:
        """So much time has passed in which signs of life would have been seen: break off the reads that wait in vain.

        Args:
            seconds: less than what the clock says where the front itself stood still.
        """
        before, heard = self.seconds, self._heard
        known = before.keys() | heard | set(self._fleet.replicas)
        self.seconds = {name: 0.0 if name in heard else before.get(name, 0.0) + seconds for name in known}
        self._heard = set()
        silent = {name: f"no sign of life for {each:.0f} s" for name, each in self.seconds.items() if each >= SILENT_S}
        self._fleet.silent = silent
        now = asyncio.get_running_loop().time()
        for limit, call in list(self._reads.items() if silent else ()):
            if holder(call) in silent:
                del self._reads[limit]
                limit.reschedule(now)

    def is_fresh(self, replica: str) -> bool:
        """Whether a replica's last sign of life is recent."""
        return self.seconds.get(replica, 0.0) < FRESH_S

    def check(self, replica: str) -> None:
        """Refuse what only a silent replica could answer.

        Raises:
            ApiError: 503: it is one.
        """
        if replica in self._fleet.silent:
            raise ApiError(503, f"replica {replica} gives {NO_SIGN}; ask again later", code="replica_silent",
                           headers={"Retry-After": "1"})  # fmt: skip


def holder(call: HttpCall) -> str:
    """The replica that a call is with, or on its way to; "": not known yet."""
    return call.route.replica or next(iter(call.route.order), "") or call.pinned


def health(reports: Sequence[Report], reason: str, is_ready: bool) -> Response:
    """The answer of /ready, or else of /health: 503 where no replica gives answers; it says which do not.

    Args:
        reports: of the replicas.
        reason: why the fleet is not ready, whatever they say; "": it is.
        is_ready: which of the two was asked.
    """
    troubles = {report.replica: report.trouble for report in reports if report.trouble}
    answer: dict[str, object] = {"replicas": len(reports)} | ({"trouble": troubles} if troubles else {})
    if not reason and len(troubles) == len(reports):
        reason = "no replica gives answers" if reports else "no replica runs"
    if reason:
        return json_response({"status": "not ready" if is_ready else "dead", "reason": reason, **answer}, 503)
    return json_response({"status": "ready" if is_ready else "ok", **answer})
