"""Why a sequence of a journal has taken as long as it has, as of any moment. Reads files alone; knows no terminal.

It has its own look at the files: folding a long life takes a while, and nothing else should wait for that.
"""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import NamedTuple

from ...errors import InspectError
from ...telemetry.latency import Latency
from ...telemetry.latency_tracks import LatencyTracks
from ...telemetry.verdict import verdict
from ..view import Blamed, Judgement, Moment
from .frame_store import FrameStore, Join, Place
from .ticks import Ticks

MODEL_STEPS = 400  # before the moment at least, that the cost model is fitted to


class _Kept(NamedTuple):
    """A pass over the journal, so that it can go on."""

    seq: int
    place: Place
    done: int  # events of that frame
    tracks: bytes


def judgement(tracks: LatencyTracks, seq: int, engine: str = "live") -> Judgement | None:
    """The verdict on a sequence as of the end of a pass, which is finished; None where it does not live then.

    Args:
        tracks: the pass.
        seq: the sequence.
        engine: live, or dead: it died then.
    """
    track = tracks.tracks.get(seq)
    if track is None or track.end_t:
        return None
    latency = Latency(tracks)
    breakdown = latency.of_track(track)
    said = verdict(latency, breakdown, engine=engine)
    blamed = [Blamed(part, culprit) for part, found in said.culprits.items() for culprit in found]
    blamed.sort(key=lambda each: (each.culprit.kind == "head", -each.culprit.weight_ns))
    whole = track.known_t <= track.arrived_t
    return Judgement(seq, track.request, whole, breakdown.parts, said.headline, said.sentences, blamed)


class Verdicts:
    """Verdicts on the sequences of one run. Threads may share it: calls are answered one after the other.

    Args:
        path: a journal's directory, or one segment file, which is then read alone.
        run: the run.

    Raises:
        JournalError: no journal, a newer version, no such run, damaged; in words.
    """

    def __init__(self, path: str | Path, run: str) -> None:
        self._store = FrameStore(path, run)
        self._ticks = Ticks(self._store)
        self._lock = threading.Lock()
        self._is_closed = False
        self._kept: _Kept | None = None

    def of(self, seq: int, moment: Moment, now_t: int = 0, engine: str = "live") -> Judgement | None:
        """The verdict on a sequence, up to a moment, or up to `now_t` without an event after it.

        Args:
            seq: the sequence.
            moment: of the run.
            now_t: clock nanoseconds.
            engine: live, or dead: it died at that moment.

        Returns:
            None where it does not live then.

        Raises:
            InspectError: there is no state yet, or it is not known; this was closed.
            JournalError: the journal is damaged.
            AuditError: it contradicts itself.
        """
        with self._lock:
            self._store.refresh()
            place, count = self._store.place_of(moment), moment.count
            tracks = self._tracks(seq, place, count)
            tracks.finish(max(self._ticks.of(place, count).t, now_t))
        return judgement(tracks, seq, engine)

    def close(self) -> None:
        """Let go of files and memory; who asks now is refused."""
        self._is_closed = True
        with self._lock:
            self._kept = None
            self._store.close()

    def _tracks(self, seq: int, place: Place, count: int) -> LatencyTracks:
        """The pass up to a moment, not finished: from before the sequence's arrival, and some steps for the model."""
        kept = self._kept
        if kept is not None and kept.seq == seq and (kept.place, kept.done) <= (place, count):
            return self._fold(seq, pickle.loads(kept.tracks), (kept.place, kept.done), (place, count))
        step = self._ticks.of(place, count).step
        join = self._join_before(self._ticks.first_at_step(step - MODEL_STEPS))
        tracks = self._fold(seq, LatencyTracks(), (join.place, 0), (place, count))
        track = tracks.tracks.get(seq)
        if track is None or track.known_t <= track.arrived_t:
            return tracks
        earlier = self._join_before(self._ticks.first_after(track.arrived_t - 1))
        if earlier.place >= join.place:
            return tracks
        return self._fold(seq, LatencyTracks(), (earlier.place, 0), (place, count))

    def _join_before(self, place: Place | None) -> Join:
        found = None if place is None else self._store.last_join(place, 0)
        return found or self._store.first_join()

    def _fold(
        self, seq: int, tracks: LatencyTracks, begin: tuple[Place, int], end: tuple[Place, int]
    ) -> LatencyTracks:
        """Apply what lies between; what came out is kept."""
        done, earlier = begin[1], None
        for each in self._store.walk(begin[0], end[0]):
            if self._is_closed:
                raise InspectError("the journal was closed")
            if earlier is not None:
                done = 0
                if not self._store.follows(each, earlier):
                    tracks.lose()
            for event in self._store.events(each)[done : end[1] if each == end[0] else None]:
                tracks.apply(event)
            earlier = each
        self._kept = _Kept(seq, *end, pickle.dumps(tracks, pickle.HIGHEST_PROTOCOL))
        return tracks
