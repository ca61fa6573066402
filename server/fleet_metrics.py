"""The scrapes of several replicas as one: every sample says which replica it is of. Knows the text formats, no HTTP."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics

from .fleet_view import FleetView

_END = "# EOF"
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{)?")


class RouterMetrics:
    """What the router counts.

    Args:
        fleet: gives the gauges.
        wanted: replicas that there should be, at least.

    Attributes:
        routed: requests by the replica that answered, and why it was chosen.
        retried: calls that another replica answered, by the replica that had not.
        broken: answers that ended in an error because their replica, or its engine, was gone.
    """

    def __init__(self, fleet: FleetView, wanted: int = 1) -> None:
        self._fleet, self._wanted = fleet, wanted
        self.routed: Counter[tuple[str, str]] = Counter()
        self.retried: Counter[str] = Counter()
        self.broken: Counter[str] = Counter()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def joined(self, scrapes: Mapping[str, bytes], is_openmetrics: bool) -> bytes:
        """The scrapes of all replicas, and the router's own metrics."""
        own: bytes = openmetrics.generate_latest(self._registry) if is_openmetrics else generate_latest(self._registry)
        text = join({name: scrape.decode() for name, scrape in scrapes.items()})
        return text.encode() + own

    def describe(self) -> Iterable[Metric]:
        """Nothing is registered twice."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The families now."""
        routed = CounterMetricFamily(
            "nanolens_router_requests", "Requests by the replica that they went to, and why.",
            labels=["replica", "reason"],
        )  # fmt: skip
        for (replica, reason), count in sorted(self.routed.items()):
            routed.add_metric([replica, reason], count)
        yield routed
        for name, text, counts in (
            ("nanolens_router_retries", "Requests tried elsewhere, by the replica that did not answer.", self.retried),
            ("nanolens_router_broken", "Answers that ended in an error: replica or engine gone.", self.broken),
        ):
            family = CounterMetricFamily(name, text, labels=["replica"])
            for replica, count in sorted(counts.items()):
                family.add_metric([replica], count)
            yield family
        yield from self._losses()
        reports = self._fleet.reports()
        sound = sum(not report.trouble for report, _, _ in reports)
        yield GaugeMetricFamily("nanolens_router_replicas", "Replicas whose engines answer.", sound)
        yield GaugeMetricFamily(
            "nanolens_router_wanted_replicas", "Replicas that there should be, at least.", self._wanted
        )
        in_flight = GaugeMetricFamily(
            "nanolens_router_in_flight", "Requests that a replica is answering.", labels=["replica"]
        )
        age = GaugeMetricFamily(
            "nanolens_router_queue_age_seconds", "How long the sequence that waits longest has waited.",
            labels=["replica"], unit="seconds",
        )  # fmt: skip
        for report, count, _ in reports:
            in_flight.add_metric([report.replica], count)
            age.add_metric([report.replica], report.queue_age_s)
        yield in_flight
        yield age

    def _losses(self) -> Iterator[Metric]:
        """Replicas that were lost: how many, from 0 on, so that the first one is a growth; and which, the last ones."""
        lost = CounterMetricFamily(
            "nanolens_router_lost_replicas", "Replicas that died or gave no answers, by how.", labels=["reason"]
        )
        for how, count in self._fleet.losses.counts.items():
            lost.add_metric([how], count)
        yield lost
        when = GaugeMetricFamily(
            "nanolens_router_lost_replica_timestamp_seconds", "Unix time at which a replica was known to be lost.",
            labels=["replica", "reason"], unit="seconds",
        )  # fmt: skip
        for each in self._fleet.losses.recent:
            when.add_metric([each.replica, each.how], each.t_s)
        yield when


def join(scrapes: Mapping[str, str]) -> str:
    """Scrapes of one format by replica, as one in which each family stands once, without an end mark.

    Args:
        scrapes: by the value of the label `replica` that each of its samples gets.
    """
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for replica, text in scrapes.items():
        family = ""
        for line in text.splitlines():
            if line.startswith("# ") and line != _END:
                family = line.split(" ", 3)[2]
                head = heads.setdefault(family, [])
                if line not in head:
                    head.append(line)
            elif line and line != _END:
                samples.setdefault(family, []).append(labelled(line, replica))
    return "".join(line + "\n" for family in heads for line in (*heads[family], *samples.get(family, ())))


def labelled(line: str, replica: str) -> str:
    """A sample's line with one label more."""
    match = _SAMPLE.match(line)
    if match is None:
        return line
    value = replica.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    rest = line[match.end() :]
    if not match[2]:
        return f'{match[1]}{{replica="{value}"}}{rest}'
    return f'{match[1]}{{replica="{value}"{"" if rest.startswith("}") else ","}{rest}'
