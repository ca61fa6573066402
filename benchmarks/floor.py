"""The least time that a workload could take on this machine, from bandwidth and arithmetic measured in this process.

Decoding reads the weights once a step and the keys and values of every context; prefill is matrix products.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..models.config import ModelConfig
from .workload import Job

_TRIES = 5


@dataclass(frozen=True)
class Floor:
    """What a workload needs at least.

    Attributes:
        read_bytes_per_s: measured, of a sum over a large array.
        flops_per_s: measured, of a square matrix product in the model's dtype.
        decode_bytes: weights and KV that decoding reads, with all requests in one batch.
        flops: of all matrix products with weights.
        seconds: decode at the slower of its bytes and its arithmetic, then prefill.
    """

    read_bytes_per_s: float
    flops_per_s: float
    decode_bytes: int
    flops: int
    seconds: float


def token_contexts(jobs: list[Job]) -> int:
    """Sum over all decoded tokens of the context that each reads; a request's first token comes from its prefill."""
    total = 0
    for job in jobs:
        steps = job.max_tokens - 1
        total += steps * len(job.prompt) + steps * (steps + 1) // 2
    return total


def weight_count(shape: ModelConfig) -> int:
    """Weights that a token goes through: all matrices, the head included, the embedding look-up not."""
    attention = shape.hidden_size * (shape.qkv_size + shape.num_heads * shape.head_dim)
    mlp = 3 * shape.hidden_size * shape.intermediate_size
    return shape.num_layers * (attention + mlp) + shape.vocab_size * shape.hidden_size


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
    weights = weight_count(shape)
    steps = max(job.max_tokens for job in jobs) - 1
    decode_bytes = token_contexts(jobs) * shape.kv_bytes_per_token(dtype.itemsize) + steps * weights * dtype.itemsize
    decoded = sum(job.max_tokens - 1 for job in jobs)
    prompts = sum(len(job.prompt) for job in jobs) - num_cached_tokens
    bandwidth, arithmetic = read_bandwidth(device), matmul_rate(dtype, device)
    decode_s = max(decode_bytes / bandwidth, 2 * weights * decoded / arithmetic)
    seconds = decode_s + 2 * weights * prompts / arithmetic
    return Floor(bandwidth, arithmetic, decode_bytes, 2 * weights * (decoded + prompts), seconds)


def read_bandwidth(device: torch.device) -> float:
    """Bytes a second of a sum over an array that no cache holds; the best of a few."""
    size = (4 << 30) if device.type == "cuda" else (256 << 20)
    array = torch.ones(size // 4, dtype=torch.float32, device=device)
    return size / _best_time(lambda: array.sum(), device)


def matmul_rate(dtype: torch.dtype, device: torch.device) -> float:
    """Floating-point operations a second of a square matrix product; the best of a few."""
    side = 8192 if device.type == "cuda" else 1024
    array = torch.randn(side, side, device=device).to(dtype)
    return 2 * side**3 / _best_time(lambda: array @ array, device)


def _best_time(work: Callable[[], torch.Tensor], device: torch.device) -> float:
    """Seconds of the fastest run after one that doesn't count."""
    times = []
    for _ in range(1 + _TRIES):
        _wait(device)
        began = time.perf_counter()
        work()
        _wait(device)
        times.append(time.perf_counter() - began)
    return min(times[1:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
