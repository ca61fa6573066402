"""Builders for tests on the real engine and runner: a tiny random Llama that loads at once, and one with a script."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from nanolens.engine.config import EngineConfig
from nanolens.engine.llm import LLM
from nanolens.engine.outputs import RequestOutput
from nanolens.engine.runner.load import LoadedModel, load_parts
from nanolens.engine.sampling_params import SamplingParams
from nanolens.telemetry.events import AnyEvent, Keyframe, SequencePreempted

TINY = "dummy:llama-tiny"


@cache
def tiny_parts() -> LoadedModel:
    """The tiny Llama of 264 tokens, one a byte and eight special, in float32."""
    return load_parts(EngineConfig(model=TINY, dtype="float32", device="cpu"))


def tiny_llm(**options: Any) -> LLM:
    """An engine on it, audited after every step: 64 blocks of 4 tokens, if not told otherwise."""
    return LLM(TINY, parts=tiny_parts(), **({"num_blocks": 64, "block_size": 4, "audit": True, "seed": 0} | options))


class Scripted:
    """A model whose next-token logits are a function of the position and the token there, whatever stands before."""

    def __init__(self, logits_of: Callable[[int, int], dict[int, float]]) -> None:
        self.config = tiny_parts().model.config
        self._logits_of = logits_of

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, batch: Any) -> torch.Tensor:
        return torch.stack([positions, input_ids], dim=1).float()

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = torch.full((len(hidden), self.config.vocab_size), -50.0)
        for row, (position, token) in zip(rows, hidden.int().tolist(), strict=True):
            for token_id, value in self._logits_of(position, token).items():
                row[token_id] = value
        return rows


def scripted_llm(logits_of: Callable[[int, int], dict[int, float]], **options: Any) -> LLM:
    """An engine on a scripted model, with the tiny Llama's tokenizer unless `tokenizer` is given."""
    parts = replace(tiny_parts(), model=Scripted(logits_of))
    if "tokenizer" in options:
        parts = replace(parts, tokenizer=options.pop("tokenizer"))
    return LLM(TINY, parts=parts, **({"num_blocks": 64, "block_size": 4, "audit": True, "seed": 0} | options))


def greedy(max_tokens: int | None = 16, **params: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **params)


def prompt_of(length: int, salt: int = 0) -> list[int]:
    """Token ids that repeat nothing of another salt's."""
    rng = random.Random(f"{length} {salt}")
    return [rng.randrange(256) for _ in range(length)]


def recorded(llm: LLM) -> list[AnyEvent]:
    """A list that gets each event of an engine from now on."""
    events: list[AnyEvent] = []
    llm.engine.core.recorder.subscribe(events.extend)
    return events


def preemptions(events: Sequence[AnyEvent]) -> int:
    return sum(isinstance(event, SequencePreempted) for event in events)


def ids_of(outputs: Sequence[RequestOutput]) -> list[list[int]]:
    """The generated tokens of each output's first sequence."""
    return [output.outputs[0].token_ids for output in outputs]


def is_idle(snapshot: Keyframe) -> bool:
    """Whether nothing lives and every block is free."""
    return not (snapshot.sequences or snapshot.waiting or snapshot.running) and (
        sorted(snapshot.free_blocks) == list(range(snapshot.started.num_blocks))
    )
