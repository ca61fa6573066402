"""What a step costs: a model of its device time, fitted to the steps of a journal. Knows no sequences.

The time on the device is taken as a + b * prefill tokens + c * prefill pairs + d * decodes + e * decode context, all
coefficients >= 0: a fixed cost (weights read, launches), work per token, and attention, which grows with the pairs of a
query and a key. The fit is non-negative least squares on relative errors (Lawson and Hanson, Solving Least Squares
Problems, 1974, ch. 23), repeated without the steps that lie far off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .quantile import quantile

FEATURES = ("fixed", "prefill_token", "prefill_pair", "decode", "decode_context")
OUTLIER = 5.0  # median deviations beyond which a step is left out of the next fit
ROUNDS = 3

Floats = NDArray[np.float64]


def pairs_of(start: int, count: int) -> int:
    """Query-key pairs of a chunk of `count` tokens after `start` others: each attends to itself and all before it."""
    return count * start + count * (count + 1) // 2


@dataclass(frozen=True, slots=True)
class StepCostModel:
    """Nanoseconds of device time.

    Attributes:
        fixed: of any step.
        prefill_token: per token of a chunk.
        prefill_pair: per query-key pair of a chunk.
        decode: per decode.
        decode_context: per token of context that decodes read.
        num_steps: that it was fitted to.
        median_error: half of these steps are off by less: |predicted - measured| / measured.
        p90_error: as above, nine of ten.
    """

    fixed: float = 0.0
    prefill_token: float = 0.0
    prefill_pair: float = 0.0
    decode: float = 0.0
    decode_context: float = 0.0
    num_steps: int = 0
    median_error: float = 0.0
    p90_error: float = 0.0

    @property
    def coefficients(self) -> Floats:
        """In the order of FEATURES."""
        return np.array([getattr(self, name) for name in FEATURES])

    def predict(self, prefill_tokens: int, prefill_pairs: int, decodes: int, decode_context: int) -> float:
        """Device time of a step, in nanoseconds."""
        return (
            self.fixed + self.prefill_token * prefill_tokens + self.prefill_pair * prefill_pairs
            + self.decode * decodes + self.decode_context * decode_context
        )  # fmt: skip


def fit(features: Floats, device_ns: Sequence[float] | Floats) -> StepCostModel:
    """Fit the model.

    Args:
        features: [steps, 5], in the order of FEATURES, the first column ones.
        device_ns: [steps], measured.
    """
    measured = np.asarray(device_ns, dtype=np.float64)
    known = measured > 0
    if not known.any():
        return StepCostModel()
    rows, times = features[known], measured[known]
    kept = np.ones(len(times), dtype=bool)
    coefficients = np.zeros(len(FEATURES))
    for _ in range(ROUNDS):
        weights = 1.0 / times[kept]
        coefficients = _nnls(rows[kept] * weights[:, None], np.ones(int(kept.sum())))
        errors = np.abs(rows @ coefficients - times) / times
        kept = errors <= max(OUTLIER * quantile(errors, 0.5), 1e-3)
    errors = np.abs(rows @ coefficients - times) / times
    median, p90 = quantile(errors, 0.5), quantile(errors, 0.9)
    named = dict(zip(FEATURES, (float(value) for value in coefficients), strict=True))
    return StepCostModel(**named, num_steps=len(times), median_error=median, p90_error=p90)


def _nnls(matrix: Floats, target: Floats) -> Floats:
    """The x >= 0 that brings `matrix @ x` closest to `target`: the active-set method of Lawson and Hanson."""
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    a = matrix / scale
    gram, right = a.T @ a, a.T @ target
    size = gram.shape[0]
    x, passive = np.zeros(size), np.zeros(size, dtype=bool)
    for _ in range(10 * size):
        gradient = right - gram @ x
        gradient[passive] = -np.inf
        best = int(np.argmax(gradient))
        if gradient[best] <= 1e-9 * max(1.0, float(np.abs(right).max())):
            break
        passive[best] = True
        while True:
            trial = np.zeros(size)
            index = np.flatnonzero(passive)
            trial[index] = np.linalg.lstsq(gram[np.ix_(index, index)], right[index], rcond=1e-12)[0]
            if trial[index].min() > 0:
                x = trial
                break
            low = index[trial[index] <= 0]
            steps = x[low] / np.where(x[low] - trial[low] > 0, x[low] - trial[low], np.inf)
            x = x + float(steps.min()) * (trial - x)
            passive[(x <= 1e-15) & passive] = False
            x[~passive] = 0.0
            if not passive.any():
                break
    result: Floats = x / scale
    return result
