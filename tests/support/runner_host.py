"""Builders for runner tests: a tiny random Llama, and the least of a core that drives a real model runner."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch

from nanolens.engine.config import EngineConfig
from nanolens.engine.plan import BlockMove, StepPlan, StepResult
from nanolens.engine.runner.model_runner import ModelRunner
from nanolens.engine.sampling_params import SamplingParams
from nanolens.engine.sequence import Sequence
from nanolens.models.config import ModelConfig
from nanolens.models.transformer import Transformer

VOCAB = 97
BLOCK = 4


def tiny_model() -> Transformer:
    """A random Llama whose logits are far enough apart for greedy tokens to be stable."""
    raw = {
        "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCAB, "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "torch_dtype": "float32", "tie_word_embeddings": False,
    }  # fmt: skip
    model = Transformer(ModelConfig.from_hf(raw), torch.float32, torch.device("cpu"))
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


MODEL = tiny_model()


class Host:
    """The least that a core does: blocks in scattered order, plans from explicit work, tokens appended when read."""

    def __init__(
        self, model: Any = MODEL, max_num_seqs: int = 4, num_blocks: int = 64, device: str = "cpu", **options: Any
    ) -> None:
        config = EngineConfig(max_num_seqs=max_num_seqs, num_blocks=num_blocks, **({"block_size": BLOCK} | options))
        self.runner = ModelRunner(model, config, torch.device(device))
        self.block_size = config.block_size
        self.free = list(range(num_blocks))
        random.Random(3).shuffle(self.free)
        self.released: list[int] = []
        self.steps = self.sequences = self.moves = 0

    def add(self, prompt: list[int], seed: int = 0, **params: Any) -> Sequence:
        params = {"temperature": 0.0} | params
        resolved = SamplingParams(**params)
        self.sequences += 1
        return Sequence(self.sequences, "r", prompt, resolved, seed, 0, lambda event: None, lambda: 0, 128)

    def launch(self, *work: tuple[Sequence, int], **before: Any) -> tuple[StepPlan, Any]:
        """Plan `count` tokens of each sequence and launch them, with the `moves` and `copies` that are given."""
        plan = self.plan(*work, **before)
        return plan, self.runner.launch(plan)

    def plan(self, *work: tuple[Sequence, int], **before: Any) -> StepPlan:
        self.steps += 1
        plan = StepPlan(self.steps, "mixed", [], [], [], [], [], self.released, **before)
        self.released = []
        size = self.block_size
        for seq, count in work:
            start = seq.num_computed_tokens
            while len(seq.block_table) * size < start + count:
                seq.block_table.append(self.free.pop())
            plan.sequences.append(seq)
            plan.starts.append(start)
            plan.counts.append(count)
            plan.samples.append(start + count == seq.num_tokens)
            plan.epochs.append(seq.epoch)
            seq.num_computed_tokens += count
            seq.num_pending += plan.samples[-1]
        if all(start >= seq.num_prompt_tokens for seq, start in zip(plan.sequences, plan.starts, strict=True)):
            plan.kind = "decode" if all(count == 1 for count in plan.counts) else plan.kind
        return plan

    def move(self, kind: str, sources: list[int], targets: list[int]) -> BlockMove:
        self.moves += 1
        return BlockMove(self.moves, 0, kind, sources, targets)

    def collect(self, launched: tuple[StepPlan, Any]) -> StepResult:
        """Read a step and append its tokens."""
        plan, handle = launched
        result = self.runner.collect(handle)
        tokens = iter(result.tokens)
        for seq, samples in zip(plan.sequences, plan.samples, strict=True):
            if samples:
                seq.num_pending -= 1
                seq.token_ids.append(next(tokens))
        return result

    def step(self, *work: tuple[Sequence, int], **before: Any) -> StepResult:
        return self.collect(self.launch(*work, **before))

    def generate(self, seq: Sequence, count: int, chunk: int = 1000) -> list[int]:
        """Run one sequence alone until it has `count` more tokens."""
        goal = len(seq.token_ids) + count
        while len(seq.token_ids) < goal:
            self.step((seq, min(chunk, seq.num_tokens - seq.num_computed_tokens)))
        return seq.output_token_ids

    def leave(self, seq: Sequence, new_epoch: bool = True) -> None:
        """Preempt (or end) a sequence: its blocks go back, what it computed is lost."""
        self.free[:0] = seq.block_table
        seq.block_table = []
        seq.num_computed_tokens = 0
        seq.epoch += new_epoch
        self.released.append(seq.seq_id)


def prompt_of(length: int, salt: int = 0) -> list[int]:
    return [(7 * i + 31 * salt + i * i) % VOCAB for i in range(length)]


def recomputed(prompt: list[int], count: int) -> list[int]:
    """Greedy tokens, each from a whole prefill in a fresh pool."""
    tokens = list(prompt)
    for _ in range(count):
        host = Host()
        tokens += host.generate(host.add(tokens), 1)
    return tokens[len(prompt) :]


class Spoiled:
    """The tiny model, with NaN in the hidden state of one token id."""

    config = MODEL.config

    def __init__(self, token_id: int) -> None:
        self.token_id = token_id
        self.logits: Callable[[torch.Tensor], torch.Tensor] = MODEL.logits

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, batch: Any) -> torch.Tensor:
        hidden = MODEL.forward(input_ids, positions, batch)
        slots = batch.slot_mapping[input_ids == self.token_id]
        for keys, values in batch.kv_caches:
            keys.flatten(0, 1)[slots] = math.nan
            values.flatten(0, 1)[slots] = math.nan
        return torch.where((input_ids == self.token_id)[:, None], math.nan, hidden)
