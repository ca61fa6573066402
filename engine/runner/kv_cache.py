"""The paged KV pool: how many blocks fit, and their tensors. Knows neither sequences nor who holds which block."""

from __future__ import annotations

import os

import torch

from ...errors import InvalidConfig

CPU_POOL_CAP = 2 << 30  # bytes: a CPU pool takes no more unless num_blocks says so
CPU_POOL_SHARE = 0.25  # of the memory that is available
KVCache = tuple[torch.Tensor, torch.Tensor]


def bytes_per_block(num_layers: int, num_kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block: keys and values of `block_size` tokens in all layers."""
    return 2 * num_layers * num_kv_heads * head_dim * block_size * dtype.itemsize


def available_memory() -> int:
    """Bytes of main memory that can be taken now: the kernel's own estimate, else the free pages."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    names = os.sysconf_names
    pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in names else "SC_PHYS_PAGES"
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")


def pool_bytes(device: torch.device, utilization: float, reserve: int) -> int:
    """Bytes that the pool may take on a device, after the weights were loaded.

    Args:
        device: where the pool will lie.
        utilization: share of an accelerator's memory that the whole process may take.
        reserve: bytes that a step's activations need beside the pool (accelerator only).
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return int(total * utilization) - (total - free) - reserve
    return min(CPU_POOL_CAP, int(available_memory() * CPU_POOL_SHARE))


def pool_blocks(
    num_blocks: int | None, budget: int, block_bytes: int, block_size: int, max_model_len: int | None, useful: int
) -> int:
    """Blocks of the pool: `num_blocks` where given, else as many as the budget holds, but no more than are useful.

    Args:
        num_blocks: what the user asked for, or None.
        budget: bytes (see `pool_bytes`).
        block_bytes: bytes of one block.
        block_size: tokens of one block.
        max_model_len: the length that one sequence must be able to reach, or None (then the pool caps it).
        useful: blocks beyond which the pool could never be filled.

    Raises:
        InvalidConfig: not even one sequence of max_model_len (or one block) fits.
    """
    blocks = num_blocks if num_blocks is not None else min(useful, budget // block_bytes)
    needed = -(-max_model_len // block_size) if max_model_len is not None else 1
    if blocks >= needed:
        return blocks
    if num_blocks is not None:
        raise InvalidConfig(
            f"num_blocks={num_blocks} of {block_size} tokens hold {num_blocks * block_size} tokens, fewer than "
            f"max_model_len={max_model_len}: give at least {needed} blocks, or lower max_model_len"
        )
    raise InvalidConfig(
        f"the KV pool has room for {max(0, budget)} bytes ({max(0, blocks)} blocks of {block_bytes} bytes), but "
        f"{needed} blocks are needed for one sequence of {max_model_len or block_size} tokens: lower max_model_len, "
        "free memory, or raise gpu_memory_utilization"
    )


def allocate(
    num_layers: int, shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Key and value pages of all layers: [num_layers, 2, *shape], keys first.

    One tensor, so that one operation copies a block in all layers. `shape` is [num_blocks, block_size, num_kv_heads,
    head_dim]. Zeroed: attention may read a page's unwritten slots under a mask, and 0 * NaN would not vanish there.

    Raises:
        InvalidConfig: the device's memory does not hold them.
    """
    try:
        return torch.zeros((num_layers, 2, *shape), dtype=dtype, device=device)
    except (torch.OutOfMemoryError, RuntimeError) as error:  # a CPU raises the latter
        blocks, size, heads, dim = shape
        need = blocks * bytes_per_block(num_layers, heads, dim, size, dtype)
        raise InvalidConfig(
            f"num_blocks={blocks} need {need >> 20} MiB, which {device} does not have free: lower num_blocks, or leave "
            "it out to have the pool sized from what is free"
        ) from error


def by_layer(pages: torch.Tensor) -> list[KVCache]:
    """The keys and values of each layer, on the memory of `pages`."""
    return [(layer[0], layer[1]) for layer in pages]
