"""A journal read for the latency model, with what has to be said about it. Knows neither flags nor terminals."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import AuditError, JournalError
from ..telemetry.events import EngineStarted, JournalDropped
from ..telemetry.latency import Latency
from ..telemetry.latency_tracks import LatencyTracks
from ..telemetry.reader import JournalReader
from .describe import plural
from .units import duration


@dataclass(frozen=True, slots=True)
class LatencyReading:
    """One run.

    Attributes:
        path: as it was given.
        run: its id.
        started: its first event.
        latency: the model over it.
        notes: what the journal does not hold, in words.
    """

    path: str
    run: str
    started: EngineStarted
    latency: Latency
    notes: tuple[str, ...]


def read_latency(path: str | Path, run_id: str | None = None) -> LatencyReading:
    """Read a run from its beginning to where it ends now.

    Args:
        path: a journal's directory, or one of its segment files.
        run_id: the run; None takes the newest.

    Raises:
        JournalError: there is no such journal or run, it can't be read, contradicts itself, or holds no request.
    """
    reader = JournalReader(path, run_id)
    tracks, gaps, lost = LatencyTracks(), 0, 0
    try:
        for frame in reader.frames():
            if frame.gap:
                tracks.lose()
                gaps += 1
            for event in frame.events:
                tracks.apply(event)
                if event.__class__ is JournalDropped:
                    lost += event.events
        tracks.finish()
    except AuditError as error:
        raise JournalError(f"{path}: run {reader.run} contradicts itself ({error}); ask nano-trace check") from error
    started = tracks.state.started
    if started is None:
        raise JournalError(f"{path}: run {reader.run}: holds neither engine.started nor a keyframe to begin from")
    if not tracks.requests:
        raise JournalError(f"{path}: run {reader.run}: holds no request")
    notes = [] if reader.complete else ["its beginning is no longer on disk"]
    if gaps:
        notes.append(f"{plural(gaps, 'gap')} of deleted segments")
    if lost:
        notes.append(f"{plural(lost, 'event')} were lost by the writer")
    if reader.torn_bytes:
        notes.append(f"an unfinished frame of {reader.torn_bytes} bytes at the end was left out")
    order = tracks.order
    if order.num_back:
        back = f"{plural(order.num_back, 'event')} went back in time, by {duration(order.most_back)} at most"
        notes.append(f"{back}: they count as at the newest time before them")
    again = len(tracks.all_requests) - len(tracks.requests)
    if again:
        notes.append(f"{plural(again, 'request')} came with an id that was used before; each use counts as its own")
    return LatencyReading(str(path), reader.run, started, Latency(tracks), tuple(notes))
