"""What the Steps view says of the ranks that share a model. Knows no screen."""

from __future__ import annotations

from ...telemetry.rank_skew import is_lateness_known, own_ns, rank_skew
from ..step_rows import StepLine
from ..view import StepRow
from .columns import Column, Tone

MS = 1e6
NOTABLE = 0.1  # of a step's device time: skew from there on is coloured
RANKS_SHOWN = 8


def rank_columns() -> list[Column[StepLine]]:
    """How far the ranks lie apart, and which is the slowest."""
    return [
        Column("skew", _skew, 6, "right", _tone, lambda line: line.skew_ns if line.straggler >= 0 else None),
        Column("straggler", _straggler, 9, "right", _tone, lambda line: line.straggler if line.skew_ns else None),
    ]


def rank_words(row: StepRow) -> str:
    """What a step's skew comes from: how late each rank came, or its own work; "" where there is one rank."""
    skew = rank_skew(row.ranks) if row.ranks is not None else None
    if row.ranks is None or skew is None:
        return ""
    is_late = is_lateness_known(row.ranks)
    each = [f"{ns / MS:.2f}" for ns in (row.ranks.late_ns if is_late else own_ns(row.ranks))]
    more = f" and {len(each) - RANKS_SHOWN} more" if len(each) > RANKS_SHOWN else ""
    shown = f"{' '.join(each[:RANKS_SHOWN])}{more} ms"
    return f", ranks {shown} late at collectives" if is_late else f", ranks {shown} each beside collectives"


def _skew(line: StepLine) -> str:
    return f"{line.skew_ns / MS:.2f}" if line.straggler >= 0 else "-"


def _straggler(line: StepLine) -> str:
    return f"rank {line.straggler}" if line.skew_ns else "-"


def _tone(line: StepLine) -> Tone:
    return "warn" if line.skew_ns and line.skew_ns >= NOTABLE * line.device_ns else ""
