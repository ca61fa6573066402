"""What a quantile is, everywhere in this project. Knows nothing of what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def rank(count: int, q: float) -> int:
    """Which of `count` values in rising order is their quantile, from 1: the nearest rank, q x count rounded up."""
    return max(1, math.ceil(q * count - 1e-9))


def quantile(values: Sequence[float] | NDArray[np.float64], q: float) -> float:
    """The smallest value that at least q of all do not exceed: one that occurred, so that it can be pointed at.

    Args:
        values: in any order.
        q: 0 to 1.

    Returns:
        NaN of none.
    """
    return float(np.sort(np.asarray(values))[rank(len(values), q) - 1]) if len(values) else math.nan
