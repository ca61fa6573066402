"""The least time that a workload could take on this machine, from bandwidth and arithmetic measured in this process.

Decoding reads the weights once a step and the keys and values of every context; prefill is matrix products. Where a
model is split over ranks, each reads and multiplies its part, and they exchange what the products leave.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..models.config import ModelConfig
from ..models.parallel import Shard
from .timing import best_seconds
from .workload import Job

_ROW_BYTES = 1 << 20  # of the array that is read, as a matrix
_ROOM_BYTES = 1 << 30  # for the larger product on a GPU
_LINK_BYTES = 256 << 20  # that a copy from GPU to GPU moves
_SAMPLED_BYTES = 12  # a rank's best logit for a token to sample, in float32, then its arrival and token


@dataclass(frozen=True)
class Floor:
    """What a workload needs at least.

    Attributes:
        read_bytes_per_s: measured, of a reduction of a large array.
        flops_per_s: measured, of a square matrix product in the model's dtype.
        decode_bytes: weights and KV that decoding reads, with all requests in one batch; of the rank with the most.
        flops: of all matrix products with weights, and of the prompts' attention; of the same rank.
        seconds: decode at the slower of its bytes and its arithmetic, then prefill; or the exchange, if that is longer.
        tensor_parallel_size: ranks that share the work.
        exchange_bytes: that reach each rank from the others; 0 where there are none.
        link_bytes_per_s: measured, of a copy from the second GPU to the first; 0.0 where nothing is exchanged.
        exchange_seconds: of all exchanges, where nothing else is done meanwhile. An engine that computes one batch at a
            time can't hide them, for the next product needs the sum; `seconds` holds none of it all the same.
    """

    read_bytes_per_s: float
    flops_per_s: float
    decode_bytes: int
    flops: int
    seconds: float
    tensor_parallel_size: int = 1
    exchange_bytes: int = 0
    link_bytes_per_s: float = 0.0
    exchange_seconds: float = 0.0


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


def head_weights(shape: ModelConfig, size: int = 1) -> int:
    """Weights of one of `size` ranks' head: what a token goes through only where the next one is sampled."""
    return Shard(0, size).vocabulary_rows(shape.vocab_size) * shape.hidden_size


def prefill_flops(jobs: list[Job], num_cached_tokens: int, shape: ModelConfig, size: int = 1) -> int:
    """Operations that the prompts cost: products with the layers' weights, causal attention, one head a request.

    Attention is counted for whole prompts: what a cached prefix saves of it is small. With `size` ranks, `shape` is one
    rank's.
    """
    tokens = sum(len(job.prompt) for job in jobs) - num_cached_tokens
    width = shape.num_layers * shape.num_heads * shape.head_dim
    attention = sum(2 * width * len(job.prompt) * (len(job.prompt) + 1) for job in jobs)
    return 2 * layer_weights(shape) * tokens + attention + 2 * head_weights(shape, size) * len(jobs)


def exchanged_bytes(jobs: list[Job], num_cached_tokens: int, shape: ModelConfig, element_size: int, size: int) -> int:
    """Bytes that reach each rank from the others: sums after the embedding and each half of a layer, samples.

    A sum of b bytes brings 2 b (size - 1) / size to each rank at best (each sums its share for all), a gathering the
    others' pieces. Tokens are sampled with a temperature at most: filters, penalties and log-probabilities would need
    the logits. A GPU sends more than one best logit a token (kernels/triton_sampling_parts.py), too few to matter here.
    """
    if size == 1:
        return 0
    decoded = sum(job.max_tokens - 1 for job in jobs)
    computed = sum(len(job.prompt) for job in jobs) - num_cached_tokens + decoded
    summed = (2 * shape.num_layers + 1) * shape.hidden_size * computed * element_size
    return (2 * summed // size + _SAMPLED_BYTES * (len(jobs) + decoded)) * (size - 1)


def workload_floor(
    jobs: list[Job],
    num_cached_tokens: int,
    shape: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    tensor_parallel_size: int = 1,
) -> Floor:
    """Measure the machine and work out the floor of a workload.

    Args:
        jobs: the requests.
        num_cached_tokens: prompt tokens that the prefix cache gave, which nobody had to compute.
        shape: the whole model's.
        dtype: of weights and KV.
        device: where it runs; with several ranks, the first one's.
        tensor_parallel_size: ranks, each with a device like this one.
    """
    size = tensor_parallel_size
    bandwidth, arithmetic = read_bandwidth(device), matmul_rate(dtype, device)
    contexts, steps = token_contexts(jobs), max(job.max_tokens for job in jobs) - 1
    slowest = (0.0, 0, 0)
    for part in [Shard(rank, size).config(shape) for rank in range(size)]:
        weights = layer_weights(part) + head_weights(part, size)
        decode_bytes = contexts * part.kv_bytes_per_token(dtype.itemsize) + steps * weights * dtype.itemsize
        decode_flops = 2 * weights * sum(job.max_tokens - 1 for job in jobs)
        prompt_flops = prefill_flops(jobs, num_cached_tokens, part, size)
        seconds = max(decode_bytes / bandwidth, decode_flops / arithmetic) + prompt_flops / arithmetic
        slowest = max(slowest, (seconds, decode_bytes, decode_flops + prompt_flops))
    seconds, decode_bytes, flops = slowest
    if size == 1:
        return Floor(bandwidth, arithmetic, decode_bytes, flops, seconds)
    exchanged, link = exchanged_bytes(jobs, num_cached_tokens, shape, dtype.itemsize, size), link_rate(device)
    exchange = exchanged / link
    return Floor(bandwidth, arithmetic, decode_bytes, flops, max(seconds, exchange), size, exchanged, link, exchange)


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
    side = 1024
    if device.type == "cuda":
        torch.cuda.empty_cache()
        side = 8192 if torch.cuda.mem_get_info(device)[0] > _ROOM_BYTES else 4096
    array = torch.randn(side, side, device=device).to(dtype)
    out = torch.empty_like(array)
    return 2 * side**3 / best_seconds(lambda: torch.mm(array, array, out=out), device)


def link_rate(device: torch.device) -> float:
    """Bytes a second of a copy from the second GPU to the first; without two GPUs, from memory to memory."""
    two = device.type == "cuda" and torch.cuda.device_count() > 1
    target = torch.empty(_LINK_BYTES, dtype=torch.uint8, device=torch.device("cuda", 0) if two else device)
    source = torch.zeros_like(target, device=torch.device("cuda", 1) if two else device)
    return _LINK_BYTES / best_seconds(lambda: target.copy_(source), target.device)
