"""Runs planned steps on one device with a model: the running batch, the KV pool, the forward pass, the sampler.

It knows sequences only through plans, and nothing of queues, requests or text.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np
import torch

from ...errors import InvalidConfig
from ...kernels.attention import build_metadata, choose_attention, decode_metadata
from ...kernels.logprobs import Logprobs
from ...models.batch import ForwardBatch
from ...models.config import ModelConfig
from .. import faults
from ..config import EngineConfig
from ..plan import MoveResult, StepPlan, StepResult
from ..sequence import Sequence
from . import kv_cache
from .block_moves import BlockMoves
from .decode_steps import DecodeModel, DecodeSteps, DeviceRows, graph_sizes
from .input_batch import InputBatch, SampleRows, StepArrays
from .launched import LaunchedStep
from .logprobs import prompt_targets, prompt_token_logprobs
from .memory_errors import out_of_device_memory
from .readback import Readback
from .sampler import Sampled, Sampler
from .split_head import SplitHead
from .staging import Staging
from .warmup import exercise, pool_blocks


class CausalModel(DecodeModel, Protocol):
    """What the runner needs of a model."""

    config: ModelConfig


class ModelRunner:
    """The torch runner (engine/plan.py's `Runner`).

    A sequence's tokens depend on its own tokens, parameters and seed only. Launches complete in order. On a GPU a step
    of decode tokens alone is a CUDA graph; other steps are launched operation by operation.

    Args:
        model: on `device`, ready to run.
        config: the engine's settings.
        device: where the model is.
        num_valid_tokens: ids from here on are never sampled (a vocabulary padded beyond the tokenizer's).
        agree: from the blocks that this rank has room for to those that all have, where several share the model.
        waited: nanoseconds that this rank has spent in collectives so far, [1] int64 on `device`.
        split: the head, where several ranks share it; they see the same plans.

    Attributes:
        num_blocks: KV blocks in the pool.
        host_blocks, disk_blocks, swap_ns_per_block: of the swap space.
        vocab_size: width of the logits.
        max_model_len: longest sequence in tokens: as configured, else the model's, capped by the pool.
        kv_caches: pages of each layer.
        attention: the attention backend.
        num_filed: blocks written to the swap file or read from it so far; any thread may call it.
        startup: what preparing cost, by name: nanoseconds (`*_ns`), bytes (`*_bytes`) and counts.

    Raises:
        InvalidConfig: max_model_len is beyond the model's or the pool's, or the attention backend doesn't fit.
    """

    def __init__(
        self,
        model: CausalModel,
        config: EngineConfig,
        device: torch.device,
        *,
        num_valid_tokens: int | None = None,
        agree: Callable[[int], int] = int,
        waited: Callable[[], torch.Tensor] | None = None,
        split: SplitHead | None = None,
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
        self._model, self._waited, self._split = model, waited, split
        dtype: torch.dtype = getattr(torch, shape.dtype or "float32")
        self.attention = choose_attention(config.attention, device, dtype, config.block_size, shape.head_dim)
        self.num_blocks = agree(pool_blocks(model, config, device, dtype, self.attention, self.startup))
        self._block_size = page = config.block_size
        self.max_model_len = config.max_model_len or min(shape.max_position_embeddings, self.num_blocks * page)
        pages = (self.num_blocks, page, shape.num_kv_heads, shape.head_dim)
        pool = kv_cache.allocate(shape.num_layers, pages, dtype, device)
        self.kv_caches = kv_cache.by_layer(pool)
        max_blocks = -(-self.max_model_len // config.block_size)
        self._batch = InputBatch(config.max_num_seqs, max_blocks, config.block_size)
        self._staging = Staging(device)
        self._rows = DeviceRows.empty(config.max_num_seqs, max_blocks, device)
        num_tokens = min(num_valid_tokens or shape.vocab_size, shape.vocab_size)
        self._sampler = Sampler(config.max_num_seqs, num_tokens, self._rows.last_tokens, self._staging)
        self._prompt_tops: dict[int, int] = {}  # row -> alternatives for prompt tokens, where asked for
        self._decodes: DecodeSteps | None = None
        if device.type == "cuda" and self.attention != "torch" and not config.enforce_eager:
            self._decodes = DecodeSteps(
                model, self.kv_caches, self._rows, page, self.vocab_size, num_tokens, graph_sizes(config.max_num_seqs),
                partial(decode_metadata, block_size=page, max_context_len=self.max_model_len, backend=self.attention),
                split,
            )  # fmt: skip
            self.startup |= {"capture_ns": self._decodes.capture(), "num_graphs": self._decodes.num_graphs}
        self.host_blocks, self.disk_blocks = config.host_blocks, config.disk_blocks
        self._moves = BlockMoves(pool, config)
        self.num_filed = self._moves.num_filed
        self.swap_ns_per_block = self._moves.ns_per_block
        self.startup |= {"swap_ns_per_block": self.swap_ns_per_block} if self.swap_ns_per_block else {}
        if device.type == "cuda":
            try:
                self.startup["exercise_ns"] = exercise(self, config)
            except BaseException:  # the swap space's thread and file would outlive a half-built runner
                self.close()
                raise

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> LaunchedStep | None:
        """Start a step. On a GPU it returns before the step is done. None for a plan without sequences.

        Where it raises, the plan's moves, copies and releases have been done all the same, and nothing else has
        happened as far as later launches can see: the same sequences can be launched again, whole or in parts.

        Raises:
            OutOfDeviceMemory: the step does not fit into memory.
        """
        for row in self._batch.release(plan.released):
            self._release(row)
        self._moves.start(plan)
        try:
            faults.reach("launch")
            return self._launch_step(plan) if plan.sequences else None
        finally:
            if plan.moves:
                self._moves.go()

    @torch.inference_mode()
    def collect(self, handle: LaunchedStep | None) -> StepResult:
        """Wait for a launched step (for a plan without sequences, all moves); read its tokens and what came of moves.

        A sequence whose logits were not finite is in `failed`; its token in the result means nothing.
        """
        faults.reach("collect")
        if handle is None:
            began = time.monotonic_ns()
            return StepResult([], moved=self._moves.wait(), wait_ns=time.monotonic_ns() - began)
        result, failed = handle.read()
        for i in failed:
            self._cleanse(int(handle.samples.rows[i]), int(handle.samples.positions[i]))
        result.moved = self._moves.finished()
        return result

    def finish_moves(self) -> list[MoveResult]:
        """Wait for all moves launched so far; those that no result has told of yet."""
        return self._moves.wait()

    def is_sound(self) -> bool:
        """Whether the device still computes."""
        with contextlib.suppress(RuntimeError):
            self._rows.temperature[-1:].fill_(0)  # the padding's, which nobody reads
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            return True
        return False

    def look(self) -> str:
        """Nothing beside this process can fail."""
        return ""

    def forget(self, seq_ids: list[int]) -> None:
        """Let go of sequences that will not be planned again."""
        for row in self._batch.release(seq_ids):
            self._release(row)

    def close(self) -> None:
        """Give back the KV pool's memory and the swap space. The runner can't be used afterwards."""
        self._moves.close()
        self.kv_caches.clear()
        self._decodes = None
        if self.device.type == "cuda":
            with contextlib.suppress(RuntimeError):  # a device that has failed keeps nobody from closing
                torch.cuda.synchronize(self.device)
                torch.cuda.empty_cache()

    def _launch_step(self, plan: StepPlan) -> LaunchedStep:
        """Start a step's computation, or forget what it brought in."""
        rows, admitted, _ = self._batch.update(plan)
        try:
            with out_of_device_memory(self.device, f"a step of {plan.num_tokens} tokens"):
                return self._launch_rows(plan, rows, admitted)
        except BaseException:
            self.forget([plan.sequences[index].seq_id for index in admitted])
            raise

    def _launch_rows(self, plan: StepPlan, rows: list[int], admitted: list[int]) -> LaunchedStep:
        readback = Readback(self.device, self._waited)
        for index in admitted:
            self._admit(rows[index], plan.sequences[index])
        self._update_rows([rows[index] for index in admitted])
        if self._decodes is not None and plan.kind == "decode":
            step = self._launch_decode(self._decodes, plan, rows, readback)
        else:
            step = self._launch_any(plan, rows, readback)
        readback.seal()
        return step

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
        if num_top is not None and not seq.num_read_output_tokens:
            self._prompt_tops[row] = num_top

    def _update_rows(self, admitted: list[int]) -> None:
        """Bring the device's rows up to the host's: new block ids, and the parameters of admitted rows."""
        table = self._rows.block_tables
        if self._batch.changes:
            where, blocks = self._staging.send(*self._batch.changed_entries())
            table.view(-1).index_copy_(0, where, blocks)
            self._batch.changes.clear()
        if admitted:
            temperature, seeds = self._sampler.temperature_and_seeds(admitted)
            rows, there, own = self._staging.send(np.array(admitted, dtype=np.int64), temperature, seeds)
            self._rows.temperature.index_copy_(0, rows, there)
            self._rows.seeds.index_copy_(0, rows, own)

    def _launch_decode(self, decodes: DecodeSteps, plan: StepPlan, rows: list[int], readback: Readback) -> LaunchedStep:
        """One token for each sequence, all of whose inputs are on the device."""
        starts = np.array(plan.starts, dtype=np.int64)
        order = np.argsort(-starts, kind="stable")  # attention ends sooner when the longest contexts begin first
        starts = starts[order]
        samples = SampleRows(order.tolist(), np.array(rows, dtype=np.int64)[order], starts + 1)
        faults.reach("forward")
        output = decodes.run(samples.rows.astype(np.int32), starts.astype(np.int32))
        step = LaunchedStep(plan, samples, None, None, [], [], [], readback, decodes.num_graphs > 0, output.padding)
        if self._sampler.needs_more(rows):
            decodes.take_back(len(rows))  # what the step has sampled is none of the sequences' tokens
            logits = decodes.whole_logits(output).float()
            self._keep(step, self._sampler.sample(logits, plan.sequences, samples))
            return step
        try:
            step.tokens = readback.tensor(output.tokens)
        except BaseException:
            decodes.take_back(len(rows))
            raise
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
        faults.reach("forward")
        hidden = self._model.forward(ids, positions, ForwardBatch(self.kv_caches, slots, attention))
        prompts = self._prompt_logprobs(plan, rows, arrays, hidden, readback) if self._prompt_tops else []
        step = LaunchedStep(plan, arrays.samples, None, None, [], [], prompts, readback)
        if arrays.samples.plan:
            states = hidden.index_select(0, sampling)  # only those of sampling rows go through the head
            if self._split is None or self._sampler.needs_more(arrays.samples.rows.tolist()):
                logits = self._model.logits(states).float()
                sampled = self._sampler.sample(logits, plan.sequences, arrays.samples)
            else:
                sampled = self._sampler.sample_split(self._split, states, arrays.samples)
            self._keep(step, sampled)
        return step

    def _keep(self, step: LaunchedStep, sampled: Sampled) -> None:
        sequences, samples, readback = step.plan.sequences, step.samples, step.readback
        tokens = readback.tensor(sampled.tokens)
        if sampled.logprobs is not None:
            step.logprobs, step.logprob_rows = readback.logprobs(sampled.logprobs), sampled.logprob_rows
            plan_indices = [samples.plan[i] for i in sampled.logprob_rows]
            step.num_logprobs = [sequences[index].params.logprobs or 0 for index in plan_indices]
        self._sampler.keep(samples.rows, sampled.tokens)  # last: a launch that fails before it leaves no trace
        step.tokens = tokens

    def _prompt_logprobs(
        self, plan: StepPlan, rows: list[int], arrays: StepArrays, hidden: torch.Tensor, readback: Readback
    ) -> list[tuple[int, list[int], int, list[Logprobs]]]:
        found = []
        for index, targets, num_top, first in prompt_targets(plan, rows, self._prompt_tops, arrays):
            (ids,) = self._staging.send(np.array(targets, dtype=np.int64))
            states = hidden[first : first + len(targets)]
            parts = prompt_token_logprobs(self._model.logits, states, ids, num_top, self.vocab_size)
            found.append((index, targets, num_top, [readback.logprobs(part) for part in parts]))
        return found

    def _cleanse(self, row: int, num_tokens: int) -> None:
        """Keep the non-finite keys and values of a failed sequence from the heirs of its pages.

        Attention may read stale slots of a page under a mask, where 0 * NaN would not vanish. Finite values, which
        shared pages hold, stay as they are.
        """
        held = self._batch.table[row, : -(-num_tokens // self._block_size)].astype(np.int64)
        self._moves.settle(held.tolist())
        (blocks,) = self._staging.send(held)
        for pages in self.kv_caches:
            for cache in pages:
                cache[blocks] = cache[blocks].nan_to_num()
