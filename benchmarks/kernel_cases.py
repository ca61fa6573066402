"""What `nano-bench kernels` times: each operation of kernels/ on inputs of Qwen3-0.6B's shape, or on small ones.

An operation has several sets of inputs, so that a set has left the caches when its turn comes again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels import activation, decode_inputs, fused_linear, norm, qkv, sampling
from ..kernels.attention import AttentionMetadata, build_metadata, decode_metadata, paged_attention
from ..kernels.attention_choice import Backend
from ..kernels.dispatch import on_gpu
from ..kernels.linear import linear
from .kernel_shapes import Case, Scale
from .timing import Call

_ROTATED_BYTES = {"cuda": 256 << 20, "cpu": 16 << 20}  # of all sets together
_MAX_SETS = {"cuda": 64, "cpu": 8}
_EPS = 1e-6
FLASH_PAGE = 256


@dataclass(frozen=True)
class CaseMaker:
    """Makes the cases, one after the other: the inputs of all would not fit into memory together."""

    scale: Scale
    device: torch.device
    dtype: torch.dtype
    with_flash: bool

    def all(self) -> Iterator[Case]:
        """Every case."""
        for tokens in self.scale.elementwise:
            yield from self._norms(tokens)
            yield from self._qkv(tokens)
        for tokens in self.scale.few_rows:
            yield from self._few_rows(tokens)
        for tokens in self.scale.products:
            yield self._layer(tokens)
        for batch, context in self.scale.decodes:
            yield self._decode(batch, context)
        yield self._prefill(*self.scale.prefill)
        yield self._sampling("plain")
        yield self._sampling("top-k 50, top-p 0.9", top_k=50, top_p=0.9)
        yield self._sampling("greedy", temperature=0.0)
        yield self._decode_inputs()

    def _draw(self, *shape: int) -> Tensor:
        return torch.randn(shape, dtype=self.dtype, device=self.device)

    def _sets(self, make: Callable[[], tuple[Tensor, ...]], num_bytes: int) -> list[tuple[Tensor, ...]]:
        """As many sets of inputs as don't stay in a cache."""
        return [make() for _ in range(self._num_sets(num_bytes))]

    def _num_sets(self, num_bytes: int) -> int:
        kind = self.device.type
        return max(1, min(_MAX_SETS[kind], -(-_ROTATED_BYTES[kind] // num_bytes)))

    def _case(
        self,
        name: str,
        shape: str,
        make: Callable[[], tuple[Tensor, ...]],
        num_bytes: int,
        call: Callable[..., object],
        reference: Callable[..., object] | None,
        flops: int = 0,
    ) -> Case:
        sets = self._sets(make, num_bytes)
        plain: tuple[Call, ...] = ()
        if reference is not None and self.device.type == "cuda":
            plain = tuple(partial(reference, *each) for each in sets)
        return Case(name, shape, [partial(call, *each) for each in sets], num_bytes, flops, plain)

    def _norms(self, tokens: int) -> Iterator[Case]:
        hidden, inner, size = self.scale.hidden, self.scale.intermediate, self.dtype.itemsize
        weight, shape = self._draw(hidden), f"{tokens} x {hidden}"
        yield self._case(
            "rms_norm", shape, lambda: (self._draw(tokens, hidden),), 2 * tokens * hidden * size,
            lambda x: norm.rms_norm(x, weight, _EPS), lambda x: norm.torch_rms_norm(x, weight, _EPS),
        )  # fmt: skip
        yield self._case(
            "add_rms_norm", shape, lambda: (self._draw(tokens, hidden), self._draw(tokens, hidden)),
            4 * tokens * hidden * size,
            lambda x, y: norm.add_rms_norm(x, y, weight, _EPS),
            lambda x, y: norm.torch_add_rms_norm(x, y, weight, _EPS),
        )  # fmt: skip
        yield self._case(
            "silu_and_mul", f"{tokens} x {2 * inner}", lambda: (self._draw(tokens, 2 * inner),),
            3 * tokens * inner * size, activation.silu_and_mul, activation.torch_silu_and_mul,
        )  # fmt: skip

    def _qkv(self, tokens: int) -> Iterator[Case]:
        s, size = self.scale, self.dtype.itemsize
        q_norm, k_norm = self._draw(s.head_dim), self._draw(s.head_dim)
        angles = torch.rand(4096, s.head_dim, device=self.device)
        positions = torch.randint(0, 4096, (tokens,), device=self.device)
        slots = torch.randperm(16 * tokens, device=self.device)[:tokens]
        pool = (tokens, 16, s.num_kv_heads, s.head_dim)
        caches = (
            torch.zeros(pool, dtype=self.dtype, device=self.device),
            torch.zeros(pool, dtype=self.dtype, device=self.device),
        )

        def split(function: Callable[..., object]) -> Callable[[Tensor], object]:
            return lambda x: function(
                x, positions, angles, q_norm, k_norm, _EPS, *caches, slots, s.num_heads, s.num_kv_heads, s.head_dim
            )

        def store(function: Callable[..., object]) -> Callable[[Tensor, Tensor], object]:
            return lambda key, value: function(key, value, *caches, slots)

        row = s.num_kv_heads * s.head_dim
        yield self._case(
            "split_norm_rope_store", f"{tokens} x {s.qkv_size}", lambda: (self._draw(tokens, s.qkv_size),),
            2 * tokens * s.qkv_size * size + tokens * s.head_dim * 4,
            split(qkv.split_norm_rope_store), split(qkv.torch_split_norm_rope_store),
        )  # fmt: skip
        heads = (tokens, s.num_kv_heads, s.head_dim)
        yield self._case(
            "store_kv", f"{tokens} x {row}", lambda: (self._draw(*heads), self._draw(*heads)), 4 * tokens * row * size,
            store(qkv.store_kv), store(qkv.torch_store_kv),
        )  # fmt: skip

    def _few_rows(self, tokens: int) -> Iterator[Case]:
        s = self.scale
        attended = s.num_heads * s.head_dim

        def product(
            name: str, rows: int, columns: int, call: Callable[..., object], plain: Callable[..., object]
        ) -> Case:
            return self._case(
                name, f"{tokens} x {columns} -> {rows}", lambda: (self._draw(rows, columns),),
                (rows * columns + tokens * (rows + columns)) * self.dtype.itemsize, call, plain,
                flops=2 * tokens * rows * columns,
            )  # fmt: skip

        x, y, z = (self._draw(tokens, columns) for columns in (s.hidden, attended, s.intermediate))
        scale = self._draw(s.hidden)
        skinny = on_gpu("triton_linear", "skinny_linear") if self.device.type == "cuda" else linear

        def normed() -> Tensor:
            return norm.torch_rms_norm(x, scale, _EPS)

        yield product(
            "norm_linear", s.qkv_size, s.hidden,
            lambda w: fused_linear.norm_linear(x, scale, _EPS, w), lambda w: linear(normed(), w),
        )  # fmt: skip
        for given in (y, z):
            yield product(
                "linear_add", s.hidden, given.shape[1],
                lambda w, given=given: fused_linear.linear_add(given, w, x),
                lambda w, given=given: x + linear(given, w),
            )  # fmt: skip
        yield product(
            "norm_gated_linear", 2 * s.intermediate, s.hidden,
            lambda w: fused_linear.norm_gated_linear(x, scale, _EPS, w),
            lambda w: activation.torch_silu_and_mul(linear(normed(), w)),
        )  # fmt: skip
        for rows in (s.qkv_size, s.vocab):
            yield product("skinny_linear", rows, s.hidden, lambda w: skinny(x, w), lambda w: linear(x, w))

    def _layer(self, tokens: int) -> Case:
        """The four products of a layer, as torch has them."""
        s = self.scale
        attended = s.num_heads * s.head_dim
        sizes = [
            (s.qkv_size, s.hidden),
            (s.hidden, attended),
            (2 * s.intermediate, s.hidden),
            (s.hidden, s.intermediate),
        ]
        given = [self._draw(tokens, columns) for _, columns in sizes]
        weights = sum(rows * columns for rows, columns in sizes)
        moved = weights + tokens * sum(rows + columns for rows, columns in sizes)

        def products(*matrices: Tensor) -> None:
            for x, weight in zip(given, matrices, strict=True):
                F.linear(x, weight)

        return self._case(
            "a layer's products", f"{tokens} tokens", lambda: tuple(self._draw(*size) for size in sizes),
            moved * self.dtype.itemsize, products, None, flops=2 * tokens * weights,
        )  # fmt: skip

    def _pages(self, page: int, batch: int, context: int) -> tuple[Tensor, Tensor, Tensor]:
        """(key cache, value cache, block tables), every row's pages scattered over the pool."""
        columns = 4 * -(-context // (4 * page))
        pool = (batch * columns, page, self.scale.num_kv_heads, self.scale.head_dim)
        tables = torch.randperm(batch * columns, device=self.device).int().view(batch, columns)
        return self._draw(*pool), self._draw(*pool), tables

    def _attention(
        self, batch: int, queries: int, context: int, page: int, backend: Backend, num_sets: int
    ) -> list[tuple[Tensor, Tensor, Tensor, AttentionMetadata, float]]:
        """Arguments of `paged_attention`, for each set."""
        s = self.scale
        lengths = [queries] * batch, [context] * batch
        found = []
        for _ in range(num_sets):
            keys, values, tables = self._pages(page, batch, context)
            if backend == "torch" or queries > 1:
                metadata = build_metadata(tables, *lengths, page, backend=backend)
            else:
                lens = torch.full((batch,), context, dtype=torch.int32, device=self.device)
                metadata = decode_metadata(tables, None, lens, page, context, backend)
            q = self._draw(batch * queries, s.num_heads, s.head_dim)
            found.append((q, keys, values, metadata, s.head_dim**-0.5))
        return found

    def _attention_case(
        self, name: str, shape: str, batch: int, queries: int, context: int, num_bytes: int, flops: int
    ) -> Case:
        sets = self._num_sets(num_bytes)

        def calls(page: int, backend: Backend, num_sets: int) -> list[Call]:
            arguments = self._attention(batch, queries, context, page, backend, num_sets)
            return [partial(paged_attention, *each) for each in arguments]

        if self.device.type != "cuda":
            return Case(name, shape, calls(16, "torch", sets), num_bytes, flops)
        flash = calls(FLASH_PAGE, "flash", sets) if self.with_flash else []
        own, plain = calls(16, "triton", sets), calls(16, "torch", 1)
        return Case(name, shape, own, num_bytes, flops, tuple(plain), tuple(flash))

    def _decode(self, batch: int, context: int) -> Case:
        s = self.scale
        elements = 2 * batch * context * s.num_kv_heads * s.head_dim + 2 * batch * s.num_heads * s.head_dim
        flops = 4 * batch * context * s.num_heads * s.head_dim
        shape = f"{batch} x {context}"
        return self._attention_case("decode attention", shape, batch, 1, context, elements * self.dtype.itemsize, flops)

    def _prefill(self, batch: int, tokens: int) -> Case:
        s = self.scale
        elements = 2 * batch * tokens * (s.num_kv_heads + s.num_heads) * s.head_dim
        flops = 4 * batch * tokens * (tokens + 1) // 2 * s.num_heads * s.head_dim
        shape = f"{batch} x {tokens}"
        return self._attention_case(
            "prefill attention", shape, batch, tokens, tokens, elements * self.dtype.itemsize, flops
        )

    def _sampling(self, what: str, temperature: float = 0.6, top_k: int = 0, top_p: float = 1.0) -> Case:
        params = sampling_params(self.scale.batch, self.device, temperature, top_k, top_p)
        rows, vocab = self.scale.batch, self.scale.vocab
        return self._case(
            f"sampling, {what}", f"{rows} x {vocab}", lambda: (2 * self._draw(rows, vocab),),
            rows * vocab * self.dtype.itemsize,
            lambda logits: sampling.sample(logits, params),
            lambda logits: sampling.torch_sample(logits.float(), params),
        )  # fmt: skip

    def _decode_inputs(self) -> Case:
        rows, columns, page = self.scale.batch, 256, 16
        control = torch.stack((torch.randperm(rows), torch.randint(1, columns * page, (rows,))))
        inputs = decode_inputs.DecodeInputs.empty(control.int().to(self.device))
        tables = torch.randperm(rows * columns, device=self.device).int().view(rows, columns)
        ids, heat = torch.zeros(rows, dtype=torch.int64, device=self.device), torch.ones(rows, device=self.device)
        state = (ids, tables, heat, ids.clone(), page)
        # read: two int32 of the plan, a page id, token, temperature, seed; written: five int64, an int32, a float32
        num_bytes, plain = rows * (12 + 20 + 40 + 4), partial(decode_inputs.torch_fill_decode_inputs, inputs, *state)
        own: list[Call] = [partial(decode_inputs.fill_decode_inputs, inputs, *state)]
        return Case("fill_decode_inputs", f"{rows}", own, num_bytes, 0, (plain,) if self.device.type == "cuda" else ())


def sampling_params(
    rows: int, device: torch.device, temperature: float, top_k: int = 0, top_p: float = 1.0
) -> sampling.SamplingTensors:
    """The same parameters for all rows, each with a seed of its own; flags say what is asked for."""
    return sampling.SamplingTensors(
        temperature=torch.full((rows,), temperature, device=device),
        top_k=torch.full((rows,), top_k, device=device),
        top_p=torch.full((rows,), top_p, device=device),
        min_p=torch.zeros(rows, device=device),
        seeds=torch.arange(rows, device=device) * 7919,
        positions=torch.arange(rows, device=device),
        any_random=temperature > 0,
        any_top_k=top_k > 0,
        any_top_p=top_p < 1,
        any_min_p=False,
    )
