"""Which attention backend is chosen, what is refused, and which rows of a batch reach which kernel."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from torch import Tensor

from nanolens.errors import InvalidConfig
from nanolens.kernels import attention_choice
from nanolens.kernels.attention import (
    AttentionMetadata,
    Backend,
    build_metadata,
    choose_attention,
    decode_metadata,
    paged_attention,
)
from paged_batches import RELATIVE_ERROR, PagedBatch, relative_error

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
MIXED = ([1, 1, 1, 20, 1, 7], [30, 1, 17, 20, 64, 40])


def naive(q: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """[n, Hq, D] queries, the last of [c, Hkv, D] keys."""
    keys, values = (x.repeat_interleave(q.shape[1] // x.shape[1], 1).double() for x in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", q.double(), keys) * scale
    seen = torch.ones(q.shape[0], keys.shape[0], dtype=torch.bool).tril(keys.shape[0] - q.shape[0])
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), values).to(q.dtype)


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A package of flash-attn's interface that computes on the CPU; its calls are listed in `calls`."""
    package = ModuleType("flash_attn")
    package.calls = []

    def gathered(cache: Tensor, table: Tensor, context: int) -> Tensor:
        return cache[table.long()].flatten(0, 1)[:context]

    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale, causal, block_table
    ):
        assert causal and cu_seqlens_q.dtype == cu_seqlens_k.dtype == block_table.dtype == torch.int32
        assert cu_seqlens_q.shape == cu_seqlens_k.shape == (block_table.shape[0] + 1,)
        assert int(cu_seqlens_q.diff().max()) == max_seqlen_q and int(cu_seqlens_k.diff().max()) <= max_seqlen_k
        package.calls.append(("varlen", block_table.shape[0]))
        out = torch.full_like(q, torch.nan)
        for row in range(block_table.shape[0]):
            part = slice(int(cu_seqlens_q[row]), int(cu_seqlens_q[row + 1]))
            context = int(cu_seqlens_k[row + 1] - cu_seqlens_k[row])
            keys, values = (gathered(cache, block_table[row], context) for cache in (k, v))
            out[part] = naive(q[part], keys, values, softmax_scale)
        return out

    def flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens, block_table, softmax_scale, causal):
        assert causal and q.shape[1] == 1 and cache_seqlens.dtype == block_table.dtype == torch.int32
        assert q.shape[0] == cache_seqlens.shape[0] == block_table.shape[0]
        package.calls.append(("kvcache", q.shape[0]))
        out = torch.zeros_like(q)
        for row, context in enumerate(cache_seqlens.tolist()):
            if context:
                keys, values = (gathered(cache, block_table[row], context) for cache in (k_cache, v_cache))
                out[row] = naive(q[row], keys, values, softmax_scale)
        return out

    package.flash_attn_varlen_func = flash_attn_varlen_func
    package.flash_attn_with_kvcache = flash_attn_with_kvcache
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    monkeypatch.delitem(sys.modules, "nanolens.kernels.flash_attention", raising=False)
    attention_choice._import_error.cache_clear()
    yield package
    attention_choice._import_error.cache_clear()
    sys.modules.pop("nanolens.kernels.flash_attention", None)


@pytest.fixture
def no_flash(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    attention_choice._import_error.cache_clear()
    yield
    attention_choice._import_error.cache_clear()


@pytest.fixture
def triton_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from imported_as("triton", ModuleType("triton"), monkeypatch)


def imported_as(name: str, module: ModuleType | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package `name` is this module, or (None) can't be imported."""
    attention_choice._import_error.cache_clear()
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, name, module)
        yield
    attention_choice._import_error.cache_clear()


@pytest.fixture
def no_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from imported_as("triton", None, monkeypatch)


@pytest.fixture(autouse=True)
def modern_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))


@pytest.fixture
def interpreter() -> None:
    from triton_interpreter import load_interpreter

    load_interpreter()


def metadata_of(batch: PagedBatch, backend: Backend) -> AttentionMetadata:
    rows = batch.rows.tolist() if batch.rows is not None else None
    return build_metadata(batch.block_tables, batch.query_lens, batch.contexts, batch.block_size, rows, backend)


def attend(batch: PagedBatch, metadata: AttentionMetadata) -> Tensor:
    return paged_attention(batch.q, batch.key_cache, batch.value_cache, metadata, batch.scale)


class TestChoice:
    def test_auto_on_a_cpu_is_torch(self) -> None:
        assert choose_attention("auto", CPU, torch.float32, 16, 64) == "torch"

    def test_auto_takes_triton_where_both_fit(self, flash: ModuleType, triton_installed: None) -> None:
        assert choose_attention("auto", CUDA, torch.bfloat16, 256, 128) == "triton"

    def test_auto_takes_flash_where_triton_is_missing(self, flash: ModuleType, no_triton: None) -> None:
        assert choose_attention("auto", CUDA, torch.bfloat16, 256, 128) == "flash"
        assert choose_attention("auto", CUDA, torch.float16, 512, 80) == "flash"

    def test_flash_runs_where_it_is_asked_for(self, flash: ModuleType) -> None:
        assert choose_attention("flash", CUDA, torch.bfloat16, 256, 128) == "flash"

    @pytest.mark.parametrize(
        "dtype, block_size, head_dim",
        [(torch.bfloat16, 16, 128), (torch.float32, 256, 128), (torch.bfloat16, 256, 60), (torch.bfloat16, 384, 64)],
    )
    def test_auto_takes_triton_where_flash_does_not_fit(
        self, flash: ModuleType, triton_installed: None, dtype: torch.dtype, block_size: int, head_dim: int
    ) -> None:
        assert choose_attention("auto", CUDA, dtype, block_size, head_dim) == "triton"

    def test_auto_takes_triton_without_the_package(self, no_flash: None, triton_installed: None) -> None:
        assert choose_attention("auto", CUDA, torch.bfloat16, 256, 128) == "triton"

    @pytest.mark.parametrize("requested", ["torch", "triton", "flash"])
    def test_what_fits_is_given_as_asked(self, flash: ModuleType, triton_installed: None, requested: str) -> None:
        assert choose_attention(requested, CUDA, torch.bfloat16, 256, 128) == requested

    def test_torch_fits_everything(self) -> None:
        assert choose_attention("torch", CUDA, torch.float64, 1, 1000) == "torch"

    @pytest.mark.parametrize(
        "requested, device, dtype, block_size, head_dim, says",
        [
            ("flash", CUDA, torch.bfloat16, 16, 128, r"block_size=16.*set block_size=256.*attention='triton'"),
            ("flash", CUDA, torch.float32, 256, 128, r"float32.*change dtype.*attention='triton'"),
            ("flash", CUDA, torch.bfloat16, 256, 60, r"head sizes.*60.*attention='triton'"),
            ("flash", CUDA, torch.bfloat16, 256, 320, r"head sizes.*320"),
            ("flash", CPU, torch.bfloat16, 256, 128, r"GPU.*cpu.*attention='torch'"),
            ("triton", CPU, torch.bfloat16, 16, 128, r"GPU.*cpu.*attention='torch'"),
            ("triton", CUDA, torch.float64, 16, 128, r"float64.*change dtype"),
            ("triton", CUDA, torch.bfloat16, 16, 512, r"head sizes up to 256.*512.*attention='torch'"),
            ("auto", CUDA, torch.bfloat16, 16, 512, r"head sizes up to 256.*512.*attention='torch'"),
            ("fast", CUDA, torch.bfloat16, 16, 128, r"'fast'.*auto, torch, triton, flash"),
        ],
    )
    def test_what_does_not_fit_is_refused_with_what_to_change(
        self,
        flash: ModuleType,
        triton_installed: None,
        requested: str,
        device: torch.device,
        dtype: torch.dtype,
        block_size: int,
        head_dim: int,
        says: str,
    ) -> None:
        with pytest.raises(InvalidConfig, match=says):
            choose_attention(requested, device, dtype, block_size, head_dim)

    def test_a_missing_package_is_named(self, no_flash: None) -> None:
        with pytest.raises(InvalidConfig, match=r"flash-attn can't be imported.*pip install.*attention='triton'"):
            choose_attention("flash", CUDA, torch.bfloat16, 256, 128)

    @pytest.mark.parametrize("requested", ["triton", "auto"])
    def test_missing_triton_is_named(self, no_flash: None, no_triton: None, requested: str) -> None:
        with pytest.raises(InvalidConfig, match=r"triton can't be imported.*pip install.*attention='torch'"):
            choose_attention(requested, CUDA, torch.bfloat16, 16, 128)

    def test_an_old_gpu_is_not_given_to_flash(self, flash: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
        with pytest.raises(InvalidConfig, match=r"compute capability 8.0"):
            choose_attention("flash", CUDA, torch.float16, 256, 128)


class TestMetadata:
    def test_rows_point_into_a_larger_table(self) -> None:
        batch = PagedBatch(*MIXED, extra_tables=3)
        assert relative_error(attend(batch, metadata_of(batch, "torch")), batch.expected()) < 1e-5

    def test_rows_may_be_a_tensor(self) -> None:
        batch = PagedBatch(*MIXED, extra_tables=3)
        metadata = build_metadata(batch.block_tables, *MIXED, batch.block_size, batch.rows)
        assert metadata.rows is batch.rows
        assert relative_error(attend(batch, metadata), batch.expected()) < 1e-5

    def test_as_many_rows_as_lengths(self) -> None:
        with pytest.raises(ValueError, match="must be equal in number"):
            build_metadata(torch.zeros(9, 4, dtype=torch.int32), [1, 1], [2, 2], 2, rows=[3])

    def test_parts_of_a_mixed_batch(self) -> None:
        batch = PagedBatch(*MIXED, extra_tables=2)
        metadata = metadata_of(batch, "flash")
        assert (metadata.num_rows, metadata.num_decodes, metadata.num_tokens) == (6, 3, 31)
        assert metadata.decodes.context_lens.tolist() == [30, 1, 17]
        assert metadata.prefills.context_lens.tolist() == [20, 64, 40]
        assert metadata.prefills.query_start.tolist() == [3, 23, 24, 31]
        assert metadata.prefills.rows is not None and batch.rows is not None
        assert metadata.prefills.rows.tolist() == batch.rows.tolist()[3:]
        assert metadata.key_start is not None and metadata.key_start.tolist() == [0, 20, 84, 124]

    def test_lengths_are_aligned_alike_whatever_the_batch(self) -> None:
        for size in range(1, 9):
            metadata = build_metadata(torch.zeros(size, 4, dtype=torch.int32), [1] * size, [2] * size, 2)
            offsets = {t.data_ptr() % 16 for t in (metadata.query_start, metadata.context_lens)}
            assert offsets == {0}

    def test_decode_metadata_keeps_its_tensors(self) -> None:
        tables, contexts = torch.zeros(5, 4, dtype=torch.int32), torch.ones(3, dtype=torch.int32)
        rows = torch.tensor([4, 0, 2], dtype=torch.int32)
        metadata = decode_metadata(tables, rows, contexts, 16, 64)
        assert metadata.decodes.context_lens.data_ptr() == contexts.data_ptr()
        assert metadata.decodes.rows is not None and metadata.decodes.rows.data_ptr() == rows.data_ptr()
        assert metadata.decodes.block_tables is tables
        assert (metadata.num_decodes, metadata.num_tokens, metadata.max_query_len) == (3, 3, 1)
        assert metadata.query_start.tolist() == [0, 1, 2, 3]

    def test_decode_metadata_is_not_for_torch(self) -> None:
        with pytest.raises(ValueError, match="build_metadata"):
            decode_metadata(torch.zeros(1, 4, dtype=torch.int32), None, torch.ones(1), 16, 64, "torch")

    def test_tables_of_static_metadata_are_gathered_at_each_call(self) -> None:
        tables, rows = torch.arange(4, dtype=torch.int32).view(2, 2), torch.tensor([1, 0], dtype=torch.int32)
        metadata = decode_metadata(tables, rows, torch.ones(2, dtype=torch.int32), 16, 32, "flash")
        assert metadata.own_tables().tolist() == [[2, 3], [0, 1]]
        tables += 10
        rows.copy_(torch.tensor([0, 0]))
        assert metadata.own_tables().tolist() == [[10, 11], [10, 11]]

    def test_tables_of_a_step_are_gathered_once(self) -> None:
        batch = PagedBatch(*MIXED, extra_tables=2)
        metadata = metadata_of(batch, "flash")
        assert metadata.own_tables() is metadata.own_tables()


class TestFlash:
    @pytest.mark.parametrize("extra_tables", [0, 3])
    def test_a_mixed_batch_is_split(self, flash: ModuleType, extra_tables: int) -> None:
        batch = PagedBatch(*MIXED, block_size=256, extra_tables=extra_tables)
        out = attend(batch, metadata_of(batch, "flash"))
        assert relative_error(out, batch.expected()) < 1e-5
        assert sorted(flash.calls) == [("kvcache", 3), ("varlen", 3)]

    @pytest.mark.parametrize("query_lens, call", [([1, 1], ("kvcache", 2)), ([2, 9], ("varlen", 2))])
    def test_a_pure_batch_makes_one_call(self, flash: ModuleType, query_lens: list[int], call: tuple[str, int]) -> None:
        batch = PagedBatch(query_lens, [30, 9], block_size=256)
        assert relative_error(attend(batch, metadata_of(batch, "flash")), batch.expected()) < 1e-5
        assert flash.calls == [call]

    def test_metadata_of_another_backend_is_refused(self, flash: ModuleType) -> None:
        batch = PagedBatch(*MIXED, block_size=256)
        with pytest.raises(ValueError, match="backend='flash'"):
            attend(batch, dataclasses.replace(metadata_of(batch, "torch"), backend="flash"))


@pytest.mark.usefixtures("interpreter")
class TestTriton:
    @pytest.mark.parametrize("dtype", list(RELATIVE_ERROR))
    @pytest.mark.parametrize("extra_tables", [0, 3])
    def test_a_mixed_batch(self, extra_tables: int, dtype: torch.dtype) -> None:
        batch = PagedBatch(*MIXED, extra_tables=extra_tables, dtype=dtype)
        out = attend(batch, metadata_of(batch, "triton"))
        assert relative_error(out, batch.expected()) < RELATIVE_ERROR[dtype]

    @pytest.mark.parametrize("query_lens", [[1, 1], [2, 9], [9, 1]])
    def test_pure_batches_and_decodes_behind_prefills(self, query_lens: list[int]) -> None:
        batch = PagedBatch(query_lens, [30, 9])
        assert relative_error(attend(batch, metadata_of(batch, "triton")), batch.expected()) < 1e-5

    @pytest.mark.parametrize("query_lens", [[1, 1], [1, 5], [4, 5]])
    def test_padding_tokens_get_zeros(self, query_lens: list[int]) -> None:
        batch = PagedBatch(query_lens, [30, 9])
        expected, metadata = batch.expected(), metadata_of(batch, "triton")
        batch.q = torch.cat([batch.q, torch.full((3, *batch.q.shape[1:]), torch.nan)])
        out = attend(batch, metadata)
        assert relative_error(out[:-3], expected) < 1e-5
        assert torch.equal(out[-3:], torch.zeros_like(out[-3:]))

    def test_static_decodes_follow_their_tensors(self) -> None:
        batch = PagedBatch([1, 1, 1], [30, 9, 17], extra_tables=2)
        assert batch.rows is not None
        contexts = torch.zeros(3, dtype=torch.int32)
        metadata = decode_metadata(batch.block_tables, batch.rows, contexts, batch.block_size, 48)
        assert torch.equal(attend(batch, metadata), torch.zeros_like(batch.q))
        contexts.copy_(batch.context_lens)
        assert relative_error(attend(batch, metadata), batch.expected()) < 1e-5
