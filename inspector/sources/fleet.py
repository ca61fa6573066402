"""The front of a fleet as a source of rows: /debug/fleet, and a snapshot of each replica. A replica is a ServerSource.

A replica that is slow to answer holds up neither the others nor the screen.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from ...errors import InspectError
from ..fleet_rows import Fleet, Sample, fleet_row
from .http_stream import NotAServer, ServerLink
from .server_source import ServerSource

RATE_NS = 5_000_000_000  # that tokens/s is worked out over
ANSWER_S = 3.0  # for a replica's answer
LOOK_S = 1.0  # that one look waits for those of all
THREADS = 16
MAX_GONE = 8  # replicas that are gone and still shown
_PARTS = ("counts", "blocks", "totals")
_SKEW = re.compile(r"^nanolens_rank_skew_seconds_(sum|count)(?:\{.*\})? (\S+)", re.MULTILINE)


@dataclass
class _Replica:
    """What is known of one replica.

    Attributes:
        report: its last entry in /debug/fleet.
        samples: its last answers, of one run.
        asking: the answer that is waited for.
        skews: sum in seconds, and number, of the skews of its steps; None before they were asked for, and () where
            its model has one rank.
    """

    report: Mapping[str, Any]
    samples: deque[Sample] = field(default_factory=deque)
    asking: Future[Sample] | None = None
    skews: tuple[float, ...] | None = None


class FleetSource:
    """A fleet, seen through its front.

    Args:
        url: of the front.
        api_key: one of its keys, where it asks for one.
        clock: nanoseconds.

    Attributes:
        url: the base URL.

    Raises:
        InspectError: the URL is none.
    """

    def __init__(self, url: str, api_key: str | None = None, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._link, self._api_key, self._clock = ServerLink(url, api_key), api_key, clock
        self.url = self._link.url
        self._pool = ThreadPoolExecutor(THREADS, "nanolens-fleet")
        self._replicas: dict[str, _Replica] = {}
        self._gone: dict[str, _Replica] = {}
        self._routed: dict[str, int] = {}

    def close(self) -> None:
        """Let go of it. May be called again."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._link.close()

    def open(self, replica: str) -> ServerSource:
        """The source of one replica, not started yet."""
        return ServerSource(f"{self.url}/replicas/{quote(replica, safe='')}", self._api_key)

    def look(self) -> Fleet:
        """How the fleet does now; as it did before, with `trouble`, where the front does not answer. It may block for
        seconds, and is not to be called twice at once.

        Raises:
            InspectError: the front has never answered.
        """
        trouble = ""
        try:
            self._take(self._link.ask("GET", "/debug/fleet"))
        except InspectError as error:
            if not self._replicas and not self._gone:
                raise
            trouble = str(error)
        if not trouble:
            self._ask_all()
        now = self._clock()
        rows = [fleet_row(each.report, tuple(each.samples), now) for each in self._replicas.values()]
        rows += [fleet_row(each.report, tuple(each.samples), now, gone=True) for each in self._gone.values()]
        return Fleet(self.url, rows, dict(self._routed), trouble)

    def _take(self, answer: Any) -> None:
        """Take what the front says: who is there, and who is not any more."""
        try:
            reports = {str(each["id"]): each for each in answer["replicas"]}
            routed: dict[str, int] = {}
            for each in answer["routed"]:
                routed[each["reason"]] = routed.get(each["reason"], 0) + each["count"]
        except (KeyError, TypeError) as error:
            raise NotAServer(f"{self.url}: what answers /debug/fleet there is no front of nano-serve") from error
        self._routed = routed
        for name in [name for name in self._replicas if name not in reports]:
            self._gone[name] = self._replicas.pop(name)
        for name, report in reports.items():
            self._gone.pop(name, None)
            known = self._replicas.get(name)
            if known is None or known.report.get("run", "") not in ("", report.get("run", "")):
                self._replicas[name] = _Replica(report)
            else:
                known.report = report
        while len(self._gone) > MAX_GONE:
            del self._gone[next(iter(self._gone))]

    def _ask_all(self) -> None:
        """Ask those that have answered the question before, and take what comes within LOOK_S."""
        for name, each in self._replicas.items():
            if each.asking is None and each.report.get("run"):
                each.asking = self._pool.submit(self._ask, name, each)
        wait([each.asking for each in self._replicas.values() if each.asking is not None], LOOK_S)
        for each in self._replicas.values():
            if each.asking is None or not each.asking.done():
                continue
            if each.asking.exception() is None:
                each.samples.append(each.asking.result())
                while len(each.samples) > 2 and each.samples[1].t < each.samples[-1].t - RATE_NS:
                    each.samples.popleft()
            each.asking = None

    def _ask(self, name: str, replica: _Replica) -> Sample:
        """One replica's answer."""
        base = f"/replicas/{quote(name, safe='')}"
        path = f"{base}/debug/snapshot?max_sequences=0&max_blocks=0"
        snapshot = self._link.ask("GET", path, timeout_s=ANSWER_S)
        if not (isinstance(snapshot, dict) and all(isinstance(snapshot.get(part), dict) for part in _PARTS)):
            raise NotAServer(f"{self.url}{base}: answers what no nano-serve would")
        return Sample(self._clock(), snapshot, self._skew(base, replica))

    def _skew(self, base: str, replica: _Replica) -> int | None:
        """What the ranks were apart in a step since the last time; in nanoseconds."""
        if replica.skews == ():
            return None
        try:
            found = _SKEW.findall(self._link.text(f"{base}/metrics", ANSWER_S))
        except InspectError:
            return None
        before = replica.skews or (0.0, 0.0)
        if not found:
            replica.skews = ()
            return None
        seconds, count = (sum(float(value) for kind, value in found if kind == name) for name in ("sum", "count"))
        replica.skews = (seconds, count)
        steps = count - before[1]
        return round((seconds - before[0]) / steps * 1e9) if steps > 0 else None
