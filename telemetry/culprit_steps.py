"""Whose work, or what of the host's, filled the windows of some steps. Knows no queues and no blocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from .culprit import time_words
from .culprit_lives import Interval
from .latency_tracks import LatencyTracks, Track
from .step_costs import Floats
from .step_windows import Ints, StepWindows

HOST = ("collect", "plan", "launch", "between")


@dataclass(slots=True)
class Share:
    """What one caused.

    Attributes:
        amount: nanoseconds or tokens.
        tokens: of its chunks, or its decodes.
        first, last: steps that it was in.
        worst: the step in which it caused the most.
    """

    amount: float = 0.0
    tokens: int = 0
    first: int = -1
    last: int = -1
    worst: int = -1
    worst_amount: float = 0.0

    def add(self, amount: float, tokens: int, first: int, last: int) -> None:
        """Count work in some steps."""
        self.amount += amount
        self.tokens += tokens
        self.first = first if self.first < 0 else min(self.first, first)
        self.last = max(self.last, last)
        if first == last and amount > self.worst_amount:
            self.worst, self.worst_amount = first, amount


@dataclass(frozen=True, slots=True)
class Stall:
    """A step that took far longer than its work does, or failed.

    Attributes:
        step: its number.
        amount: nanoseconds beyond what the work costs, within the times that were asked about.
        words: `step 7, which took 2.00 s where steps like it take 1.8 ms`.
        has_failed: whether it is the one that failed.
    """

    step: int
    amount: float
    words: str
    has_failed: bool = False


@dataclass(frozen=True, slots=True)
class Cover:
    """The windows that some times touch, with nanoseconds of device and host time within those times.

    `before` is the host time that each window had before them.
    """

    rows: Ints
    device: Ints
    host: Ints
    before: Ints


class StepShares:
    """Questions about the windows of a journal.

    Args:
        tracks: the pass over it, finished.
        windows: of its steps.
    """

    def __init__(self, tracks: LatencyTracks, windows: StepWindows) -> None:
        self._windows = windows
        self._chunks: Ints = np.array(tracks.chunks, dtype=np.int64).reshape(-1, 4)
        self._host = self._host_times()

    def cover(self, intervals: Iterable[Interval]) -> Cover:
        """The windows of some times."""
        w = self._windows
        rows, device, host, before = [], [], [], []
        for begin, end in intervals:
            low, high = w.row_after(begin), min(len(w), int(np.searchsorted(w.end_t, end, "left")) + 1)
            if low >= high:
                continue
            on, off = w.device[low:high].copy(), w.host[low:high].copy()
            passed = np.zeros_like(off)
            for row in {low, high - 1}:
                since, to = max(begin, int(w.begin_t[row])), min(end, int(w.end_t[row]))
                if since > w.begin_t[row] or to < w.end_t[row]:
                    clipped = w.clip(row, since, to) if since < to else (0, 0, 0)
                    on[row - low], off[row - low] = clipped[:2]
                    passed[row - low] = w.clip(row, int(w.begin_t[row]), since)[1]
            rows.append(np.arange(low, high))
            device.append(on)
            host.append(off)
            before.append(passed)
        if not rows:
            nothing = np.zeros(0, dtype=np.int64)
            return Cover(nothing, nothing, nothing, nothing)
        return Cover(np.concatenate(rows), np.concatenate(device), np.concatenate(host), np.concatenate(before))

    def prefills(self, cover: Cover, but: int) -> dict[int, Share]:
        """Sequence -> device time that its chunks took, by the cost model. Where nobody decodes, all of the step is."""
        w, model = self._windows, self._windows.model
        found: dict[int, Share] = {}
        for index, chunk in self._chunks_in(cover.rows):
            row = int(cover.rows[index])
            step, seq, tokens, pairs = (int(value) for value in self._chunks[chunk])
            if seq == but or not w.device[row]:
                continue
            own = float(w.unit[row]) * (model.prefill_token * tokens + model.prefill_pair * pairs)
            if not w.columns["decodes"][row]:
                total = int(w.columns["prefill_tokens"][row])
                own += float(w.fixed[row]) * tokens / total if total else 0.0
            scale = float(cover.device[index]) / float(w.device[row])
            found.setdefault(seq, Share()).add(own * scale, tokens, step, step)
        return found

    def largest_chunk(self, cover: Cover, but: int) -> int:
        """Tokens of the largest chunk that is not of this sequence."""
        chunks = (self._chunks[chunk] for _, chunk in self._chunks_in(np.unique(cover.rows)))
        return max((int(tokens) for _, seq, tokens, _ in chunks if seq != but), default=0)

    def budget(self, cover: Cover) -> tuple[dict[int, Share], int]:
        """Sequence -> tokens of its chunks, and the tokens of all decodes."""
        found: dict[int, Share] = {}
        rows: Ints = np.unique(cover.rows)
        for _, chunk in self._chunks_in(rows):
            step, seq, tokens, _ = (int(value) for value in self._chunks[chunk])
            found.setdefault(seq, Share()).add(float(tokens), tokens, step, step)
        return found, int(self._windows.columns["decodes"][rows].sum())

    def decodes(self, cover: Cover, others: Iterable[Track]) -> dict[int, Share]:
        """Sequence -> device time that its decodes added to the steps, by the cost model."""
        w = self._windows
        found: dict[int, Share] = {}
        if not len(cover.rows):
            return found
        for first, last in _ranges(cover.rows):
            for track in others:
                for run in track.runs:
                    for begin, end, keys in run.decodes:
                        low, high = w.rows_of(begin, end)
                        at, to = max(low, first), min(high, last)
                        if at < to:
                            amount = w.added(at, to, w.keys_at(low, at, keys))
                            steps = int(w.number[at]), int(w.number[to - 1])
                            found.setdefault(track.seq, Share()).add(amount, to - at, *steps)
        return found

    def host(self, cover: Cover) -> dict[str, Share]:
        """What the host did while the device had nothing to do -> nanoseconds; names in HOST."""
        w = self._windows
        found: dict[str, Share] = {}
        if not len(cover.rows):
            return found
        since, to = cover.before, cover.before + cover.host
        for name, (begin, end) in zip(HOST, self._host, strict=True):
            amounts: Ints = np.maximum(np.minimum(end[cover.rows], to) - np.maximum(begin[cover.rows], since), 0)
            if amounts.sum() > 0:
                worst = int(np.argmax(amounts))
                numbers = w.number[cover.rows]
                found[name] = Share(float(amounts.sum()), len(amounts), int(numbers[0]), int(numbers[-1]),
                                    int(numbers[worst]), float(amounts[worst]))  # fmt: skip
        return found

    def ranks(self, cover: Cover) -> dict[int, Share]:
        """Slowest rank -> device time that it took longer than the median one."""
        w, found = self._windows, dict[int, Share]()
        rows: Ints = cover.rows
        skewed = np.flatnonzero(w.skew[rows]) if len(rows) else rows
        amounts: Floats = w.skew[rows[skewed]] * cover.device[skewed] / np.maximum(w.device[rows[skewed]], 1)
        slowest, numbers = w.slowest[rows[skewed]], w.number[rows[skewed]]
        for rank in np.unique(slowest):
            of_rank = np.flatnonzero(slowest == rank)
            worst = of_rank[np.argmax(amounts[of_rank])]
            found[int(rank)] = Share(
                float(amounts[of_rank].sum()), len(of_rank), int(numbers[of_rank[0]]), int(numbers[of_rank[-1]]),
                int(numbers[worst]), float(amounts[worst]),
            )  # fmt: skip
        return found

    def stalls(self, cover: Cover) -> list[Stall]:
        """The steps that stood still."""
        w, found = self._windows, []
        for index in np.flatnonzero(w.stall[cover.rows]) if len(cover.rows) else ():
            row = int(cover.rows[index])
            took, usual = time_words(int(w.device[row])), time_words(round(float(w.cost[row])))
            words = f"step {w.number[row]}, which took {took} where steps like it take {usual}"
            amount = float(w.stall[row]) * float(cover.device[index]) / float(w.device[row])
            found.append(Stall(int(w.number[row]), amount, words))
        return found

    def _host_times(self) -> list[tuple[Ints, Ints]]:
        """From when to when the host did each of HOST in each window, in nanoseconds of the window's host time.

        A window begins when the tokens before it were read: what followed from them comes first in it. Planning, then
        launching, come right before the device's time; where launching computes (on a CPU), that part is the device's.
        Where the measured times are more than the window has (steps overlap), launching is cut short first, then
        planning.
        """
        w = self._windows
        named, host = w.columns, w.host
        after = np.maximum(named["collect_ns"] - np.maximum(named["wait_ns"], 0), 0)
        collect = np.minimum(host, np.concatenate(([0], after[:-1])) if len(after) else after)
        plan = np.minimum(host - collect, named["plan_ns"])
        launch = np.minimum(host - collect - plan, np.maximum(named["launch_ns"] - named["device_ns"], 0))
        planned, launched = host - launch - plan, host - launch
        return [(np.zeros_like(host), collect), (planned, launched), (launched, host), (collect, planned)]

    def _chunks_in(self, rows: Ints) -> Iterable[tuple[int, int]]:
        """(index into `rows`, index of a chunk) of the chunks of these windows' steps."""
        numbers = self._windows.number[rows]
        low = np.searchsorted(self._chunks[:, 0], numbers, "left")
        high = np.searchsorted(self._chunks[:, 0], numbers, "right")
        for index in np.flatnonzero(high > low):
            for chunk in range(int(low[index]), int(high[index])):
                yield int(index), chunk


def _ranges(rows: Ints) -> list[tuple[int, int]]:
    """[from, to) of runs of rows that stand next to each other."""
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(rows, breaks)]
