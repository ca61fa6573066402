"""A model split over ranks gives the logits, and keeps the keys and values, that it gives whole."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nanolens.errors import InvalidConfig, ModelLoadError
from nanolens.kernels import linear
from nanolens.models import load_model, loader, transformer
from nanolens.models.parallel import Collectives, Shard
from threaded_ranks import ThreadCollectives, on_ranks
from tiny_models import empty_pages, paged_logits, save_tiny, some_ids

HEADS = {"hidden_size": 96, "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 8}
BIASES = {"attention_bias": True, "mlp_bias": True}


def compare(directory: Path, size: int, chunk: int | None = None, vocab_size: int = 96) -> None:
    """Logits and pages of all ranks against the whole model's."""
    name, ids = str(directory), some_ids(13, vocab_size)
    model = load_model(name)
    pages = empty_pages(model, len(ids))
    logits = paged_logits(model, ids, chunk, pages)

    def on_rank(shard: Shard, collectives: Collectives) -> torch.Tensor:
        part = load_model(name, shard=shard, collectives=collectives)
        own = empty_pages(part, len(ids))
        found = paged_logits(part, ids, chunk, own)
        held = shard.kv_heads(model.config)
        for layer, (keys, values) in enumerate(own):
            torch.testing.assert_close(keys, pages[layer][0][:, :, held], rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(values, pages[layer][1][:, :, held], rtol=1e-4, atol=1e-4)
        return found

    all_logits = on_ranks(size, on_rank)
    torch.testing.assert_close(all_logits[0], logits, rtol=1e-4, atol=1e-4)
    assert all(torch.equal(each, all_logits[0]) for each in all_logits)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize(
    ("family", "changes"),
    [("Llama", {}), ("Llama", BIASES), ("Qwen2", {}), ("Qwen3", {}), ("Qwen3", {"attention_bias": True})],
)
def test_each_family_split_is_the_family_whole(family: str, changes: dict[str, Any], size: int, tmp_path: Path) -> None:
    save_tiny(tmp_path, family, **HEADS, **changes)
    compare(tmp_path, size)


@pytest.mark.parametrize("size", [2, 3, 4, 6])
@pytest.mark.parametrize("kv_heads", [1, 2, 3, 12])
def test_kv_heads_may_be_fewer_than_ranks_or_lie_across_them(kv_heads: int, size: int, tmp_path: Path) -> None:
    save_tiny(tmp_path, "Qwen2", **(HEADS | {"num_key_value_heads": kv_heads}))
    compare(tmp_path, size)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_an_odd_vocabulary_is_padded_and_the_padding_never_seen(tied: bool, size: int, tmp_path: Path) -> None:
    save_tiny(tmp_path, "Qwen3", vocab_size=97, tie_word_embeddings=tied, **HEADS)
    compare(tmp_path, size, vocab_size=97)


@pytest.mark.parametrize("size", [2, 3])
def test_chunks_find_the_pages_of_earlier_ones(size: int, tmp_path: Path) -> None:
    save_tiny(tmp_path, **HEADS)
    compare(tmp_path, size, chunk=3)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("packed", [True, False])
def test_the_form_for_few_rows_adds_residual_and_bias_once(
    packed: bool, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny(tmp_path, **HEADS, **BIASES)
    monkeypatch.setattr(linear, "_pack", lambda weight: None)  # as on a GPU, weights stay where they are
    name, ids = str(tmp_path), some_ids(7)
    plain = paged_logits(load_model(name), ids)
    monkeypatch.setattr(transformer, "has_few_rows", lambda x: packed)

    def on_rank(shard: Shard, collectives: Collectives) -> torch.Tensor:
        return paged_logits(load_model(name, shard=shard, collectives=collectives), ids, chunk=1)

    for logits in on_ranks(size, on_rank):
        torch.testing.assert_close(logits, plain, rtol=1e-4, atol=1e-4)


def test_logits_go_where_the_caller_wants_them(tmp_path: Path) -> None:
    save_tiny(tmp_path, vocab_size=97, **HEADS)
    hidden = torch.randn(3, 96, generator=torch.Generator().manual_seed(1))
    whole = load_model(str(tmp_path)).logits(hidden)

    def on_rank(shard: Shard, collectives: Collectives) -> torch.Tensor:
        out = torch.empty(5, 97)
        found = load_model(str(tmp_path), shard=shard, collectives=collectives).logits(hidden, out[:3])
        assert found.data_ptr() == out.data_ptr()
        return out[:3]

    for logits in on_ranks(2, on_rank):
        torch.testing.assert_close(logits, whole, rtol=1e-5, atol=1e-5)


def test_a_step_costs_one_sum_a_sublayer_one_for_the_embedding_and_one_gathering(tmp_path: Path) -> None:
    save_tiny(tmp_path)

    def on_rank(shard: Shard, collectives: Collectives) -> Counter[tuple[str, tuple[int, ...]]]:
        assert isinstance(collectives, ThreadCollectives)
        paged_logits(load_model(str(tmp_path), shard=shard, collectives=collectives), some_ids(5))
        return Counter(collectives.calls)

    assert on_ranks(2, on_rank) == [Counter({("all_reduce", (5, 64)): 1 + 2 * 3, ("all_gather", (5, 48)): 1})] * 2


class CountingFile:
    """An open safetensors file that adds up the elements taken out of it."""

    def __init__(self, opened: Any, read: Counter[str]) -> None:
        self.opened, self.read = opened, read

    def __enter__(self) -> CountingFile:
        self.opened = self.opened.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.opened.__exit__(*error)

    def keys(self) -> Any:
        return self.opened.keys()

    def get_tensor(self, name: str) -> torch.Tensor:
        return self.count(name, self.opened.get_tensor(name))

    def get_slice(self, name: str) -> CountingSlice:
        return CountingSlice(self, name, self.opened.get_slice(name))

    def count(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        self.read[name] += tensor.numel()
        return tensor


class CountingSlice:
    def __init__(self, file: CountingFile, name: str, opened: Any) -> None:
        self.file, self.name, self.opened = file, name, opened
        self.get_shape, self.get_dtype = opened.get_shape, opened.get_dtype

    def __getitem__(self, part: tuple[slice, ...]) -> torch.Tensor:
        return self.file.count(self.name, self.opened[part])


def read_on_ranks(directory: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> list[Counter[str]]:
    """Elements that each rank takes from the checkpoint, by tensor."""
    original, found = loader.safe_open, []
    for rank in range(size):
        read: Counter[str] = Counter()
        found.append(read)
        monkeypatch.setattr(loader, "safe_open", lambda *a, _read=read, **k: CountingFile(original(*a, **k), _read))
        load_model(str(directory), shard=Shard(rank, size), collectives=_NoCollectives())
    return found


class _NoCollectives:
    all_reduce = all_gather = waited = None


@pytest.mark.parametrize("tied", [False, True])
def test_a_rank_reads_only_its_part(tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny(tmp_path, "Qwen3", shard_size="60KB", vocab_size=97, tie_word_embeddings=tied, **HEADS)
    stored = {
        name: tensor.numel() for file in tmp_path.glob("*.safetensors") for name, tensor in load_file(file).items()
    }
    reads = read_on_ranks(tmp_path, 4, monkeypatch)
    for name, elements in stored.items():
        own = [read[name] for read in reads]
        if name.endswith("norm.weight"):
            assert own == [elements] * 4
        else:
            assert sum(own) == elements, name
            assert max(own) <= -(-elements // 4) + 16 * 96, name  # a unit of MLP columns more than the mean


def test_replicated_kv_heads_are_read_by_the_ranks_that_need_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny(tmp_path, **(HEADS | {"num_key_value_heads": 2}))
    name = "model.layers.0.self_attn.k_proj.weight"
    assert [read[name] for read in read_on_ranks(tmp_path, 4, monkeypatch)] == [8 * 96] * 4


def test_each_rank_compares_its_part_of_a_stored_copy_of_a_tied_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny(tmp_path, tie_word_embeddings=True)
    tensors = load_file(tmp_path / loader.SINGLE)
    embedding = tensors["model.embed_tokens.weight"]
    tensors["lm_head.weight"] = embedding.clone()
    save_file(tensors, tmp_path / loader.SINGLE)
    assert [read["lm_head.weight"] for read in read_on_ranks(tmp_path, 2, monkeypatch)] == [embedding.numel() // 2] * 2
    tensors["lm_head.weight"][-1] += 1
    save_file(tensors, tmp_path / loader.SINGLE)
    load_model(str(tmp_path), shard=Shard(0, 2), collectives=_NoCollectives())
    with pytest.raises(ModelLoadError, match="differ"):
        load_model(str(tmp_path), shard=Shard(1, 2), collectives=_NoCollectives())


@pytest.mark.parametrize("name", ["dummy:llama-tiny", "dummy:qwen3-tiny"])
@pytest.mark.parametrize("size", [2, 4])
def test_parts_of_a_dummy_are_the_parts_of_the_whole_dummy(name: str, size: int) -> None:
    ids = some_ids(9, 264)
    whole = paged_logits(load_model(name), ids)

    def on_rank(shard: Shard, collectives: Collectives) -> torch.Tensor:
        return paged_logits(load_model(name, shard=shard, collectives=collectives), ids)

    for logits in on_ranks(size, on_rank):
        torch.testing.assert_close(logits, whole, rtol=1e-4, atol=1e-4)


def test_a_part_without_collectives_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="rank 1 of 2 needs collectives"):
        load_model("dummy:llama-tiny", shard=Shard(1, 2))


def test_a_size_that_the_model_can_not_have_is_refused_on_load() -> None:
    with pytest.raises(InvalidConfig, match="tensor_parallel_size=3: must divide"):
        load_model("dummy:llama-tiny", shard=Shard(1, 3), collectives=_NoCollectives())
