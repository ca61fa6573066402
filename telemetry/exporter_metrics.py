"""The metrics of an export: kept from the frames that are read, served to Prometheus, with what the exporter counts."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import InvalidConfig
from .events import AnyEvent
from .exporter_linger import ask_to_leave
from .exporter_queue import SpanCounts
from .metrics import Metrics
from .metrics_server import serve_metrics
from .span_ids import TraceIds


class ServedMetrics:
    """Metrics behind a port.

    Args:
        port: 0 for any free one.
        host: the address to listen at.
        keep_unsampled: whether traces whose caller did not sample them are exported, so that exemplars may name them.
        has_traces: whether traces are exported at all; without, exemplars would lead nowhere.

    Raises:
        InvalidConfig: the port can't be had.
    """

    def __init__(self, port: int, host: str, keep_unsampled: bool, has_traces: bool) -> None:
        self._traces = TraceIds(keep_unsampled) if has_traces else None
        self.metrics = Metrics(trace_ids=self._traces)
        try:
            self._server = serve_metrics(self.metrics, port, host)
        except InvalidConfig:
            if not port or not ask_to_leave(port):
                raise
            self._server = serve_metrics(self.metrics, port, host)

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.port

    def apply_all(self, events: Iterable[AnyEvent], num_bytes: int) -> None:
        """Take a frame of events, and its size in the journal."""
        if self._traces is not None:
            self._traces.apply_all(events)
        self.metrics.exporter.journal_bytes += num_bytes
        self.metrics.apply_all(events)

    def lose(self) -> None:
        """Events were missed: everything goes on from the next keyframe."""
        self.metrics.lose()

    def engine_gone(self) -> None:
        """The engine's process has died."""
        self.metrics.engine_gone()

    def caught_up(self, for_good: bool = False) -> None:
        """All of the journal has been read; `for_good`: and no more of it will be."""
        self.metrics.caught_up(for_good)

    def set_spans(self, counts: SpanCounts) -> None:
        """What became of the spans so far."""
        self.metrics.exporter.spans.update(
            recorded=counts.recorded, exported=counts.exported, not_kept=counts.not_kept,
            dropped=counts.dropped + counts.rejected,
        )  # fmt: skip

    def close(self) -> None:
        """Serve no more."""
        self._server.close()
