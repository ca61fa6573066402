"""The figures that a what-if compares: of a recorded run and of a simulated one by the same reckoning."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, fields

from ...telemetry.latency_tracks import LatencyTracks
from ...telemetry.quantile import quantile


@dataclass(frozen=True, slots=True)
class Figures:
    """Of the requests that ended. Times are seconds; NaN where there is nothing to measure.

    Attributes:
        ttft_p50, ttft_p99: from arrival to the first token.
        itl_p50, itl_p99: between two tokens, the mean of each request.
        e2e_p50, e2e_p99: from arrival to the end.
        tokens_per_s: output tokens from the first arrival to the last end.
        preemptions: of running sequences.
        hit_rate: share of the prompt tokens that were found cached, of those looked up at first admissions.
        steps: that were computed.
        requests: that ended.
    """

    ttft_p50: float
    ttft_p99: float
    itl_p50: float
    itl_p99: float
    e2e_p50: float
    e2e_p99: float
    tokens_per_s: float
    preemptions: int
    hit_rate: float
    steps: int
    requests: int

    def as_dict(self) -> dict[str, float | int | None]:
        """By name; None for what could not be measured."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: None if value != value else value for name, value in values.items()}


def figures(tracks: LatencyTracks, cut: Container[int] = ()) -> Figures:
    """The figures of a run.

    Args:
        tracks: the pass over its events, finished.
        cut: indices of requests to leave out.
    """
    ttft: list[float] = []
    itl: list[float] = []
    e2e: list[float] = []
    first_t, last_t, tokens = 0, 0, 0
    queried = hit = preemptions = requests = 0
    for index, request in enumerate(tracks.all_requests):
        own = [tracks.tracks[seq] for seq in request.seqs]
        preemptions += sum(len(track.preemptions) for track in own)
        for track in own:
            if track.matched is not None:
                queried, hit = queried + track.matched.queried, hit + track.matched.hit
        if index in cut or not all(track.end_t for track in own):
            continue
        requests += 1
        last = max(own, key=lambda track: track.end_t)
        first_t = min(first_t or request.arrived_t, request.arrived_t)
        last_t = max(last_t, last.end_t)
        tokens += sum(track.num_output_tokens for track in own)
        e2e.append(last.end_t - request.arrived_t)
        having = [track for track in own if track.first_token_t]
        if having:
            ttft.append(min(track.first_token_t for track in having) - request.arrived_t)
            gaps = sum(track.num_output_tokens - 1 for track in having)
            if gaps:
                itl.append(sum(track.last_token_t - track.first_token_t for track in having) / gaps)
    span = (last_t - first_t) / 1e9
    return Figures(
        *_quantiles(ttft), *_quantiles(itl), *_quantiles(e2e), tokens / span if span else float("nan"),
        preemptions, hit / queried if queried else float("nan"), len(tracks.steps), requests,
    )  # fmt: skip


def _quantiles(values: list[float]) -> tuple[float, float]:
    return quantile(values, 0.5) / 1e9, quantile(values, 0.99) / 1e9
