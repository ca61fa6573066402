"""Runs planned steps on one device with a model: the running batch, the KV pool, the forward pass, the sampler.

It knows sequences only through plans, and nothing of queues, requests or text.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from ...errors import InvalidConfig
from ...kernels.attention import AttentionMetadata, build_metadata, choose_attention, decode_metadata
from ...kernels.logprobs import Logprobs
from ...models.batch import ForwardBatch
from ...models.config import ModelConfig
from ..config import EngineConfig
from ..plan import StepPlan, StepResult
from ..sequence import Sequence
from . import kv_cache
from .decode_steps import DecodeSteps, DeviceRows, graph_sizes
from .input_batch import InputBatch, SampleRows, StepArrays
from .logprobs import on_host, prompt_token_logprobs
from .readback import Readback
from .sampler import Sampler
from .staging import Staging
from .warmup import exercise, pool_blocks


class CausalModel(Protocol):
    """What the runner needs of a model."""

    config: ModelConfig

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """[T] ids and positions -> [T, hidden]; writes the step's keys and values to the pages."""

    def logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """[N, hidden] -> [N, vocab], into `out` where the model can."""


@dataclass(slots=True)
class LaunchedStep:
    """A step in flight."""

    plan: StepPlan
    samples: SampleRows
    tokens: torch.Tensor | None  # [S] on the host once `readback` is done; -1: non-finite logits
    logprobs: Logprobs | None  # of the sampling rows in `logprob_rows`
    logprob_rows: list[int]
    num_logprobs: list[int]  # alternatives that each of them asked for
    prompts: list[tuple[int, list[int], int, list[Logprobs]]]  # plan index, tokens, alternatives, values
    readback: Readback
    graph: bool = False
    padding: int = 0


class ModelRunner:
    """The torch runner (engine/plan.py's `Runner`).

    A sequence's tokens depend on its own tokens, parameters and seed only. Launches complete in order. On a GPU a step
    of decode tokens alone is a CUDA graph; other steps are launched operation by operation.

    Args:
        model: on `device`, ready to run.
        config: the engine's settings.
        device: where the model is.
        num_valid_tokens: ids from here on are never sampled (a vocabulary padded beyond the tokenizer's).

    Attributes:
        num_blocks: KV blocks in the pool.
        vocab_size: width of the logits.
        max_model_len: longest sequence in tokens: as configured, else the model's, capped by the pool.
        kv_caches: pages of each layer.
        attention: the attention backend.
        startup: what preparing cost, by name: nanoseconds (`*_ns`), bytes (`*_bytes`) and counts.

    Raises:
        InvalidConfig: max_model_len is beyond the model's, the pool can't hold one such sequence, or the attention
            backend doesn't fit.
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
        self.startup: dict[str, int] = {}
        self._model = model
        dtype: torch.dtype = getattr(torch, shape.dtype or "float32")
        self.attention = choose_attention(config.attention, device, dtype, config.block_size, shape.head_dim)
        self.num_blocks = pool_blocks(model, config, device, dtype, self.attention, self.startup)
        pool_tokens = self.num_blocks * config.block_size
        self.max_model_len = config.max_model_len or min(shape.max_position_embeddings, pool_tokens)
        pages = (self.num_blocks, config.block_size, shape.num_kv_heads, shape.head_dim)
        self.kv_caches = kv_cache.allocate(shape.num_layers, pages, dtype, device)
        self._block_size = config.block_size
        max_blocks = -(-self.max_model_len // config.block_size)
        self._batch = InputBatch(config.max_num_seqs, max_blocks, config.block_size)
        self._staging = Staging(device)
        self._rows = DeviceRows.empty(config.max_num_seqs, max_blocks, device)
        num_tokens = min(num_valid_tokens or shape.vocab_size, shape.vocab_size)
        self._sampler = Sampler(config.max_num_seqs, num_tokens, self._rows.last_tokens, self._staging)
        self._prompt_tops: dict[int, int] = {}  # row -> alternatives for prompt tokens, where asked for
        self._decodes: DecodeSteps | None = None
        if device.type == "cuda" and self.attention != "torch" and not config.enforce_eager:
            sizes = graph_sizes(config.max_num_seqs)
            self._decodes = DecodeSteps(
                model, self.kv_caches, self._rows, config.block_size, self.vocab_size, num_tokens, sizes,
                self._decode_metadata,
            )  # fmt: skip
            self.startup["capture_ns"] = self._decodes.capture()
            self.startup["num_graphs"] = self._decodes.num_graphs
        if device.type == "cuda":
            self.startup["exercise_ns"] = exercise(self, config)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Start a step. On a GPU it returns before the step is done."""
        readback = Readback(self.device)
        rows, admitted, freed = self._batch.update(plan)
        for row in freed:
            self._release(row)
        for index in admitted:
            self._admit(rows[index], plan.sequences[index])
        self._update_rows([rows[index] for index in admitted])
        if self._decodes is not None and plan.kind == "decode":
            step = self._launch_decode(self._decodes, plan, rows, readback)
        else:
            step = self._launch_any(plan, rows, readback)
        for prompt in step.prompts:
            prompt[3][:] = [readback.logprobs(part) for part in prompt[3]]
        readback.seal()
        return step

    @torch.inference_mode()
    def collect(self, handle: LaunchedStep) -> StepResult:
        """Wait for a launched step and read its tokens and log-probabilities.

        A sequence whose logits were not finite is in `failed`; its token in the result means nothing.
        """
        began = time.monotonic_ns()
        device_ns = handle.readback.wait()
        wait_ns = time.monotonic_ns() - began
        plan, samples = handle.plan, handle.samples
        result = StepResult(
            tokens=handle.tokens.tolist() if handle.tokens is not None else [],
            device_ns=device_ns,
            wait_ns=wait_ns,
            graph=handle.graph,
            padding=handle.padding,
        )
        if -1 in result.tokens:
            self._fail(result, handle)
        sampled = result.tokens
        if handle.logprobs is not None:
            chosen = [sampled[i] for i in handle.logprob_rows]
            entries = on_host(handle.logprobs, chosen, handle.num_logprobs)
            for i, entry in zip(handle.logprob_rows, entries, strict=True):
                result.logprobs[plan.sequences[samples.plan[i]].seq_id] = entry
        for index, targets, num_top, parts in handle.prompts:
            entries = []
            for part in parts:
                own = targets[len(entries) : len(entries) + len(part.chosen)]
                entries += on_host(part, own, [num_top] * len(own))
            result.prompt_logprobs[plan.sequences[index].seq_id] = entries
        result.tokens = [token for _, token in sorted(zip(samples.plan, sampled, strict=True))]
        return result

    def forget(self, seq_ids: list[int]) -> None:
        """Let go of sequences that will not be planned again."""
        for row in self._batch.release(seq_ids):
            self._release(row)

    def close(self) -> None:
        """Give back the KV pool's memory. The runner can't be used afterwards."""
        self.kv_caches.clear()
        self._decodes = None
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()

    def _release(self, row: int) -> None:
        self._sampler.release(row)
        self._prompt_tops.pop(row, None)

    def _admit(self, row: int, seq: Sequence) -> None:
        """Take in a sequence that is new to the running batch, or back in it.

        One that has an output had its whole prompt computed before: its recomputation reports no prompt again.
        """
        self._sampler.admit(row, seq)
        self._prompt_tops.pop(row, None)
        num_top = seq.params.prompt_logprobs
        if num_top is not None and len(seq.token_ids) == seq.num_prompt_tokens:
            self._prompt_tops[row] = num_top

    def _update_rows(self, admitted: list[int]) -> None:
        """Bring the device's rows up to the host's: new block ids, and the parameters of admitted rows."""
        table = self._rows.block_tables
        if self._batch.changes:
            where, blocks = self._staging.send(*self._batch.take_changes())
            table.view(-1).index_copy_(0, where, blocks)
        if admitted:
            temperature, seeds = self._sampler.temperature_and_seeds(admitted)
            rows, there, own = self._staging.send(np.array(admitted, dtype=np.int64), temperature, seeds)
            self._rows.temperature.index_copy_(0, rows, there)
            self._rows.seeds.index_copy_(0, rows, own)

    def _launch_decode(
        self, decodes: DecodeSteps, plan: StepPlan, rows: list[int], readback: Readback
    ) -> LaunchedStep:
        """One token for each sequence, all of whose inputs are on the device."""
        starts = np.array(plan.starts, dtype=np.int64)
        order = np.argsort(-starts, kind="stable")  # attention ends sooner when the longest contexts begin first
        starts = starts[order]
        samples = SampleRows(order.tolist(), np.array(rows, dtype=np.int64)[order], starts + 1)
        output = decodes.run(samples.rows.astype(np.int32), starts.astype(np.int32))
        step = LaunchedStep(plan, samples, None, None, [], [], [], readback, decodes.num_graphs > 0, output.padding)
        if self._sampler.needs_more(rows):
            self._sample(step, output.logits)
        else:
            step.tokens = readback.tensor(output.tokens)
        return step

    def _launch_any(self, plan: StepPlan, rows: list[int], readback: Readback) -> LaunchedStep:
        """A step of any kind, its inputs laid out by the host."""
        arrays = self._batch.arrays(plan, rows)
        ids, positions, slots, pending, pending_rows, sampling, table_rows = self._staging.send(
            arrays.input_ids, arrays.positions, arrays.slot_mapping, arrays.pending_index, arrays.pending_rows,
            arrays.sample_index, arrays.rows.astype(np.int32),
        )  # fmt: skip
        if len(arrays.pending_index):
            tokens = self._rows.last_tokens.index_select(0, pending_rows).clamp(min=0)  # -1 has failed already
            ids.index_copy_(0, pending, tokens)
        attention = build_metadata(
            self._rows.block_tables, arrays.query_lens, arrays.context_lens, self._block_size, table_rows,
            self.attention,
        )  # fmt: skip
        hidden = self._model.forward(ids, positions, ForwardBatch(self.kv_caches, slots, attention))
        prompts = self._prompt_logprobs(plan, rows, arrays, hidden) if self._prompt_tops else []
        step = LaunchedStep(plan, arrays.samples, None, None, [], [], prompts, readback)
        if arrays.samples.plan:
            # Only the states of sampling rows go through the head.
            self._sample(step, self._model.logits(hidden.index_select(0, sampling)))
        return step

    def _sample(self, step: LaunchedStep, logits: torch.Tensor) -> None:
        sequences, samples, readback = step.plan.sequences, step.samples, step.readback
        sampled = self._sampler.sample(logits.float(), sequences, samples)
        step.tokens = readback.tensor(sampled.tokens)
        if sampled.logprobs is not None:
            step.logprobs, step.logprob_rows = readback.logprobs(sampled.logprobs), sampled.logprob_rows
            plan_indices = [samples.plan[i] for i in sampled.logprob_rows]
            step.num_logprobs = [sequences[index].params.logprobs or 0 for index in plan_indices]

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
            (ids,) = self._staging.send(np.array(targets, dtype=np.int64))
            states = hidden[first : first + len(targets)]
            parts = prompt_token_logprobs(self._model.logits, states, ids, num_top, self.vocab_size)
            found.append((index, targets, num_top, parts))
        return found

    def _fail(self, result: StepResult, handle: LaunchedStep) -> None:
        """Name the sequences without a valid token, and keep their non-finite keys and values from their pages' heirs.

        Attention may read stale slots of a page under a mask, where 0 * NaN would not vanish. Finite values, which
        shared pages hold, stay as they are.
        """
        plan, samples = handle.plan, handle.samples
        for i, token in enumerate(result.tokens):
            if token >= 0:
                continue
            index = samples.plan[i]
            result.tokens[i] = 0
            result.failed[plan.sequences[index].seq_id] = f"non-finite logits at position {samples.positions[i]}"
            held = -(-int(samples.positions[i]) // self._block_size)
            (blocks,) = self._staging.send(self._batch.table[samples.rows[i], :held].astype(np.int64))
            for pages in self.kv_caches:
                for cache in pages:
                    cache[blocks] = cache[blocks].nan_to_num()

    def _decode_metadata(
        self, block_tables: torch.Tensor, rows: torch.Tensor, context_lens: torch.Tensor
    ) -> AttentionMetadata:
        return decode_metadata(
            block_tables, rows, context_lens, self._block_size, self.max_model_len, self.attention
        )
