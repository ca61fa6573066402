"""Times settings of the paged prefill attention on a GPU, beside flash-attn, to choose the launcher's tiles from.

Knows shapes and settings; compiles in several processes first, so that a sweep takes a minute and not ten.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..kernels.triton_prefill_attention import default_tiles, prefill_attention

_DEVICE = "cuda"


class Shape(NamedTuple):
    """`batch` rows, each with `queries` queries, the last ones of `context` tokens."""

    page: int
    batch: int
    queries: int
    context: int
    num_kv_heads: int = 8
    group: int = 2
    head_dim: int = 128

    def flops(self) -> int:
        """Products and sums of the scores and of the weighted values, of the pairs that the causal mask leaves."""
        pairs = self.queries * (self.context - self.queries) + self.queries * (self.queries + 1) // 2
        return 4 * self.head_dim * self.num_kv_heads * self.group * self.batch * pairs


class Variant(NamedTuple):
    """A kernel to compile; `pack` as in the launcher."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    pack: int | None = None


SHAPES = (
    Shape(16, 16, 1024, 1024),
    Shape(256, 16, 1024, 1024),
    Shape(16, 4, 512, 2048),
    Shape(256, 4, 512, 2048),
)
VARIANTS = (
    *(Variant(128, 64, 8, stages) for stages in (2, 3, 4)),
    *(Variant(128, 128, 8, stages) for stages in (2, 3)),
    *(Variant(128, 32, 8, stages) for stages in (2, 3, 4)),
    *(Variant(64, 64, 4, stages) for stages in (2, 3, 4)),
    *(Variant(64, 32, 4, stages) for stages in (3, 4)),
    Variant(64, 128, 4, 2),
    Variant(64, 128, 8, 2),
    Variant(128, 64, 4, 2),
    Variant(256, 64, 16, 2),
    Variant(256, 64, 16, 3),
    Variant(128, 64, 8, 3, pack=1),
    Variant(64, 64, 4, 3, pack=1),
)


@dataclass(frozen=True)
class Inputs:
    """Arguments of the launchers."""

    q: Tensor
    keys: Tensor
    values: Tensor
    tables: Tensor
    query_start: Tensor
    key_start: Tensor
    contexts: Tensor
    shape: Shape

    @property
    def scale(self) -> float:
        """The usual 1 / sqrt(D)."""
        return float(self.shape.head_dim**-0.5)

    def call(self, variant: Variant | None) -> Tensor:
        """Attention by the Triton kernel; no variant: the launcher's own tiles."""
        tunables = variant._asdict() if variant else {}
        return prefill_attention(
            self.q, self.keys, self.values, self.tables, None, self.query_start, self.contexts, self.shape.queries,
            self.scale, **tunables,
        )  # fmt: skip

    def call_flash(self) -> Tensor:
        """Attention by flash-attn; ImportError without the package."""
        from ..kernels.flash_attention import prefill_attention as flash

        shape = self.shape
        return flash(
            self.q, self.keys, self.values, self.tables, self.query_start, self.key_start, shape.queries,
            shape.context, self.scale,
        )  # fmt: skip


def make_inputs(shape: Shape, dtype: torch.dtype) -> Inputs:
    """Random queries, keys and values on the GPU; every row's pages lie scattered over the pool."""
    generator = torch.Generator().manual_seed(7)
    columns = -(-shape.context // shape.page)
    pages = torch.randperm(shape.batch * columns, generator=generator).int()
    pool = (shape.batch * columns, shape.page, shape.num_kv_heads, shape.head_dim)
    heads = shape.num_kv_heads * shape.group
    starts = torch.arange(shape.batch + 1, dtype=torch.int32, device=_DEVICE)
    return Inputs(
        q=torch.randn(shape.batch * shape.queries, heads, shape.head_dim, dtype=dtype, device=_DEVICE),
        keys=torch.randn(pool, dtype=dtype, device=_DEVICE),
        values=torch.randn(pool, dtype=dtype, device=_DEVICE),
        tables=pages.view(shape.batch, columns).to(_DEVICE),
        query_start=starts * shape.queries,
        key_start=starts * shape.context,
        contexts=torch.full((shape.batch,), shape.context, dtype=torch.int32, device=_DEVICE),
        shape=shape,
    )


def reference(inputs: Inputs) -> Tensor:
    """[queries, Hq, D] float64 of the last row."""
    shape = inputs.shape
    q = inputs.q[-shape.queries :].double()
    pages = inputs.tables[-1].long()
    keys, values = (
        cache[pages].flatten(0, 1)[: shape.context].double().repeat_interleave(shape.group, 1)
        for cache in (inputs.keys, inputs.values)
    )
    scores = torch.einsum("qhd,khd->hqk", q, keys) * inputs.scale
    seen = torch.ones(scores.shape[1:], dtype=torch.bool, device=_DEVICE).tril(shape.context - shape.queries)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), values)


def microseconds(call: Callable[[], object], calls: int = 10, rounds: int = 5) -> float:
    """Median over rounds of the time of one of several calls in a row, launched ahead of the device."""
    call()
    times: list[float] = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / calls)
    return statistics.median(times)


def _compile(task: tuple[Shape, Variant, torch.dtype]) -> None:
    """Compile into Triton's cache on disk, on a batch of one row."""
    shape, variant, dtype = task
    try:
        make_inputs(shape._replace(batch=1), dtype).call(variant)
        torch.cuda.synchronize()
    except Exception as error:  # too large for the device: the sweep leaves it out too
        print(f"not compiled: {shape} {variant}: {str(error).splitlines()[0]}", flush=True)


def compile_all(shapes: Sequence[Shape], variants: Sequence[Variant], dtype: torch.dtype) -> None:
    """Fill Triton's cache from several processes."""
    kernels = {shape._replace(batch=0, queries=0, context=0): shape for shape in shapes}
    tasks = [(shape, variant, dtype) for variant in variants for shape in kernels.values()]
    workers = max(1, min(14, (os.cpu_count() or 2) - 2, len(tasks)))
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_compile, tasks))


def _timed(call: Callable[[], Tensor], inputs: Inputs, expected: Tensor) -> tuple[float, float]:
    """(microseconds, relative error of the last row)."""
    got = call()[-inputs.shape.queries :].double()
    return microseconds(call), float((got - expected).norm() / expected.norm())


def _row(label: str, shape: Shape, result: tuple[float, float]) -> str:
    time_us, error = result
    return f"  {label:<44} {time_us:8.1f} us  {shape.flops() / time_us / 1e6:6.1f} TFLOP/s  error {error:.1e}"


def sweep_shape(shape: Shape, variants: Sequence[Variant], dtype: torch.dtype, best: int) -> None:
    """Time all variants on one shape and print the `best` ones, then the launcher's own choice and flash-attn."""
    inputs = make_inputs(shape, dtype)
    expected = reference(inputs)
    results: list[tuple[tuple[float, float], Variant]] = []
    for variant in variants:
        try:
            results.append((_timed(lambda v=variant: inputs.call(v), inputs, expected), variant))  # type: ignore[misc]
        except Exception as error:  # a setting that doesn't fit the device is left out, and said
            print(f"  {variant}: {type(error).__name__}: {str(error).splitlines()[0]}")
    results.sort(key=lambda result: result[0])
    print(f"{shape}: {len(results)} settings, worst error {max(error for (_, error), _ in results):.1e}")
    for result, variant in results[:best]:
        print(_row("/".join(map(str, variant)), shape, result))
    tiles = default_tiles(shape.head_dim, dtype, shape.queries * shape.group)
    own = _timed(lambda: inputs.call(None), inputs, expected)
    print(_row(f"launcher's choice {'/'.join(map(str, tiles))}", shape, own))
    if shape.page % 256 == 0:
        try:
            print(_row("flash-attn", shape, _timed(inputs.call_flash, inputs, expected)))
        except ImportError as error:
            print(f"  flash-attn: {error}")


def sweep(
    shapes: Sequence[Shape] = SHAPES,
    variants: Sequence[Variant] = VARIANTS,
    dtype: torch.dtype = torch.bfloat16,
    best: int = 6,
    seconds: float = 60.0,
) -> None:
    """Print the best settings of each shape; shapes that the time doesn't reach are named."""
    start = time.monotonic()
    compile_all(shapes, variants, dtype)
    print(f"compiled in {time.monotonic() - start:.0f} s; settings are block_m/block_n/warps/stages/pack", flush=True)
    for shape in shapes:
        if time.monotonic() - start > seconds:
            print(f"{shape}: not reached in {seconds:.0f} s")
            continue
        sweep_shape(shape, variants, dtype, best)
        torch.cuda.empty_cache()
    print(f"{time.monotonic() - start:.0f} s in all")


if __name__ == "__main__":
    sweep()
