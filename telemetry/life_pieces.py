"""What a sequence did when, in pieces with their steps and blocks: a verdict's evidence. Divides no step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .latency import Breakdown, Latency
from .latency_tracks import Run, Track


@dataclass(frozen=True, slots=True)
class LifePiece:
    """One stretch of a life.

    Attributes:
        kind: waiting, prefill, decode, preempted, swap, paused, reader, unknown.
        words: what it was, as `WAITING (no_blocks)`.
        begin_t, end_t: clock nanoseconds.
        first_step, last_step: steps that were read in it; -1 where none was.
        blocks: that it held at the end of it.
    """

    kind: str
    words: str
    begin_t: int
    end_t: int
    first_step: int
    last_step: int
    blocks: int


def life_pieces(
    latency: Latency, breakdown: Breakdown, until: int, track: Track | None = None
) -> Iterator[LifePiece]:
    """The pieces of a request's life up to a moment, in order: of its `track`, or of another sequence of it."""
    track = track or breakdown.track
    every = (*_gaps(track), *_rests(latency, track), *_runs(latency, track), *_reader(breakdown))
    found = sorted(every, key=lambda piece: piece[2])
    for kind, words, begin, end in found:
        end = min(end or until, until)
        if begin < end:
            first, last = _steps(latency, begin, end)
            yield LifePiece(kind, words, begin, end, first, last, _blocks_at(track, end - 1))


def _rests(latency: Latency, track: Track) -> Iterator[tuple[str, str, int, int]]:
    for rest in track.rests:
        if rest.part == "paused":
            yield "paused", f"PAUSED ({rest.reason})", rest.begin_t, rest.end_t
            continue
        kind = rest.part if rest.part in ("preempted", "swap") else "waiting"
        reason = rest.reason or "next step"
        words = f"WAITING ({reason})" if kind != "preempted" else f"WAITING (preempted, {reason})"
        at, end = rest.begin_t, rest.end_t or latency.tracks.t
        for begin, stop, _ in latency.tracks.pauses if rest.part != "engine_paused" else ():
            begin, stop = max(begin, at), min(stop, end)
            if begin < stop:  # the engine was paused meanwhile: nobody waited for anything else
                yield kind, words, at, begin
                yield "waiting", "WAITING (engine_paused)", begin, stop
                at = stop
        yield kind, words, at, end


def _gaps(track: Track) -> Iterator[tuple[str, str, int, int]]:
    if track.known_t > track.arrived_t:
        yield "unknown", "before the journal begins", track.arrived_t, track.known_t
    for begin, end in track.gaps:
        yield "unknown", "lost from the journal", begin, end


def _runs(latency: Latency, track: Track) -> Iterator[tuple[str, str, int, int]]:
    for run in track.runs:
        tokens, recomputed = sum(chunk[2] for chunk in run.chunks), sum(chunk[3] for chunk in run.chunks)
        again = f", {recomputed} again" if recomputed else ""
        turn = _prefill_end(latency, run)
        if turn:
            yield "prefill", f"RUNNING prefill of {tokens}{again}", run.begin_t, turn
        yield "decode", "RUNNING decode", turn or run.begin_t, run.end_t


def _prefill_end(latency: Latency, run: Run) -> int:
    """When the step of its last chunk was read; the end of the run where that never was, 0 where it has no chunks."""
    if not run.chunks:
        return 0
    windows = latency.windows
    low, high = windows.rows_of(run.chunks[-1][0], run.chunks[-1][0])
    read = int(windows.end_t[low]) if low < high else 0
    return min(read or run.end_t, run.end_t) if run.end_t else read or latency.tracks.t


def _reader(breakdown: Breakdown) -> Iterator[tuple[str, str, int, int]]:
    if breakdown.parts.get("back_pressure"):
        begin = breakdown.end_t - breakdown.parts["back_pressure"]
        yield "reader", "its reader catches up", begin, breakdown.end_t


def _steps(latency: Latency, begin: int, end: int) -> tuple[int, int]:
    windows = latency.windows
    low, high = (int(np.searchsorted(windows.end_t, t, "right")) for t in (begin, end))
    return (int(windows.number[low]), int(windows.number[high - 1])) if low < high else (-1, -1)


def _blocks_at(track: Track, t: int) -> int:
    index = bisect_right(track.blocks[::2], t) - 1
    return track.blocks[2 * index + 1] if index >= 0 else 0
