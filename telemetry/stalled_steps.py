"""Which steps took far longer than their work does: the process or the machine stood still. Knows no sequences.

docs/latency.md says where the bounds come from.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .step_costs import Floats

RATIO = 10.0  # times what the model says: noise, clock rates and busy neighbours stretch a step by less
LEAST_NS = 250_000_000  # beyond the model: more than a scheduler's time slices or a collection of garbage take
USUAL = 2.0  # within this factor of the model, a step took what the model says
LEAST_USUAL = 8  # steps of a kind that did, or the model says nothing of the kind
LEAST_SHARE = 0.1  # of the steps of the kind, that did
WARM_UP = 3  # steps of a kind that may be making something ready for the first time

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def stalls(work: Ints, costs: Floats, kinds: Ints, known: Bools) -> Ints:
    """[n] nanoseconds that each step took beyond what its work costs, where that was far more; 0 elsewhere.

    Args:
        work: [n] nanoseconds of device time.
        costs: [n] the same by the model.
        kinds: [n] of steps that run the same kernels, as numbers.
        known: [n] whether the step's work is, and the model is of its like.
    """
    found: Ints = np.zeros(len(work), dtype=np.int64)
    whole: Ints = np.ceil(costs).astype(np.int64)
    suspects: Bools = known & (costs > 0) & (work >= RATIO * costs) & (work - whole >= LEAST_NS)
    for kind in np.unique(kinds[suspects]):
        rows = np.flatnonzero(known & (kinds == kind))
        usual = rows[(work[rows] <= USUAL * costs[rows]) & (work[rows] * USUAL >= costs[rows])]
        if len(usual) < max(LEAST_USUAL, LEAST_SHARE * len(rows)):
            continue
        rows = rows[WARM_UP:]
        rows = rows[suspects[rows] & (costs[rows] <= USUAL * costs[usual].max())]  # of larger ones nothing is known
        found[rows] = work[rows] - whole[rows]
    return found
