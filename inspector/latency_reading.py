"""A journal read for the latency model, with what has to be said about it. Knows neither flags nor terminals."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..errors import AuditError, JournalError
from ..telemetry.clock import monotonic_ns
from ..telemetry.events import EngineStarted, JournalDropped, RequestRefused
from ..telemetry.latency import Latency
from ..telemetry.latency_tracks import LatencyTracks
from ..telemetry.reader import JournalReader
from .describe import plural
from .engine_fate import Fate, fate_note, fate_of, now_of
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
        engine: what became of the engine. While it is live, the run is read up to now: what lives goes on where the
            engine is silent, paused or idle.
        refused: id -> why a request was turned away, the last time.
    """

    path: str
    run: str
    started: EngineStarted
    latency: Latency
    notes: tuple[str, ...]
    engine: Fate = "stopped"
    refused: dict[str, RequestRefused] = field(default_factory=dict)


def read_latency(path: str | Path, run_id: str | None = None, may_be_empty: bool = False) -> LatencyReading:
    """Read a run from its beginning to where it ends now.

    Args:
        path: a journal's directory, or one of its segment files.
        run_id: the run; None takes the newest.
        may_be_empty: take one without a request, too, as a fleet has where one replica had nothing to do.

    Raises:
        JournalError: there is no such journal or run, it can't be read, contradicts itself, or holds no request.
    """
    now = monotonic_ns()  # before reading: what the engine does meanwhile is not missed in what is read
    reader = JournalReader(path, run_id)
    tracks, gaps, lost = LatencyTracks(), 0, 0
    refused: dict[str, RequestRefused] = {}
    engine: Fate = "stopped"
    try:
        for frame in reader.frames():
            if frame.gap:
                tracks.lose()
                gaps += 1
            for event in frame.events:
                tracks.apply(event)
                if event.__class__ is JournalDropped:
                    lost += event.events
                elif event.__class__ is RequestRefused:
                    refused[event.request] = event
        last_t, engine = tracks.t, fate_of(tracks.state, Path(path))
        note = fate_note(engine, tracks.state, Path(path), last_t, now)
        first = tracks.state.started
        tracks.finish(now_of(first, now) if engine == "live" and first is not None else None)
    except AuditError as error:
        raise JournalError(f"{path}: run {reader.run} contradicts itself ({error}); ask nano-trace check") from error
    started = tracks.state.started
    if started is None:
        raise JournalError(f"{path}: run {reader.run}: holds neither engine.started nor a keyframe to begin from")
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
    if note:
        notes.append(note)
    reading = LatencyReading(str(path), reader.run, started, Latency(tracks), tuple(notes), engine, refused)
    if not may_be_empty:
        require_requests(reading)
    return reading


def require_requests(*readings: LatencyReading) -> None:
    """Check that one of the runs, at least, holds a request.

    Raises:
        JournalError: none does; the message names them and what they turned away.
    """
    if any(reading.latency.tracks.requests for reading in readings):
        return
    told = []
    for reading in readings:
        but = f" but {refusal(*reading.refused.values())}" if reading.refused else ""
        told.append(f"{reading.path}: run {reading.run}: holds no request{but}")
    raise JournalError("; ".join(told))


def refusal(*refused: RequestRefused) -> str:
    """Why requests were turned away: `'r' was refused: prompt (too_long)`."""
    first = refused[0]
    more = f", and {plural(len(refused) - 1, 'more request')}" if len(refused) > 1 else ""
    return f"{first.request!r} was refused: {first.field or 'the request'} ({first.reason}){more}"
