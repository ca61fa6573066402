"""Times settings of the sampling kernels on a GPU, to choose the launcher's defaults from. Knows no engine."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import torch

from ..kernels.sampling import SamplingTensors
from ..kernels.triton_sampling import sample
from .kernel_cases import sampling_params
from .report import table
from .timing import call_microseconds

ROWS, VOCAB = 256, 151_936
CHUNKS = (1024, 2048, 4096, 8192)
WARPS = (2, 4, 8)
FILTERS = ((2048, 8), (2048, 16), (4096, 8), (4096, 16))  # tile, warps
_SETS = 4  # 78 MB each: more than the L2 holds
_REPLAYS = 7


def sweep(rows: int = ROWS) -> str:
    """A table of microseconds for `rows` rows: greedy and plain draws by chunk and warps, then filtered ones."""
    device = torch.device("cuda")
    logits = [2 * torch.randn(rows, VOCAB, dtype=torch.bfloat16, device=device) for _ in range(_SETS)]
    greedy, plain = sampling_params(rows, device, 0.0), sampling_params(rows, device, 0.6)

    def timed(params: SamplingTensors, **tunables: Any) -> str:
        calls = [partial(sample, each, params, **tunables) for each in logits]
        return f"{call_microseconds(calls, device, _REPLAYS):.1f}"

    lines = [
        [f"chunk={chunk} num_warps={warps}"]
        + [timed(params, chunk=chunk, num_warps=warps) for params in (plain, greedy)]
        for chunk, warps in itertools.product(CHUNKS, WARPS)
    ]
    for warps in (1, 8):
        lines.append([f"race_warps={warps}", *(timed(params, race_warps=warps) for params in (plain, greedy))])
    asked = {"top-k 50": (50, 1.0), "top-p 0.9": (0, 0.9), "both": (50, 0.9)}
    wanted = [sampling_params(rows, device, 0.6, *each) for each in asked.values()]
    filtered = [
        [f"filter_tile={tile} filter_warps={warps}"]
        + [timed(params, filter_tile=tile, filter_warps=warps) for params in wanted]
        for tile, warps in FILTERS
    ]
    return "\n".join(
        (
            f"{rows} rows of {VOCAB:,} logits in bfloat16, microseconds",
            table(["", "T=0.6", "greedy"], lines),
            table(["", *asked], filtered),
        )
    )


if __name__ == "__main__":
    print(sweep())
