"""Times settings of the paged decode attention on a GPU, to choose the rule in its launcher from.

Knows shapes and settings; compiles in several processes first, so that a sweep takes a minute and not ten.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ..kernels.triton_decode_attention import decode_attention
from .timing import call_microseconds

_DEVICE = "cuda"
_ROTATED_BYTES = 256 << 20  # input sets together: several times the L2 cache
_MAX_SETS = 24
_CHECKED_ROWS = 3


class Shape(NamedTuple):
    """A batch to time. `context`: tokens of each row, or (least, most) of rows drawn evenly."""

    page: int
    batch: int
    context: int | tuple[int, int]
    num_kv_heads: int = 8
    group: int = 2
    head_dim: int = 128
    longest_first: bool = False


class Variant(NamedTuple):
    """A kernel to compile: everything that a number of splits doesn't change."""

    tile: int
    num_warps: int
    num_stages: int
    ahead: bool = True
    peel: bool = True


SHAPES = (
    Shape(16, 256, 560),
    Shape(16, 256, 1100),
    Shape(256, 256, 1100),
    Shape(16, 256, (100, 2000)),
    Shape(16, 256, (100, 2000), longest_first=True),
    Shape(16, 64, 1100),
    Shape(16, 32, 1100),
    Shape(16, 8, 1100),
    Shape(16, 1, 768),
    Shape(16, 1, 4000),
)
VARIANTS = (
    Variant(64, 2, 4, ahead=False),
    Variant(64, 4, 2, ahead=False),
    Variant(128, 4, 4, ahead=False),
    *(Variant(64, 2, stages) for stages in (2, 3, 4)),
    *(Variant(64, 4, stages) for stages in (2, 3, 4)),
    *(Variant(128, 4, stages) for stages in (2, 3)),
    Variant(128, 8, 3),
    Variant(32, 1, 4),
    Variant(32, 2, 4),
    Variant(64, 2, 3, peel=False),
    Variant(64, 2, 4, peel=False),
    Variant(64, 4, 3, peel=False),
    Variant(128, 4, 2, peel=False),
    Variant(32, 2, 4, peel=False),
)


@dataclass(frozen=True)
class Inputs:
    """Arguments of `decode_attention`: one entry of `queries` and `tables` for each input set of a pool of pages."""

    queries: list[Tensor]
    keys: Tensor
    values: Tensor
    tables: list[Tensor]
    contexts: Tensor
    scale: float

    def call(self, which: int, variant: Variant | None, splits: int | None, dependent: bool | None = None) -> Tensor:
        """Attention of one input set; no variant: the launcher's own choice."""
        chosen = variant._asdict() if variant else {}
        return decode_attention(
            self.queries[which], self.keys, self.values, self.tables[which], None, self.contexts, self.scale,
            max_context_len=4096, num_splits=splits, dependent=dependent, **chosen,
        )  # fmt: skip

    def read_bytes(self) -> int:
        """Bytes of keys and values that one call reads."""
        return 2 * int(self.contexts.sum()) * self.keys[0, 0].numel() * self.keys.element_size()


def make_inputs(shape: Shape, dtype: torch.dtype, num_sets: int | None = None) -> Inputs:
    """Random queries, keys and values on the GPU; every row's pages lie scattered over the pool."""
    generator = torch.Generator().manual_seed(7)
    least, most = shape.context if isinstance(shape.context, tuple) else (shape.context, shape.context)
    contexts = torch.randint(least, most + 1, (shape.batch,), generator=generator, dtype=torch.int32)
    if shape.longest_first:
        contexts = contexts.sort(descending=True).values
    # Tables of all sets are aligned alike: Triton would compile once more for another alignment, within the capture.
    columns = 16 * -(-most // (16 * shape.page))
    row_size = shape.num_kv_heads * shape.head_dim
    set_bytes = 2 * int(contexts.sum()) * row_size * dtype.itemsize
    num_sets = num_sets or max(1, min(_MAX_SETS, -(-_ROTATED_BYTES // set_bytes)))
    num_pages = num_sets * shape.batch * columns
    tables = torch.randperm(num_pages, generator=generator).int().view(num_sets, shape.batch, columns).to(_DEVICE)
    pool = (num_pages, shape.page, shape.num_kv_heads, shape.head_dim)
    heads = shape.num_kv_heads * shape.group
    return Inputs(
        queries=[torch.randn(shape.batch, heads, shape.head_dim, dtype=dtype, device=_DEVICE) for _ in range(num_sets)],
        keys=torch.randn(pool, dtype=dtype, device=_DEVICE),
        values=torch.randn(pool, dtype=dtype, device=_DEVICE),
        tables=list(tables),
        contexts=contexts.to(_DEVICE),
        scale=shape.head_dim**-0.5,
    )


def reference(inputs: Inputs, row: int) -> Tensor:
    """[Hq, D] float64 of one row of the first input set."""
    context = int(inputs.contexts[row])
    page = inputs.keys.shape[1]
    pages = inputs.tables[0][row, : -(-context // page)].long()
    keys = inputs.keys[pages].flatten(0, 1)[:context].double()
    values = inputs.values[pages].flatten(0, 1)[:context].double()
    q = inputs.queries[0][row].double().view(keys.shape[1], -1, keys.shape[2])
    scores = torch.einsum("hgd,thd->hgt", q, keys) * inputs.scale
    return torch.einsum("hgt,thd->hgd", scores.softmax(-1), values).flatten(0, 1)


def graph_microseconds(call: Callable[[int], Tensor], num_sets: int, replays: int = 7) -> float:
    """Median time of one call in a replayed CUDA graph that goes through all input sets."""
    return call_microseconds([partial(call, which) for which in range(num_sets)], torch.device(_DEVICE), replays)


def split_numbers(shape: Shape) -> tuple[int, ...]:
    """Numbers of splits that are worth timing: those that leave half to eight programs to a multiprocessor."""
    programs = shape.batch * shape.num_kv_heads
    candidates = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
    return tuple(n for n in candidates if n == 1 or 60 <= programs * n <= 1100 or (n == 2 and programs <= 2100))


def _compile(task: tuple[Shape, Variant, bool, torch.dtype]) -> None:
    """Compile into Triton's cache on disk, on a batch of one row."""
    shape, variant, split, dtype = task
    inputs = make_inputs(shape._replace(batch=1, longest_first=False), dtype, num_sets=1)
    try:
        inputs.call(0, variant, 2 if split else 1)
        torch.cuda.synchronize()
    except Exception as error:  # too large for the device: the sweep leaves it out too
        print(f"not compiled: {shape} {variant}: {str(error).splitlines()[0]}", flush=True)


def compile_all(shapes: Sequence[Shape], variants: Sequence[Variant], dtype: torch.dtype) -> None:
    """Fill Triton's cache from several processes."""
    kinds: dict[tuple[int, int, int, int, bool], tuple[Shape, bool]] = {}
    for shape in shapes:
        for split in {number > 1 for number in split_numbers(shape)}:
            kinds[shape.page, shape.group, shape.head_dim, shape.num_kv_heads, split] = (shape, split)
    tasks = [(shape, variant, split, dtype) for shape, split in kinds.values() for variant in variants]
    workers = max(1, min(14, (os.cpu_count() or 2) - 2, len(tasks)))
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_compile, tasks))


def _row(label: str, microseconds: float, error: float, inputs: Inputs) -> str:
    rate = inputs.read_bytes() / microseconds / 1e6
    return f"  {label:<58} {microseconds:8.1f} us  {rate:5.2f} TB/s  error {error:.1e}"


def sweep_shape(shape: Shape, variants: Sequence[Variant], dtype: torch.dtype, best: int) -> None:
    """Time all variants on one shape and print the `best` ones, then the launcher's own choice."""
    inputs = make_inputs(shape, dtype)
    rows = range(0, shape.batch, max(1, shape.batch // _CHECKED_ROWS))
    expected = torch.stack([reference(inputs, row) for row in rows])

    def timed(variant: Variant | None, splits: int | None, dependent: bool | None = None) -> tuple[float, float]:
        got = inputs.call(0, variant, splits, dependent)[list(rows)].double()
        error = float((got - expected).norm() / expected.norm())
        return graph_microseconds(lambda i: inputs.call(i, variant, splits, dependent), len(inputs.queries)), error

    results = []
    for variant in variants:
        for splits in split_numbers(shape):
            try:
                results.append((*timed(variant, splits), variant, splits))
            except Exception as refusal:  # a setting that doesn't fit the device is left out, and said
                print(f"  {variant} splits={splits}: {type(refusal).__name__}: {str(refusal).splitlines()[0]}")
    results.sort()
    print(f"{shape}: {len(results)} settings, worst error {max(error for _, error, _, _ in results):.1e}")
    for microseconds, error, variant, splits in results[:best]:
        print(_row(f"{'/'.join(map(str, variant))} splits={splits}", microseconds, error, inputs))
    if results[0][3] > 1:
        print(_row("the first, combined by an ordinary launch", *timed(results[0][2], results[0][3], False), inputs))
    print(_row("the launcher's choice", *timed(None, None), inputs), flush=True)


def sweep(
    shapes: Sequence[Shape] = SHAPES,
    variants: Sequence[Variant] = VARIANTS,
    dtype: torch.dtype = torch.bfloat16,
    best: int = 4,
    seconds: float = 90.0,
) -> None:
    """Print the best settings of each shape; shapes that the time doesn't reach are named."""
    start = time.monotonic()
    compile_all(shapes, variants, dtype)
    print(f"compiled in {time.monotonic() - start:.0f} s; settings are tile/warps/stages/ahead/peel", flush=True)
    for shape in shapes:
        if time.monotonic() - start > seconds:
            print(f"{shape}: not reached in {seconds:.0f} s")
            continue
        sweep_shape(shape, variants, dtype, best)
        torch.cuda.empty_cache()
    print(f"{time.monotonic() - start:.0f} s in all")


if __name__ == "__main__":
    sweep()
