"""The least time that a workload could take on this machine, from bandwidth and arithmetic measured in this process.

Decoding reads the weights once a step and the keys and values of every context; prefill is matrix products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..models.config import ModelConfig
from .timing import best_seconds
from .workload import Job

_ROW_BYTES = 1 << 20  # of the array that is read, as a matrix


@dataclass(frozen=True)
class Floor:
    """What a workload needs at least.

    Attributes:
        read_bytes_per_s: measured, of a reduction of a large array.
        flops_per_s: measured, of a square matrix product in the model's dtype.
        decode_bytes: weights and KV that decoding reads, with all requests in one batch.
        flops: of all matrix products with weights, and of the prompts' attention.
        seconds: decode at the slower of its bytes and its arithmetic, then prefill.
    """

    read_bytes_per_s: float
    flops_per_s: float
    decode_bytes: int
    flops: int
    seconds: float


def token_contexts(jobs: list[Job]) -> int:
    """Sum over all decode steps of all requests of the context that the step reads, its own token included.

    A request of p prompt and n output tokens decodes n - 1 times, over p + 1 to p + n - 1 tokens: its first token comes
    from its prefill, and its last one is never fed back. The reference workload has 120.8 million; counting a context
    for the last token too would make it 121.1 million, and the floor longer by 0.2%.
    """
    total = 0
    for job in jobs:
        steps = job.max_tokens - 1
        total += steps * len(job.prompt) + steps * (steps + 1) // 2
    return total


def layer_weights(shape: ModelConfig) -> int:
    """Weights of all layers: what every token goes through."""
    attention = shape.hidden_size * (shape.qkv_size + shape.num_heads * shape.head_dim)
    return shape.num_layers * (attention + 3 * shape.hidden_size * shape.intermediate_size)


def head_weights(shape: ModelConfig) -> int:
    """Weights of the head: what a token goes through only where the next one is sampled."""
    return shape.vocab_size * shape.hidden_size


def prefill_flops(jobs: list[Job], num_cached_tokens: int, shape: ModelConfig) -> int:
    """Operations that the prompts cost: products with the layers' weights, causal attention, one head a request.

    Attention is counted for whole prompts: what a cached prefix saves of it is small.
    """
    tokens = sum(len(job.prompt) for job in jobs) - num_cached_tokens
    width = shape.num_layers * shape.num_heads * shape.head_dim
    attention = sum(2 * width * len(job.prompt) * (len(job.prompt) + 1) for job in jobs)
    return 2 * layer_weights(shape) * tokens + attention + 2 * head_weights(shape) * len(jobs)


def workload_floor(
    jobs: list[Job], num_cached_tokens: int, shape: ModelConfig, dtype: torch.dtype, device: torch.device
) -> Floor:
    """Measure the machine and work out the floor of a workload.

    Args:
        jobs: the requests.
        num_cached_tokens: prompt tokens that the prefix cache gave, which nobody had to compute.
        shape: the model's.
        dtype: of weights and KV.
        device: where it runs.
    """
    weights = layer_weights(shape) + head_weights(shape)
    steps = max(job.max_tokens for job in jobs) - 1
    decode_bytes = token_contexts(jobs) * shape.kv_bytes_per_token(dtype.itemsize) + steps * weights * dtype.itemsize
    decode_flops = 2 * weights * sum(job.max_tokens - 1 for job in jobs)
    prompt_flops = prefill_flops(jobs, num_cached_tokens, shape)
    bandwidth, arithmetic = read_bandwidth(device), matmul_rate(dtype, device)
    seconds = max(decode_bytes / bandwidth, decode_flops / arithmetic) + prompt_flops / arithmetic
    return Floor(bandwidth, arithmetic, decode_bytes, decode_flops + prompt_flops, seconds)


def read_bandwidth(device: torch.device) -> float:
    """Bytes a second of reading an array that no cache holds: the best of several ways, and tries of each.

    On a GPU it is 4 GiB, or a half of what is free: a smaller figure would make the floor look nearer.
    """
    size = 256 << 20
    if device.type == "cuda":
        torch.cuda.empty_cache()
        size = min(4 << 30, torch.cuda.mem_get_info(device)[0] // 2 // _ROW_BYTES * _ROW_BYTES)
    array = torch.ones(size // 4, dtype=torch.float32, device=device)
    rows = array.view(-1, _ROW_BYTES // 4)
    ways: list[Callable[[], Tensor]] = [array.sum, lambda: rows.sum(dim=1)]
    if device.type == "cuda":
        ways += [array.max, lambda: rows.amax(dim=1)]
    return size / min(best_seconds(way, device) for way in ways)


def matmul_rate(dtype: torch.dtype, device: torch.device) -> float:
    """Floating-point operations a second of a square matrix product; the best of a few tries."""
    side = 8192 if device.type == "cuda" else 1024
    array = torch.randn(side, side, device=device).to(dtype)
    out = torch.empty_like(array)
    return 2 * side**3 / best_seconds(lambda: torch.mm(array, array, out=out), device)
