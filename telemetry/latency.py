"""The `latency` projection: every request's time, to the nanosecond, divided among what it was spent on.

docs/latency.md states the rules and their reasons. Knows the tracks of one pass and the windows of the steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Union

from .latency_tracks import LatencyTracks
from .run_division import RunDivision
from .step_costs import StepCostModel
from .step_windows import StepWindows
from .tracks import RequestTrack, Rest, Run, Track

PARTS = (
    "queue_next_step", "queue_no_blocks", "queue_sequence_cap", "queue_token_budget", "queue_head_of_line",
    "queue_sibling_prefill", "engine_paused", "own_prefill", "prefill_interference", "own_decode", "batch_cost",
    "rank_skew", "stalled_step", "host_gap", "preempted", "recompute", "swap", "paused", "back_pressure", "unknown",
)  # fmt: skip
_NOT_THE_ENGINES = frozenset({"paused", "engine_paused", "unknown"})  # parts that a paused engine does not interrupt

Piece = Union[Rest, Run, str]  # a text is the name of a part


@dataclass(slots=True)
class Breakdown:
    """Where one request's time went.

    Attributes:
        request: its record.
        track: the sequence whose end was the request's: what it spent, the request spent.
        siblings: all its sequences.
        begin_t: its arrival.
        end_t: its end, or the moment of the look for one that lives; with a slow reader, when that had caught up.
        parts: name -> nanoseconds, those that are not 0; they add up to `total_ns`.
        ttft_parts: the same up to the request's first token, of the sequence whose it was; empty where there is none.
            Where that is `track`, no part is larger than in `parts`.
        ended: whether it has ended, and the journal tells when.
    """

    request: RequestTrack
    track: Track
    siblings: tuple[Track, ...]
    begin_t: int
    end_t: int
    parts: dict[str, int] = field(default_factory=dict)
    ttft_parts: dict[str, int] = field(default_factory=dict)
    ended: bool = True

    @property
    def total_ns(self) -> int:
        """From arrival to end."""
        return self.end_t - self.begin_t

    @property
    def first(self) -> Track:
        """The sequence with the request's first token; `track` where there is none, or where both were at once."""
        found = [track for track in (self.track, *self.siblings) if track.first_token_t]
        return min(found, key=lambda track: track.first_token_t, default=self.track)

    @property
    def ttft_ns(self) -> int:
        """From arrival to the first token; 0 where there is none."""
        first_t = self.first.first_token_t
        return first_t - self.begin_t if first_t else 0


class Latency:
    """The model over a journal, or what there is of it so far.

    Args:
        tracks: the pass over it, finished.
        model: of the steps' cost; None fits one to the steps of this journal.
    """

    def __init__(self, tracks: LatencyTracks, model: StepCostModel | None = None) -> None:
        self.tracks = tracks
        self.windows = StepWindows(
            tracks.steps, tracks.pauses, tracks.begin_t, model, tracks.unread_t, tracks.skews, tracks.odd.steps
        )

    @property
    def model(self) -> StepCostModel:
        """What a step costs."""
        return self.windows.model

    @property
    def part_names(self) -> tuple[str, ...]:
        """Those of PARTS that this run can have: `rank_skew` only where several ranks told of a step, `stalled_step`
        only where a step stood still, or failed."""
        stalled = self.windows.stall.any() or any(track.failed for track in self.tracks.tracks.values())
        lacking = {"rank_skew": not self.tracks.skews, "stalled_step": not stalled}
        return tuple(part for part in PARTS if not lacking.get(part))

    def breakdowns(self) -> Iterator[Breakdown]:
        """All requests, those that live too, in order of arrival."""
        for request in self.tracks.all_requests:
            yield self.breakdown(request)

    def breakdown(self, request: RequestTrack) -> Breakdown:
        """One request: the time of the sequence that ended last, and what its reader took after that."""
        now = self.tracks.t
        siblings = tuple(self.tracks.tracks[seq] for seq in request.seqs)
        last = max(siblings, key=lambda track: track.end_t or now + 1)
        result = self._divided(request, last, siblings)
        caught_up = max((t for t, _ in request.stalls), default=0)
        if result.ended and caught_up > result.end_t:
            result.parts["back_pressure"] = caught_up - result.end_t
            result.end_t = caught_up
        return result

    def of_track(self, track: Track) -> Breakdown:
        """One sequence."""
        return self._divided(self.tracks.owners[track.seq], track, (track,))

    def _divided(self, request: RequestTrack, track: Track, siblings: tuple[Track, ...]) -> Breakdown:
        end = track.end_t or self.tracks.t
        result = Breakdown(request, track, siblings, track.arrived_t, end)
        result.ended = bool(track.end_t) and not track.is_end_lost
        parts, first = result.ttft_parts, result.first
        if first.first_token_t:
            self._add(parts, first, track.arrived_t, first.first_token_t)
        after = track.arrived_t
        if first is track and first.first_token_t:  # what comes before is divided once, lest roundings differ
            result.parts, after = dict(parts), first.first_token_t
        self._add(result.parts, track, after, end)
        return result

    def _add(self, parts: dict[str, int], track: Track, since: int, until: int) -> None:
        """Add the parts of a life between two moments."""
        for begin, stop, piece in self._pieces_and_failure(track, track.end_t or self.tracks.t):
            begin, stop = max(begin, since), min(stop, until)
            if begin < stop:
                _merge(parts, self.divide(piece, begin, stop))

    def _pieces_and_failure(self, track: Track, end: int) -> Iterator[tuple[int, int, Piece]]:
        """The pieces of a life, up to the step that failed and ended it, if one did, and the time of that."""
        until = end if track.failed is None else min(track.failed_t, end)
        for begin, stop, piece in self._pieces(track, end):
            if begin < until:
                yield begin, min(stop, until), piece
        if until < end:
            yield until, end, "stalled_step"

    def _pieces(self, track: Track, end: int) -> Iterator[tuple[int, int, Piece]]:
        """(begin, end, what it was) of the times of a life, without gap or overlap."""
        if track.known_t > track.arrived_t:
            yield track.arrived_t, track.known_t, "unknown"
        for begin, stop in track.gaps:
            yield begin, stop, "unknown"
        for rest in track.rests:
            yield rest.begin_t, rest.end_t or end, rest
        for run in track.runs:
            yield run.begin_t, run.end_t or end, run

    def divide(self, piece: Piece, begin: int, end: int) -> dict[str, int]:
        """The parts of an interval within a piece of a life."""
        if isinstance(piece, Run):
            return RunDivision(self.windows, piece).divide(begin, end)
        part = piece if isinstance(piece, str) else piece.part
        paused = 0 if part in _NOT_THE_ENGINES else self.windows.paused_within(begin, end)
        return {part: end - begin - paused, "engine_paused": paused} if paused else {part: end - begin}


def _merge(parts: dict[str, int], more: dict[str, int]) -> None:
    for name, value in more.items():
        if value:
            parts[name] = parts.get(name, 0) + value
