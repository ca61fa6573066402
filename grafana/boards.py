"""All dashboards, and the latency objectives that they let one choose."""

from __future__ import annotations

from prometheus_client.utils import floatToGoString

from ..telemetry.metric_families import LATENCY_BUCKETS
from . import board_fleet, board_kv_cache, board_overview, board_preemption, board_queue, board_steps, board_telemetry
from .dashboard import Dashboard, Slo

BOARDS: tuple[Dashboard, ...] = (
    board_overview.BOARD,
    board_queue.BOARD,
    board_kv_cache.BOARD,
    board_preemption.BOARD,
    board_steps.BOARD,
    board_fleet.BOARD,
    board_telemetry.BOARD,
)


def _bounds(low: float, high: float) -> tuple[str, ...]:
    """Bounds of the latency histograms as their `le` labels have them."""
    return tuple(floatToGoString(bound) for bound in LATENCY_BUCKETS if low <= bound <= high)


SLOS: tuple[Slo, ...] = (
    Slo("ttft_slo", "TTFT objective (s)", "Seconds within which a first token is in time", _bounds(0.05, 50.0), "1.0"),
    Slo("itl_slo", "ITL objective (s)", "Seconds within which a next token is in time", _bounds(0.005, 2.0), "0.1"),
)
