"""Who lived, ran and held blocks in a time, and who stood at the head of the queue. Divides no time of its own."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np

from .latency_tracks import LatencyTracks, Track

Interval = tuple[int, int]


def clip(intervals: Iterable[Interval], begin: int, end: int) -> list[Interval]:
    """What of some intervals lies within another one."""
    found = ((max(since, begin), min(to, end)) for since, to in intervals)
    return [(since, to) for since, to in found if since < to]


class _Spells:
    """Times of sequences, each with an amount, of which the parts within some intervals are added up at once.

    Args:
        spells: (sequence, begin, end, amount).
    """

    def __init__(self, spells: Iterable[tuple[int, int, int, int]]) -> None:
        table = np.array([*spells], dtype=np.int64).reshape(-1, 4)
        self._begin, self._end, self._amount = table[:, 1], table[:, 2], table[:, 3]
        self._seqs, self._index = np.unique(table[:, 0], return_inverse=True)

    def within(self, intervals: Iterable[Interval], but: int) -> dict[int, float]:
        """Sequence -> amount times nanoseconds within intervals that lie in order and apart."""
        points = np.array([*intervals], dtype=np.int64).reshape(-1)
        if not len(points):
            return {}
        # How much of the intervals lies before a moment grows by one a nanosecond within them, and not between them.
        lengths = np.diff(points, prepend=points[:1])
        lengths[::2] = 0
        start, grown = points[0], np.cumsum(lengths)
        near = np.flatnonzero((self._begin < points[-1]) & (self._end > start))
        ends = (np.interp(t[near] - start, points - start, grown) for t in (self._end, self._begin))
        spent = (next(ends) - next(ends)) * self._amount[near]
        sums = np.bincount(self._index[near], spent, len(self._seqs))
        return {int(self._seqs[i]): float(sums[i]) for i in np.flatnonzero(sums > 0) if self._seqs[i] != but}


class LifeIndex:
    """Questions about all sequences of a journal.

    Args:
        tracks: the pass over it, finished.
    """

    def __init__(self, tracks: LatencyTracks) -> None:
        self._tracks = list(tracks.tracks.values())
        self._end = tracks.t
        self._from = np.array([track.known_t for track in self._tracks], dtype=np.int64)
        self._to = np.array([track.end_t or tracks.t + 1 for track in self._tracks], dtype=np.int64)
        self._heads = tracks.heads
        self._head_times = [t for t, _, _ in tracks.heads]

    def alive(self, begin: int, end: int) -> Iterator[Track]:
        """The sequences that lived at some moment of a time, in order of arrival."""
        for index in np.flatnonzero((self._from < end) & (self._to > begin)):
            yield self._tracks[index]

    def holders(self, intervals: Iterable[Interval], but: int) -> dict[int, float]:
        """Sequence -> blocks it held times nanoseconds, within intervals that lie in order and apart."""
        return self._holds.within(intervals, but)

    def runners(self, intervals: Iterable[Interval], but: int) -> dict[int, float]:
        """Sequence -> nanoseconds in RUNNING, within intervals that lie in order and apart."""
        return self._runs.within(intervals, but)

    @cached_property
    def _holds(self) -> _Spells:
        return _Spells(spell for track in self._tracks for spell in _holds_of(track, self._end))

    @cached_property
    def _runs(self) -> _Spells:
        return _Spells(
            (track.seq, run.begin_t, run.end_t or self._end, 1) for track in self._tracks for run in track.runs
        )

    def heads(self, intervals: Iterable[Interval], but: int) -> list[tuple[int, int, int, str]]:
        """(begin, end, sequence, why it waited) of those that stood at the head of the queue, without gaps between."""
        found: list[tuple[int, int, int, str]] = []
        for begin, end in intervals:
            index = max(0, bisect_right(self._head_times, begin) - 1)
            while index < len(self._heads) and self._heads[index][0] < end:
                since, seq, reason = self._heads[index]
                to = self._head_times[index + 1] if index + 1 < len(self._heads) else end
                since, to = max(since, begin), min(to, end)
                if since < to and seq not in (-1, but):
                    found.append((since, to, seq, reason))
                index += 1
        return found


def joined(intervals: Iterable[Interval]) -> list[Interval]:
    """Intervals in order, those that touch made one."""
    found: list[Interval] = []
    for begin, end in intervals:
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def _holds_of(track: Track, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The times in which a sequence held blocks, with how many."""
    times, counts = track.blocks[::2], track.blocks[1::2]
    for index, count in enumerate(counts):
        to = times[index + 1] if index + 1 < len(times) else end
        if count and times[index] < to:
            yield track.seq, times[index], to, count
