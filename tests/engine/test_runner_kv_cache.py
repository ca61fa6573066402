"""How many KV blocks a pool gets."""

from __future__ import annotations

import pytest
import torch

from nanolens.engine.runner import kv_cache
from nanolens.errors import InvalidConfig


def test_bytes_of_a_block_count_keys_and_values_of_all_layers() -> None:
    assert kv_cache.bytes_per_block(3, 2, 8, 16, torch.float32) == 2 * 3 * 2 * 8 * 16 * 4
    assert kv_cache.bytes_per_block(3, 2, 8, 16, torch.bfloat16) == 2 * 3 * 2 * 8 * 16 * 2


def test_a_cpu_pool_takes_a_quarter_of_what_is_free_and_never_more_than_the_cap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(kv_cache, "available_memory", lambda: 4 << 30)
    assert kv_cache.pool_bytes(cpu, 0.9, 0) == 1 << 30
    monkeypatch.setattr(kv_cache, "available_memory", lambda: 64 << 30)
    assert kv_cache.pool_bytes(cpu, 0.9, 0) == kv_cache.CPU_POOL_CAP


def test_an_accelerators_pool_leaves_room_for_weights_others_and_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (700, 1000))
    assert kv_cache.pool_bytes(torch.device("cuda"), 0.9, 50) == 900 - 300 - 50


def test_a_pool_is_no_larger_than_useful() -> None:
    assert kv_cache.pool_blocks(None, 1000, 10, 16, 64, useful=40) == 40
    assert kv_cache.pool_blocks(None, 300, 10, 16, 64, useful=40) == 30


def test_a_given_number_of_blocks_is_kept() -> None:
    assert kv_cache.pool_blocks(7, 0, 10, 16, 64, useful=4) == 7


def test_memory_for_less_than_one_sequence_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"room for 30 bytes \(3 blocks .* 4 blocks are needed .* 64 tokens"):
        kv_cache.pool_blocks(None, 30, 10, 16, 64, useful=40)
    with pytest.raises(InvalidConfig, match="room for 0 bytes"):
        kv_cache.pool_blocks(None, -30, 10, 16, None, useful=40)


def test_available_memory_is_some() -> None:
    assert kv_cache.available_memory() > 1 << 20
