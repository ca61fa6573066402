"""A fleet for tests of nano-inspect: replicas that a test changes, and a front that leads to it. It asks nobody."""

from __future__ import annotations

from collections.abc import Sequence

from fake_source import FakeSource
from nanolens.errors import InspectError
from nanolens.inspector.fleet_rows import Fleet, FleetRow, Sample, fleet_row
from nanolens.inspector.sources.http_stream import IsFleet

URL = "http://127.0.0.1:8000"


class FakeFleet:
    """Replicas by id -> how many wait; a test changes them."""

    url = URL

    def __init__(self) -> None:
        self.waiting = {"aaa": 2, "bbb": 9, "ccc": 4}
        self.gone: Sequence[str] = ()
        self.troubles: dict[str, str] = {}
        self.skew_ns: int | None = None
        self.fail, self.trouble = "", ""
        self.opened: list[str] = []
        self.source = FakeSource()
        self.closed = 0

    def look(self) -> Fleet:
        if self.fail:
            raise InspectError(self.fail)
        rows = [self._row(name, False) for name in self.waiting] + [self._row(name, True) for name in self.gone]
        return Fleet(self.url, rows, {"prefix": 3, "load": 1}, self.trouble)

    def _row(self, name: str, gone: bool) -> FleetRow:
        counts = {"WAITING": self.waiting.get(name, 0), "RUNNING": 3, "PAUSED": 1}
        blocks, totals = {"free": 120, "total": 370}, {"preemptions": 5, "prefix_queried_tokens": 8}
        snapshot = {"model": "llama-tiny", "counts": counts, "blocks": blocks, "totals": totals}
        report = {"id": name, "run": "r", "trouble": self.troubles.get(name, ""), "queue_age_s": 1.5}
        return fleet_row(report, [Sample(0, snapshot, self.skew_ns)], 2_000_000, gone)

    def open(self, replica: str) -> FakeSource:
        self.opened.append(replica)
        self.source = FakeSource()
        return self.source

    def close(self) -> None:
        self.closed += 1


class Front(FakeSource):
    """What looks like a server, and is the front of a fleet."""

    def start(self) -> None:
        raise IsFleet(URL)
