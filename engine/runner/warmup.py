"""How many KV blocks fit: on a GPU from what the worst step leaves free, measured by running it. Knows no sequences."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from ...errors import InvalidConfig
from ...kernels.attention import Backend, build_metadata
from ...kernels.sampling import SamplingTensors, sample_checked
from ...models.batch import ForwardBatch
from ...models.config import ModelConfig
from ..config import EngineConfig
from ..plan import StepPlan
from ..sampling_params import SamplingParams
from ..sequence import Sequence
from . import kv_cache
from .swap_transfers import staging_bytes

if TYPE_CHECKING:
    from .model_runner import CausalModel, ModelRunner

# Prompt lengths of steps that make every kernel compile that serving needs: few rows and many, rows of one token, of
# a small and of a large tile, and counts that are and aren't multiples of 16, which Triton tells apart.
EXERCISES = ((5,), (16,), (80,), (100,), (3, 90), (16, 80), (7, 1, 130), (100,) * 24, (16,) * 23)
ASKED = (SamplingParams(temperature=0.0), SamplingParams(temperature=1.0), SamplingParams(top_k=8, top_p=0.9))
CPU_USEFUL_LENGTH = 2048  # tokens of a sequence that a CPU pool is sized for when num_blocks is not given
GRAPH_MARGIN = 256 << 20  # bytes of a GPU left to captured graphs' own structures and to fragmentation


def pool_blocks(
    model: CausalModel,
    config: EngineConfig,
    device: torch.device,
    dtype: torch.dtype,
    attention: Backend,
    startup: dict[str, int],
) -> int:
    """Blocks of the pool, from the settings or from free memory.

    On a GPU the worst step runs once, pages or none: it compiles the kernels too. What it cost goes into `startup`.

    Raises:
        InvalidConfig: the pool can't hold one sequence of max_model_len, or the worst step doesn't fit.
    """
    shape = model.config
    block = kv_cache.bytes_per_block(shape.num_layers, shape.num_kv_heads, shape.head_dim, config.block_size, dtype)
    longest = config.max_model_len or shape.max_position_embeddings
    length = longest if device.type == "cuda" else min(longest, CPU_USEFUL_LENGTH)
    useful = max(config.max_num_seqs * -(-length // config.block_size), -(-longest // config.block_size))
    reserve = 0
    if device.type == "cuda":
        startup["weights_bytes"] = torch.cuda.memory_allocated(device)
        reserve = _worst_step_bytes(model, config, device, dtype, attention, startup)
        if config.host_blocks or config.disk_blocks:
            reserve += staging_bytes(block)
    budget = 0
    if config.num_blocks is None:
        budget = kv_cache.pool_bytes(device, config.gpu_memory_utilization, reserve)
    blocks = kv_cache.pool_blocks(config.num_blocks, budget, block, config.block_size, config.max_model_len, useful)
    startup["pool_bytes"] = blocks * block
    return blocks


def _worst_step_bytes(
    model: CausalModel,
    config: EngineConfig,
    device: torch.device,
    dtype: torch.dtype,
    attention: Backend,
    startup: dict[str, int],
) -> int:
    """Bytes that the worst step needs beside weights and pages.

    Raises:
        InvalidConfig: it doesn't fit into the device's memory.
    """
    began = time.monotonic_ns()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    try:
        _worst_step(model, config, device, dtype, attention)
        torch.cuda.synchronize(device)
    except torch.OutOfMemoryError as error:
        _, total = torch.cuda.mem_get_info(device)
        raise InvalidConfig(
            f"a step of max_num_batched_tokens={config.max_num_batched_tokens} tokens and "
            f"max_num_seqs={config.max_num_seqs} sequences does not fit beside the weights ({before >> 20} MiB of "
            f"{total >> 20} MiB): lower either, or take a smaller dtype or model"
        ) from error
    peak = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    startup["warmup_ns"] = time.monotonic_ns() - began
    startup["activation_bytes"] = peak
    logits = graph_logits_bytes(config.max_num_seqs, model.config, dtype)
    return peak + logits + GRAPH_MARGIN


def graph_logits_bytes(max_num_seqs: int, shape: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of the buffer that the logits of captured decode steps go to."""
    return max_num_seqs * shape.vocab_size * dtype.itemsize


@torch.inference_mode()
def _worst_step(
    model: CausalModel, config: EngineConfig, device: torch.device, dtype: torch.dtype, attention: Backend
) -> None:
    """A prefill of the full token budget and the sampling of every sequence, with a filter; writes no page."""
    shape = model.config
    tokens, size = config.max_num_batched_tokens, config.block_size
    longest = min(config.max_model_len or shape.max_position_embeddings, shape.max_position_embeddings, tokens)
    lengths = [longest] * (tokens // longest) + ([tokens % longest] if tokens % longest else [])
    pool = kv_cache.allocate(shape.num_layers, (1, size, shape.num_kv_heads, shape.head_dim), dtype, device)
    tables = torch.zeros((len(lengths), -(-longest // size)), dtype=torch.int32, device=device)
    metadata = build_metadata(tables, lengths, lengths, size, None, attention)
    ids = torch.zeros(tokens, dtype=torch.int64, device=device)
    positions = torch.cat([torch.arange(length, device=device) for length in lengths])
    hidden = model.forward(ids, positions, ForwardBatch(kv_cache.by_layer(pool), torch.full_like(ids, -1), metadata))
    count = min(config.max_num_seqs, tokens)
    logits = model.logits(hidden[:count]).float()

    def filled(value: float, kind: torch.dtype) -> torch.Tensor:
        return torch.full((count,), value, dtype=kind, device=device)

    rows = SamplingTensors(
        temperature=filled(1.0, torch.float32),
        top_k=filled(50, torch.int64),
        top_p=filled(0.9, torch.float32),
        min_p=filled(0.0, torch.float32),
        seeds=filled(0, torch.int64),
        positions=filled(1, torch.int64),
    )
    sample_checked(logits, rows)


def exercise(runner: ModelRunner, config: EngineConfig) -> int:
    """Run prefills, mixed steps and decode steps of made-up sequences, so that no request waits for a compiler.

    Their blocks are read by nobody afterwards. Nanoseconds.
    """
    began = time.monotonic_ns()
    for lengths in EXERCISES:
        for own in ASKED:
            sequences: list[Sequence] = []
            block = 0
            for index, length in enumerate(lengths[: config.max_num_seqs]):
                length = min(length, runner.max_model_len - 3)
                params = own.resolve(_Neutral())
                seq = Sequence(-1 - index, "", [0] * length, params, 0, 0, _ignore, _never, runner.max_model_len)
                held = -(-(length + 3) // config.block_size)
                seq.block_table = [(block + i) % runner.num_blocks for i in range(held)]
                block += held
                sequences.append(seq)
            _steps(runner, sequences)
            runner.forget([seq.seq_id for seq in sequences])
    return time.monotonic_ns() - began


def _steps(runner: ModelRunner, sequences: list[Sequence]) -> None:
    """All but the last prefill; then the last prefills while the others decode; then all decode."""
    if len(sequences) > 1:
        _step(runner, "prefill", sequences[:-1], [len(seq.token_ids) for seq in sequences[:-1]])
    counts = [1] * (len(sequences) - 1) + [len(sequences[-1].token_ids)]
    _step(runner, "mixed" if len(sequences) > 1 else "prefill", sequences, counts)
    _step(runner, "decode", sequences, [1] * len(sequences))


def _step(runner: ModelRunner, kind: str, sequences: list[Sequence], counts: list[int]) -> None:
    starts = [seq.num_computed_tokens for seq in sequences]
    count = len(sequences)
    plan = StepPlan(0, kind, sequences, starts, counts, [True] * count, [0] * count, [])
    for token, seq in zip(runner.collect(runner.launch(plan)).tokens, sequences, strict=True):
        seq.num_computed_tokens = len(seq.token_ids)
        seq.token_ids.append(token)


class _Neutral:
    temperature = top_p = top_k = min_p = repetition_penalty = None


def _ignore(event: object) -> None:
    pass


def _never() -> int:
    return 0
