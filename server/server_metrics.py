"""What the server itself counts, for Prometheus; what the engine does is the journal's and comes from its exporter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .admission import QueueAdmission

_END = b"# EOF\n"
_UNROUTED = "other"


class ServerMetrics:
    """Counts of one server.

    Args:
        admission: counts who was let in.

    Attributes:
        responses: HTTP answers by route and status.
        stalls: times that a reader held its stream up.
        stall_seconds: for how long, all together.
    """

    def __init__(self, admission: QueueAdmission) -> None:
        self._admission = admission
        self.responses: Counter[tuple[str, int]] = Counter()
        self.stalls = 0
        self.stall_seconds = 0.0
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def append_to(self, scrape: bytes, is_openmetrics: bool) -> bytes:
        """A scrape of the engine's metrics with the server's own behind them."""
        if is_openmetrics:
            own: bytes = openmetrics.generate_latest(self._registry)
            return scrape.removesuffix(_END) + own
        return scrape + generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """Nothing is registered twice."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The families now."""
        admission = self._admission
        in_flight = GaugeMetricFamily("nanolens_server_requests_in_flight", "Requests let in that have not ended.")
        in_flight.add_metric([], admission.in_flight)
        yield in_flight
        admitted = CounterMetricFamily("nanolens_server_requests_admitted", "Requests let in.")
        admitted.add_metric([], admission.admitted)
        yield admitted
        refused = CounterMetricFamily(
            "nanolens_server_requests_refused", "HTTP requests turned away: full or stopping.", labels=["reason"]
        )
        for reason, count in admission.refused.items():
            refused.add_metric([reason], count)
        yield refused
        responses = CounterMetricFamily(
            "nanolens_server_responses", "HTTP answers by route and status.", labels=["route", "status"]
        )
        for (route, status), count in sorted(self.responses.items()):
            responses.add_metric([route, str(status)], count)
        yield responses
        stalls = CounterMetricFamily("nanolens_server_stream_stalls", "Times that a reader held its stream up.")
        stalls.add_metric([], self.stalls)
        yield stalls
        seconds = CounterMetricFamily(
            "nanolens_server_stream_stall_seconds", "How long readers held their streams up.", unit="seconds"
        )
        seconds.add_metric([], self.stall_seconds)
        yield seconds


class CountingMiddleware:
    """Counts the answers of an application by the route that gave them; paths without one count together.

    Args:
        app: the application.
        metrics: where it is counted.
    """

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", _UNROUTED)
                self._metrics.responses[route, message["status"]] += 1
            await send(message)

        await self._app(scope, receive, counted)
