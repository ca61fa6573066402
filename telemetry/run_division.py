"""One time in RUNNING divided among what the sequence did, what others did, and the host.

Sums of device time are floats, rounded once at the end, so that whole nanoseconds add up exactly.
"""

from __future__ import annotations

import numpy as np

from .step_costs import pairs_of
from .step_windows import Shares, StepWindows
from .tracks import Run

SHARES = ("own_decode", "own_prefill", "recompute", "prefill_interference", "batch_cost", "rank_skew", "stalled_step",
          "unknown")  # fmt: skip


class RunDivision:
    """Divides any part of a run; used once.

    Args:
        windows: of all steps.
        run: the time in RUNNING.
    """

    def __init__(self, windows: StepWindows, run: Run) -> None:
        self._windows, self._run = windows, run
        self._device = self._host = self._paused = 0
        self._shares = dict.fromkeys(SHARES, 0.0)

    def divide(self, begin: int, end: int) -> dict[str, int]:
        """Part -> nanoseconds of [begin, end]."""
        windows = self._windows
        row, last = windows.row_after(begin), len(windows)
        while row < last and begin < end:
            row_begin, row_end = int(windows.begin_t[row]), int(windows.end_t[row])
            if begin <= row_begin and row_end <= end:
                whole = int(np.searchsorted(windows.end_t, end, "right"))
                self._count(windows.exact(row, whole))
                self._share(row, whole, 1.0)
                begin, row = int(windows.end_t[whole - 1]), whole
            else:
                stop = min(end, row_end)
                clipped = windows.clip(row, begin, stop)
                self._count(clipped)
                if clipped[0]:
                    self._share(row, row + 1, clipped[0] / int(windows.device[row]))
                begin, row = stop, row + 1
        if begin < end:
            self._unread(begin, end)
        return self._rounded()

    def _unread(self, begin: int, end: int) -> None:
        """The time after the last step that was read: what the device does in it is its own, as far as is known."""
        counted = self._windows.unread(begin, end)
        self._count(counted)
        self._shares["own_prefill" if self._run.chunks and not self._run.decodes else "own_decode"] += counted[0]

    def _count(self, exact: tuple[int, int, int]) -> None:
        device, host, paused = exact
        self._device, self._host, self._paused = self._device + device, self._host + host, self._paused + paused

    def _share(self, first: int, last: int, scale: float) -> None:
        """Divide the device time of windows [first, last)."""
        windows, at = self._windows, first
        self._shares["unknown"] += windows.unseen(first, last) * scale
        self._shares["rank_skew"] += windows.skewed(first, last) * scale
        self._shares["stalled_step"] += windows.stalled(first, last) * scale
        for low, high, own_part, shares, known in self._roles(first, last):
            self._add("own_decode", windows.bystander(at, low), scale)
            self._add(own_part, shares, scale, known)
            at = high
        self._add("own_decode", windows.bystander(at, last), scale)

    def _roles(self, first: int, last: int) -> list[tuple[int, int, str, Shares, float]]:
        """(from, to, own part, shares, how much of the own one is recomputing) of the windows in which it computed."""
        windows = self._windows
        found: list[tuple[int, int, str, Shares, float]] = []
        run: Run | None = self._run
        while run is not None:
            for step, start, count, known in run.chunks:
                low, high = windows.rows_of(step, step)
                if first <= low < high <= last:
                    shares = windows.prefiller(low, count, pairs_of(start, count))
                    found.append((low, high, "own_prefill", shares, known / count))
            for begin, end, keys in run.decodes:
                low, high = windows.rows_of(begin, end)
                at, to = max(low, first), min(high, last)
                if at < to:
                    shares = windows.decoder(at, to, windows.keys_at(low, at, keys))
                    found.append((at, to, "own_decode", shares, 0.0))
            run = run.before
        return sorted(found)

    def _add(self, own_part: str, shares: Shares, scale: float, known: float = 0.0) -> None:
        own, interference, batch = shares
        self._shares[own_part] += own * scale * (1.0 - known)
        self._shares["recompute"] += own * scale * known
        self._shares["prefill_interference"] += interference * scale
        self._shares["batch_cost"] += batch * scale

    def _rounded(self) -> dict[str, int]:
        """Whole nanoseconds: each share rounded down, what is left goes to the largest."""
        parts = {"host_gap": self._host, "engine_paused": self._paused}
        total = sum(max(0.0, share) for share in self._shares.values())
        left = self._device
        for part, share in self._shares.items():
            parts[part] = min(left, int(self._device * (max(0.0, share) / total))) if total else 0
            left -= parts[part]
        parts[max(self._shares, key=self._shares.__getitem__)] += left
        return {part: value for part, value in parts.items() if value}
