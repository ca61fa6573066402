"""The time of a run cut into windows, one a step, and each window's device time divided among what caused it.

A window reaches from the reading of one step to the reading of the next. Its last part is the step's device time; what
is before that is the host's, or the engine was paused; a step that was granted runs while it is paused again. Sums
over any range of windows cost the same.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from .stalled_steps import stalls
from .step_costs import Floats, StepCostModel, fit
from .tracks import StepTable

Ints = NDArray[np.int64]
Shares = tuple[float, float, float]  # of device time, in nanoseconds: own, prefill interference, batch cost


def _sums(values: NDArray[np.generic]) -> NDArray[np.generic]:
    """[n] -> [n + 1]: sums of the first so many."""
    result = np.zeros(len(values) + 1, dtype=values.dtype)
    np.cumsum(values, out=result[1:])
    return result


class StepWindows:
    """Windows of all finished steps.

    Args:
        table: the steps.
        pauses: (begin, end, cause) of the times in which the engine was paused.
        begin_t: where the journal begins.
        model: of the steps' cost; None fits one to these.
        unread_t: when the first step was planned that nobody has read yet; 0: none is.
        skews: step, slowest rank, nanoseconds beyond the median one; step after step.
        odd: steps that may take longer than their work: launched again in parts, or the first of their kind.

    Attributes:
        model: the one that divides.
        number, end_t, begin_t: of each window: its step, and clock nanoseconds.
        device: nanoseconds of device time.
        host: nanoseconds in which the device had nothing of this step to do, and the engine was not paused.
        paused: the rest.
        skew: of `device`, what the slowest rank computed longer than the median one.
        slowest: that rank.
        stall: of the rest, what a step took beyond its cost that took far longer than its work does.
        cost: the device time of each step's work by the model, in nanoseconds.
        fixed, prefill, decode: the rest of `device`, divided: what any step costs, what its chunks add, what its
            decodes add.
        seen: whether the journal holds its plan.
        columns: of StepTable; no work where the plan was not seen.
        unit: device nanoseconds to one of the model's (0 where the step's time was not measured).
    """

    def __init__(
        self,
        table: StepTable,
        pauses: Sequence[tuple[int, int, str]],
        begin_t: int,
        model: StepCostModel | None = None,
        unread_t: int = 0,
        skews: Sequence[int] = (),
        odd: Collection[int] = (),
    ) -> None:
        columns = np.array(table.rows, dtype=np.int64).reshape(-1, len(StepTable.COLUMNS)).T
        named = dict(zip(StepTable.COLUMNS, columns, strict=True))
        self.number: Ints = named["number"]
        self.end_t: Ints = named["end_t"]
        self.begin_t: Ints = np.concatenate(([begin_t], self.end_t[:-1])) if len(table) else self.end_t
        self.unread_t = unread_t
        work = np.stack([named[name] for name in StepTable.WORK], axis=1).astype(np.float64)
        self.seen: NDArray[np.bool_] = work[:, 0] >= 0
        work = np.maximum(work, 0.0)
        features: Floats = np.concatenate([np.ones((len(work), 1)), work], axis=1)
        if model is None:
            model = fit(features[self.seen], named["device_ns"][self.seen].astype(np.float64))
        self.model = model
        self._since: Ints = np.array([begin for begin, _, _ in pauses], dtype=np.int64)
        self._until: Ints = np.array([end for _, end, _ in pauses], dtype=np.int64)
        self._sum_pauses = _sums(self._until - self._since)
        self.columns: dict[str, Ints] = named | {name: np.maximum(named[name], 0) for name in StepTable.WORK}
        self._odd = np.array(sorted(odd), dtype=np.int64)
        self._divide(features, named, np.array(skews, dtype=np.int64).reshape(-1, 3))

    def _divide(self, features: Floats, named: dict[str, Ints], skews: Ints) -> None:
        length = self.end_t - self.begin_t
        self.device: Ints = np.clip(named["device_ns"], 0, length)
        self._set_skew(skews)
        costs = features * self.model.coefficients
        self.cost: Floats = costs.sum(axis=1)
        kinds = (named["prefill_tokens"] > 0) + 2 * (named["decodes"] > 0)
        work = self.device - self.skew
        self.stall: Ints = stalls(work, self.cost, kinds, self.seen & ~np.isin(self.number, self._odd))
        work = work - self.stall
        self.paused: Ints = self._paused_before(self.end_t - self.device) - self._paused_before(self.begin_t)
        self.host: Ints = length - self.device - self.paused
        costs[self.cost <= 0, 0] = 1.0
        self.unit: Floats = np.where(self.seen, work, 0) / costs.sum(axis=1)
        self.fixed: Floats = costs[:, 0] * self.unit
        self.prefill: Floats = (costs[:, 1] + costs[:, 2]) * self.unit
        self.decode: Floats = (costs[:, 3] + costs[:, 4]) * self.unit
        has_decodes = named["decodes"] > 0
        self._ordinal: Ints = np.cumsum(has_decodes) - has_decodes
        by_key = np.where(has_decodes, self.unit * self.model.decode_context, 0.0)
        self._sum_each = _sums(np.where(has_decodes, self.unit * self.model.decode, 0.0))
        self._sum_key = _sums(by_key)
        self._sum_key_ordinal = _sums(by_key * self._ordinal)
        self._sum_prefill, self._sum_decode = _sums(self.prefill), _sums(self.decode)
        self._sum_fixed = _sums(np.where(has_decodes, self.fixed, 0.0))  # of steps with decodes, and of the others
        self._sum_fixed_alone = _sums(np.where(has_decodes, 0.0, self.fixed))
        self._sum_device, self._sum_host, self._sum_paused = _sums(self.device), _sums(self.host), _sums(self.paused)
        self._sum_unseen, self._sum_skew = _sums(np.where(self.seen, 0, work)), _sums(self.skew)
        self._sum_stall = _sums(self.stall)

    def _set_skew(self, skews: Ints) -> None:
        """Take over [n, 3] step, rank, nanoseconds; steps that were not read have no window."""
        self.skew: Ints = np.zeros(len(self), dtype=np.int64)
        self.slowest: Ints = np.zeros(len(self), dtype=np.int64)
        told = skews[np.isin(skews[:, 0], self.number)]
        rows = np.searchsorted(self.number, told[:, 0])
        self.slowest[rows] = told[:, 1]
        self.skew[rows] = np.minimum(told[:, 2], self.device[rows])

    def __len__(self) -> int:
        return len(self.end_t)

    def rows_of(self, first: int, last: int) -> tuple[int, int]:
        """[from, to) of the windows of steps `first` to `last`."""
        return int(np.searchsorted(self.number, first, "left")), int(np.searchsorted(self.number, last, "right"))

    def row_after(self, t: int) -> int:
        """The window that the nanosecond after `t` is in; len(self) where no step was read after it."""
        return int(np.searchsorted(self.end_t, t, "right"))

    def exact(self, first: int, last: int) -> tuple[int, int, int]:
        """(device, host, paused) nanoseconds of windows [first, last)."""
        return (
            int(self._sum_device[last] - self._sum_device[first]),
            int(self._sum_host[last] - self._sum_host[first]),
            int(self._sum_paused[last] - self._sum_paused[first]),
        )

    def unseen(self, first: int, last: int) -> int:
        """Device nanoseconds of windows [first, last) in steps whose plan the journal does not hold."""
        return int(self._sum_unseen[last] - self._sum_unseen[first])

    def skewed(self, first: int, last: int) -> int:
        """Device nanoseconds of windows [first, last) that the slowest rank took longer than the median one."""
        return int(self._sum_skew[last] - self._sum_skew[first])

    def stalled(self, first: int, last: int) -> int:
        """Device nanoseconds of windows [first, last) in which steps did not get on with their work."""
        return int(self._sum_stall[last] - self._sum_stall[first])

    def bystander(self, first: int, last: int) -> Shares:
        """Of the device time of windows [first, last), for one who computes nothing there."""
        alone = float(self._sum_fixed_alone[last] - self._sum_fixed_alone[first])
        fixed = float(self._sum_fixed[last] - self._sum_fixed[first])
        prefill = float(self._sum_prefill[last] - self._sum_prefill[first])
        return 0.0, prefill + alone, float(self._sum_decode[last] - self._sum_decode[first]) + fixed

    def added(self, first: int, last: int, keys: float) -> float:
        """Device time that one adds to windows [first, last) who decodes in each of them that has decodes.

        Args:
            first, last: the windows.
            keys: that it attends to in the first of them; one more in each.
        """
        each = float(self._sum_each[last] - self._sum_each[first])
        by_key = float(self._sum_key[last] - self._sum_key[first])
        if not by_key:
            return each
        grown = float(self._sum_key_ordinal[last] - self._sum_key_ordinal[first]) - by_key * int(self._ordinal[first])
        return each + keys * by_key + grown

    def decoder(self, first: int, last: int, keys: float) -> Shares:
        """For the same one: its own part is what these steps would cost with it alone."""
        added = self.added(first, last, keys)
        fixed = float(self._sum_fixed[last] - self._sum_fixed[first])
        _, interference, batch = self.bystander(first, last)
        return fixed + added, interference, batch - fixed - added

    def prefiller(self, row: int, tokens: int, pairs: int) -> Shares:
        """For one whose chunk is in window `row`."""
        unit, model = float(self.unit[row]), self.model
        chunk = unit * (model.prefill_token * tokens + model.prefill_pair * pairs)
        fixed = float(self.fixed[row])
        return chunk + fixed, float(self.prefill[row]) - chunk, float(self.decode[row])

    def keys_at(self, first: int, row: int, keys: int) -> int:
        """Keys that a decode attends to in window `row`, if it attended to `keys` in window `first`."""
        return keys + int(self._ordinal[row] - self._ordinal[first])

    def clip(self, row: int, begin: int, end: int) -> tuple[int, int, int]:
        """(device, host, paused) nanoseconds of the part of a window from `begin` to `end`."""
        starts = min(max(int(self.end_t[row]) - int(self.device[row]), begin), end)
        paused = self.paused_within(begin, starts)
        return end - starts, starts - begin - paused, paused

    def unread(self, begin: int, end: int) -> tuple[int, int, int]:
        """The same after the last window: the device works from the planning of a step that nobody has read yet."""
        planned = min(max(self.unread_t or end, begin), end)
        before, after = self.paused_within(begin, planned), self.paused_within(planned, end)
        return end - planned - after, planned - begin - before, before + after

    def paused_within(self, begin: int, end: int) -> int:
        """Nanoseconds of an interval in which the engine was paused."""
        if not len(self._since):
            return 0
        before, after = self._paused_before(np.array((begin, end)))
        return int(after - before)

    def _paused_before(self, t: Ints) -> Ints:
        """[n] -> [n]: nanoseconds up to each time in which the engine was paused."""
        begun = np.searchsorted(self._since, t, "right")
        if not len(self._since):
            return np.zeros(len(t), dtype=np.int64)
        rest = np.where(begun > 0, self._until[begun - 1] - t, 0)  # of the pause that was the last to begin
        return np.asarray(self._sum_pauses[begun] - np.maximum(rest, 0), dtype=np.int64)
