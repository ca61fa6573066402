"""Loads a model onto a device and wraps it into a runner, with the tokenizer and defaults that belong to it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...errors import InvalidConfig
from ...models import load_generation_defaults, load_model, load_tokenizer
from ...models.generation import GenerationDefaults
from ...models.tokenizer import AnyTokenizer
from ..config import EngineConfig
from .model_runner import ModelRunner


@dataclass(frozen=True, slots=True)
class Loaded:
    """What an engine needs of its model.

    Attributes:
        runner: computes steps.
        tokenizer: None for a model of token ids only.
        defaults: what the model suggests where a request says nothing.
        vocab_size: every id that a request may name or get is below it.
        is_asynchronous: whether a launched step runs beside the host.
    """

    runner: ModelRunner
    tokenizer: AnyTokenizer | None
    defaults: GenerationDefaults
    vocab_size: int
    is_asynchronous: bool


def load(config: EngineConfig) -> Loaded:
    """Load what `config` names.

    Raises:
        InvalidConfig, UnknownModel, ModelLoadError: what is wrong, in words.
    """
    device = torch.device(pick_device(config.device, torch.cuda.is_available()))
    model = load_model(config.model, dtype=config.dtype, device=device)
    tokenizer = load_tokenizer(config.model)
    vocab_size = model.config.vocab_size if tokenizer is None else min(tokenizer.vocab_size, model.config.vocab_size)
    runner = ModelRunner(model, config, device, num_valid_tokens=vocab_size)
    defaults = load_generation_defaults(config.model)
    return Loaded(runner, tokenizer, defaults, vocab_size, device.type == "cuda")


def pick_device(name: str, has_cuda: bool) -> str:
    """The device that `device=` means: "auto" takes a GPU where there is one.

    Raises:
        InvalidConfig: a GPU is asked for and torch sees none.
    """
    if name == "auto":
        return "cuda" if has_cuda else "cpu"
    if name.startswith("cuda") and not has_cuda:
        raise InvalidConfig(f"device={name!r}: torch sees no GPU; use 'cpu', or check the driver and torch's build")
    return name
