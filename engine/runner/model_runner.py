"""Runs planned steps on one device with a model: the running batch, the KV pool, the forward pass, the sampler.

It knows sequences only through plans, and nothing of queues, requests or text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from ...errors import InvalidConfig
from ...kernels.attention import build_metadata
from ...kernels.logprobs import Logprobs
from ...models.batch import ForwardBatch
from ...models.config import ModelConfig
from ..config import EngineConfig
from ..plan import StepPlan, StepResult
from ..sequence import Sequence
from . import kv_cache
from .input_batch import InputBatch, StepArrays
from .logprobs import on_host, prompt_token_logprobs
from .readback import Readback
from .sampler import Sampler

CPU_USEFUL_LENGTH = 2048  # tokens of a sequence that a CPU pool is sized for when num_blocks is not given


class CausalModel(Protocol):
    """What the runner needs of a model."""

    config: ModelConfig

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[T] ids and positions -> [T, hidden]; writes the step's keys and values to the pages."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, hidden] -> [N, vocab] float32."""


@dataclass(slots=True)
class LaunchedStep:
    """A step in flight."""

    plan: StepPlan
    arrays: StepArrays
    tokens: torch.Tensor | None  # [S] on the host once `readback` is done; -1: non-finite logits
    logprobs: Logprobs | None  # of the sampling rows in `logprob_rows`
    logprob_rows: list[int]
    num_logprobs: list[int]  # alternatives that each of them asked for
    prompts: list[tuple[int, list[int], int, list[Logprobs]]]  # plan index, tokens, alternatives, values
    readback: Readback


class ModelRunner:
    """The torch runner (engine/plan.py's `Runner`).

    A sequence's tokens depend on its own tokens, parameters and seed only. Launches complete in order.

    Args:
        model: on `device`, ready to run.
        config: the engine's settings; block_size, num_blocks, max_num_seqs, max_num_batched_tokens, max_model_len
            and gpu_memory_utilization are read.
        device: where the model is.
        num_valid_tokens: ids from here on are never sampled (a vocabulary padded beyond the tokenizer's).

    Attributes:
        num_blocks: KV blocks in the pool.
        vocab_size: width of the logits.
        max_model_len: longest sequence in tokens: as configured, else the model's, capped by the pool.
        kv_caches: pages of each layer.

    Raises:
        InvalidConfig: max_model_len is beyond the model's, or the pool can't hold one such sequence.
    """

    def __init__(
        self,
        model: CausalModel,
        config: EngineConfig,
        device: torch.device,
        *,
        num_valid_tokens: int | None = None,
    ) -> None:
        shape = model.config
        if config.max_model_len is not None and config.max_model_len > shape.max_position_embeddings:
            raise InvalidConfig(
                f"max_model_len={config.max_model_len}: the model has positions for at most "
                f"{shape.max_position_embeddings} tokens"
            )
        self.vocab_size = shape.vocab_size
        self.device = device
        self._model = model
        self._dtype: torch.dtype = getattr(torch, shape.dtype or "float32")
        self.num_blocks = self._pool_blocks(shape, config)
        pool_tokens = self.num_blocks * config.block_size
        self.max_model_len = config.max_model_len or min(shape.max_position_embeddings, pool_tokens)
        pages = (self.num_blocks, config.block_size, shape.num_kv_heads, shape.head_dim)
        self.kv_caches = kv_cache.allocate(shape.num_layers, pages, self._dtype, device)
        self._block_size = config.block_size
        max_blocks = -(-self.max_model_len // config.block_size)
        self._batch = InputBatch(config.max_num_seqs, max_blocks, config.block_size)
        num_tokens = min(num_valid_tokens or shape.vocab_size, shape.vocab_size)
        self._sampler = Sampler(config.max_num_seqs, num_tokens, device)
        self._prompt_tops: dict[int, int] = {}  # row -> alternatives for prompt tokens, where asked for

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Start a step. On a GPU it returns before the step is done."""
        readback = Readback(self.device)
        rows, admitted, freed = self._batch.update(plan)
        for row in freed:
            self._sampler.release(row)
            self._prompt_tops.pop(row, None)
        for index in admitted:
            self._admit(rows[index], plan.sequences[index])
        arrays = self._batch.arrays(plan, rows)
        hidden = self._forward(arrays)
        prompts = self._prompt_logprobs(plan, rows, arrays, hidden) if self._prompt_tops else []
        step = LaunchedStep(plan, arrays, None, None, [], [], prompts, readback)
        if arrays.sample_plan:
            self._sample(step, hidden)
        for prompt in prompts:
            prompt[3][:] = [readback.logprobs(part) for part in prompt[3]]
        readback.seal()
        return step

    @torch.inference_mode()
    def collect(self, handle: LaunchedStep) -> StepResult:
        """Wait for a launched step and read its tokens and log-probabilities.

        A sequence whose logits were not finite is in `failed`; its token in the result means nothing.
        """
        device_ns = handle.readback.wait()
        plan, arrays = handle.plan, handle.arrays
        result = StepResult(tokens=handle.tokens.tolist() if handle.tokens is not None else [], device_ns=device_ns)
        if -1 in result.tokens:
            self._fail(result, handle)
        if handle.logprobs is not None:
            chosen = [result.tokens[i] for i in handle.logprob_rows]
            entries = on_host(handle.logprobs, chosen, handle.num_logprobs)
            for i, entry in zip(handle.logprob_rows, entries, strict=True):
                result.logprobs[plan.sequences[arrays.sample_plan[i]].seq_id] = entry
        for index, targets, num_top, parts in handle.prompts:
            entries = []
            for part in parts:
                own = targets[len(entries) : len(entries) + len(part.chosen)]
                entries += on_host(part, own, [num_top] * len(own))
            result.prompt_logprobs[plan.sequences[index].seq_id] = entries
        return result

    def close(self) -> None:
        """Give back the KV pool's memory. The runner can't be used afterwards."""
        self.kv_caches.clear()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()

    def _admit(self, row: int, seq: Sequence) -> None:
        """Take in a sequence that is new to the running batch, or back in it.

        One that has an output had its whole prompt computed before: its recomputation reports no prompt again.
        """
        self._sampler.admit(row, seq)
        self._prompt_tops.pop(row, None)
        num_top = seq.params.prompt_logprobs
        if num_top is not None and len(seq.token_ids) == seq.num_prompt_tokens:
            self._prompt_tops[row] = num_top

    def _forward(self, arrays: StepArrays) -> torch.Tensor:
        """[T, hidden] of the step's tokens, in batch order."""
        input_ids = self._on_device(arrays.input_ids)
        if len(arrays.pending_index):
            tokens = self._sampler.last_tokens[self._on_device(arrays.pending_rows)]
            input_ids[self._on_device(arrays.pending_index)] = tokens
        tables = self._on_device(arrays.block_tables)
        attention = build_metadata(tables, arrays.query_lens, arrays.context_lens, self._block_size)
        batch = ForwardBatch(self.kv_caches, self._on_device(arrays.slot_mapping), attention)
        return self._model.forward(input_ids, self._on_device(arrays.positions), batch)

    def _sample(self, step: LaunchedStep, hidden: torch.Tensor) -> None:
        """Only the states of sampling rows go through the head."""
        arrays, readback = step.arrays, step.readback
        logits = self._model.logits(hidden[self._on_device(arrays.sample_index)])
        sampled = self._sampler.sample(logits, step.plan.sequences, arrays)
        step.tokens = readback.tensor(torch.where(sampled.finite, sampled.tokens, -1))
        if sampled.logprobs is not None:
            step.logprobs, step.logprob_rows = readback.logprobs(sampled.logprobs), sampled.logprob_rows
            plan_indices = [arrays.sample_plan[i] for i in sampled.logprob_rows]
            step.num_logprobs = [step.plan.sequences[index].params.logprobs or 0 for index in plan_indices]

    def _prompt_logprobs(
        self, plan: StepPlan, rows: list[int], arrays: StepArrays, hidden: torch.Tensor
    ) -> list[tuple[int, list[int], int, list[Logprobs]]]:
        """Of each chunk that asks: the prompt positions start + 1 to start + count. The token at p comes from p - 1."""
        found = []
        for place, index in enumerate(arrays.order):
            seq, start, num_top = plan.sequences[index], plan.starts[index], self._prompt_tops.get(rows[index])
            end = min(start + 1 + plan.counts[index], seq.num_prompt_tokens)
            if num_top is None or start + 1 >= end:
                continue
            targets = seq.token_ids[start + 1 : end]
            first = arrays.query_start[place]
            ids = self._on_device(np.array(targets, dtype=np.int64))
            states = hidden[first : first + len(targets)]
            parts = prompt_token_logprobs(self._model.logits, states, ids, num_top, self.vocab_size)
            found.append((index, targets, num_top, parts))
        return found

    def _fail(self, result: StepResult, handle: LaunchedStep) -> None:
        """Name the sequences without a valid token, and keep their non-finite keys and values from their pages' heirs.

        Attention may read stale slots of a page under a mask, where 0 * NaN would not vanish. Finite values, which
        shared pages hold, stay as they are.
        """
        plan, arrays = handle.plan, handle.arrays
        place_of = {index: place for place, index in enumerate(arrays.order)}
        for i, token in enumerate(result.tokens):
            if token >= 0:
                continue
            index = arrays.sample_plan[i]
            seq = plan.sequences[index]
            result.tokens[i] = 0
            result.failed[seq.seq_id] = f"non-finite logits at position {arrays.sample_positions[i]}"
            held = -(-arrays.context_lens[place_of[index]] // self._block_size)
            blocks = self._on_device(arrays.block_tables[place_of[index], :held].astype(np.int64))
            for pages in self.kv_caches:
                for cache in pages:
                    cache[blocks] = cache[blocks].nan_to_num()

    def _on_device(self, array: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)

    def _pool_blocks(self, shape: ModelConfig, config: EngineConfig) -> int:
        """Blocks of the pool, from the settings or from free memory."""
        block = kv_cache.bytes_per_block(
            shape.num_layers, shape.num_kv_heads, shape.head_dim, config.block_size, self._dtype
        )
        longest = config.max_model_len or shape.max_position_embeddings
        length = longest if self.device.type == "cuda" else min(longest, CPU_USEFUL_LENGTH)
        useful = max(config.max_num_seqs * -(-length // config.block_size), -(-longest // config.block_size))
        budget = 0
        if config.num_blocks is None:
            reserve = activation_bytes(shape, config, self._dtype)
            budget = kv_cache.pool_bytes(self.device, config.gpu_memory_utilization, reserve)
        return kv_cache.pool_blocks(config.num_blocks, budget, block, config.block_size, config.max_model_len, useful)


def activation_bytes(shape: ModelConfig, config: EngineConfig, dtype: torch.dtype) -> int:
    """An upper estimate of what a step holds beside weights and pages.

    Per token: residual, normed and attention states, the joined projections, gate, up and their product. Per
    sampling row: float32 logits, about six times (the sampler's costs, their order and the noise).
    """
    width = 4 * shape.hidden_size + 2 * shape.qkv_size + 3 * shape.intermediate_size
    tokens = config.max_num_batched_tokens * width * dtype.itemsize
    return tokens + 6 * 4 * config.max_num_seqs * shape.vocab_size
