"""Times products of a few rows on a GPU: settings of our kernels against cuBLAS and the reading of the weight.

Each figure is a product's time within a CUDA graph over as many weights as don't fit into the L2 cache. Knows no model.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels import triton_linear
from .timing import call_microseconds

# Qwen3-0.6B's products: form, in, rows of the weight.
PRODUCTS = [
    ("norm_linear", 1024, 4096),
    ("linear_add", 2048, 1024),
    ("norm_gated_linear", 1024, 6144),
    ("linear_add", 3072, 1024),
    ("skinny_linear", 1024, 4096),
    ("skinny_linear", 1024, 151936),
]
READ_TB_S = 4.3  # of an H200, from a sum over 4 GiB
_BYTES = 512 << 20
_REPLAYS = 20


def product(form: str, x: Tensor, residual: Tensor, norm: Tensor, weight: Tensor, **tunables: int | bool) -> Tensor:
    """One call of a form of triton_linear."""
    call: Callable[..., Tensor] = getattr(triton_linear, form)
    if form.startswith("norm"):
        return call(x, norm, 1e-6, weight, **tunables)
    return call(x, weight, residual, **tunables) if form == "linear_add" else call(x, weight, **tunables)


def time_graph(calls: list[Callable[[], Tensor]]) -> float:
    """Microseconds of one of `calls`, all of them in one graph, the median of replays."""
    return call_microseconds(calls, torch.device("cuda"), _REPLAYS)


def sweep(form: str, size: int, rows: int, tokens: int) -> None:
    """Print the floor, cuBLAS, the default setting and the three best ones, half a second each to compile."""
    make = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    weights = [make(rows, size) for _ in range(max(_BYTES // (rows * size * 2), 2))]
    x, residual, norm = make(tokens, size), make(tokens, rows), make(size)

    def ours(**tunables: int | bool) -> float:
        return time_graph([partial(product, form, x, residual, norm, weight, **tunables) for weight in weights])

    settings = [(o, w) for o, w in itertools.product((2, 4, 8), (2, 4, 8)) if tokens * o <= 32 and w * 256 <= 2 * size]
    found = sorted((ours(rows=o, num_warps=w), o, w) for o, w in settings)
    best = ", ".join(f"{us:.2f} us rows={o} warps={w}" for us, o, w in found[:3])
    late = ours(rows=found[0][1], num_warps=found[0][2], early=False)
    floor = rows * size * 2 / READ_TB_S / 1e6
    cublas = time_graph([partial(F.linear, x, weight) for weight in weights])
    print(
        f"{form} {size}x{rows} tokens={tokens}: floor {floor:.2f} us, cuBLAS alone {cublas:.2f}, default {ours():.2f}; "
        f"best {best}; the first without early launch {late:.2f}",
        flush=True,
    )


def main() -> int:
    """Sweep all products; arguments: the numbers of tokens (1 4)."""
    for tokens in [int(argument) for argument in sys.argv[1:]] or [1, 4]:
        for form, size, rows in PRODUCTS:
            sweep(form, size, rows, tokens)
    return 0


if __name__ == "__main__":
    sys.exit(main())
