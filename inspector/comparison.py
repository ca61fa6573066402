"""Two runs beside each other: times of their requests and the parts of these, which changed and by how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import InvalidConfig
from ..telemetry.latency import PARTS
from .bootstrap import RESAMPLES, STATISTICS, Difference, differences
from .latency_reading import LatencyReading
from .request_table import MEASURES, Floats, RequestTable, joined, request_table


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs.

    Attributes:
        reading: the run.
        table: its requests that have ended or have a first token.
        ended: those of them that have ended.
        live: how many have not: of them, only the first token counts.
        also: the other runs, where several count as one; settings are those of `reading`.
        notes: what has to be said of the runs together.
        tried_again: how many of all requests are further tries of one that a client sent.
    """

    reading: LatencyReading
    table: RequestTable
    ended: RequestTable
    live: int
    also: tuple[LatencyReading, ...] = ()
    notes: tuple[str, ...] = ()
    tried_again: int = 0

    @property
    def readings(self) -> tuple[LatencyReading, ...]:
        """All of its runs."""
        return (self.reading, *self.also)


@dataclass(frozen=True, slots=True)
class Comparison:
    """How B differs from A. Times are nanoseconds.

    Attributes:
        a, b: the runs.
        by: whose parts these are, e2e or ttft.
        measures: e2e, ttft, itl -> statistic -> difference; those that both runs have.
        parts: part -> statistic -> difference; those that are not 0 in both.
        settings: (name, in A, in B) of what the two engines were told differently.
        seed: of the resamples.
    """

    a: Side
    b: Side
    by: str
    measures: dict[str, dict[str, Difference]]
    parts: dict[str, dict[str, Difference]]
    settings: list[tuple[str, object, object]]
    seed: int

    @property
    def changed(self) -> list[tuple[str, str, Difference]]:
        """(name, statistic, difference) of the parts whose mean changed, the largest change first."""
        found = [(part, "mean", named["mean"]) for part, named in self.parts.items() if named["mean"].changed]
        return sorted(found, key=lambda item: -abs(item[2].delta))


def side(
    reading: LatencyReading, also: Sequence[LatencyReading] = (), notes: Sequence[str] = (), tried_again: int = 0
) -> Side:
    """One run, or several as one, ready to be compared; the arguments are `Side`'s.

    Raises:
        InvalidConfig: none of its requests has ended.
    """
    readings = (reading, *also)
    table = joined([request_table(one.latency.breakdowns(), one.started.wall_offset_ns) for one in readings])
    ended = table.ended
    if not len(ended):
        where = "; ".join(f"{one.path}: run {one.run}" for one in readings)
        raise InvalidConfig(f"{where}: none of its requests has ended")
    live = sum(len(one.latency.tracks.all_requests) for one in readings) - len(ended)
    return Side(reading, table, ended, live, (*also,), (*notes,), tried_again)


def compare(a: Side, b: Side, by: str = "e2e", seed: int = 0, resamples: int = RESAMPLES) -> Comparison:
    """Compare two runs.

    Args:
        a: the one to measure against.
        b: the other.
        by: e2e, or ttft: the parts of the time to the first token.
        seed: of the resamples.
        resamples: how many.
    """
    found = differences(_columns(a.table, by), _columns(b.table, by), seed, resamples)
    named = dict(zip((*MEASURES, *PARTS), found, strict=True))
    measures = {name: value for name in MEASURES if (value := named[name])}
    parts = {name: value for name in PARTS if (value := named[name]) and value["mean"].a + value["mean"].b}
    return Comparison(a, b, by, measures, parts, _settings(a.reading, b.reading), seed)


def as_dict(comparison: Comparison) -> dict[str, object]:
    """For JSON."""
    return {
        "a": _side_as_dict(comparison.a),
        "b": _side_as_dict(comparison.b),
        "by": comparison.by,
        "seed": comparison.seed,
        "settings": {name: {"a": in_a, "b": in_b} for name, in_a, in_b in comparison.settings},
        "measures": {name: _named_as_dict(named) for name, named in comparison.measures.items()},
        "parts": {name: _named_as_dict(named) for name, named in comparison.parts.items()},
        "changed": [part for part, _, _ in comparison.changed],
    }


def _columns(table: RequestTable, by: str) -> Floats:
    """[n, MEASURES and PARTS]; parts of a time that a request doesn't have are NaN."""
    parts = table.parts_of(by).astype(np.float64)
    parts[np.isnan(table.measure(by))] = np.nan
    return np.column_stack([*(table.measure(name) for name in MEASURES), parts])


def _settings(a: LatencyReading, b: LatencyReading) -> list[tuple[str, object, object]]:
    first, second = _told(a), _told(b)
    names = dict.fromkeys([*first, *second])
    return [(name, first.get(name), second.get(name)) for name in names if first.get(name) != second.get(name)]


def _told(reading: LatencyReading) -> dict[str, object]:
    started = reading.started
    facts: dict[str, object] = {"version": started.version, "model": started.model, **started.config}
    facts.pop("journal", None)  # where it is kept is no difference
    return facts | {"num_blocks": started.num_blocks, "block_size": started.block_size}


def _side_as_dict(side: Side) -> dict[str, object]:
    model = side.reading.latency.model
    return {
        "journal": side.reading.path,
        "run": side.reading.run,
        "requests": len(side.ended),
        "live": side.live,
        "mean_prompt_tokens": float(side.ended.prompt_tokens.mean()),
        "mean_output_tokens": float(side.ended.output_tokens.mean()),
        "model_num_steps": model.num_steps,
        "model_median_error": model.median_error,
        "model_p90_error": model.p90_error,
        "notes": [*side.reading.notes, *side.notes],
        "tried_again": side.tried_again,
    } | ({"also": [_also_as_dict(one) for one in side.also]} if side.also else {})


def _also_as_dict(reading: LatencyReading) -> dict[str, object]:
    model = reading.latency.model
    return {
        "journal": reading.path, "run": reading.run, "model_num_steps": model.num_steps,
        "model_median_error": model.median_error, "model_p90_error": model.p90_error, "notes": list(reading.notes),
    }  # fmt: skip


def _named_as_dict(named: dict[str, Difference]) -> dict[str, object]:
    return {statistic: _difference_as_dict(named[statistic]) for statistic in STATISTICS if statistic in named}


def _difference_as_dict(d: Difference) -> dict[str, object]:
    return {
        "a_ns": d.a, "b_ns": d.b, "delta_ns": d.delta, "low_ns": d.low, "high_ns": d.high,
        "changed": d.changed, "judged": d.judged,
    }  # fmt: skip
