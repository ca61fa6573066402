"""Loads a model onto a device and wraps it into a runner, with the tokenizer and defaults that belong to it."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from ...errors import InvalidConfig
from ...models import load_generation_defaults, load_model, load_tokenizer
from ...models.generation import GenerationDefaults
from ...models.tokenizer import AnyTokenizer
from ..config import EngineConfig, check_device
from .loaded import Loaded
from .model_runner import CausalModel, ModelRunner

NVIDIA_DRIVER = "/proc/driver/nvidia/version"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory; several engines may run on one.

    Attributes:
        model: its weights on `device`.
        tokenizer: text to ids and back.
        defaults: what the model suggests where a request says nothing.
        device: where the weights are.
    """

    model: CausalModel
    tokenizer: AnyTokenizer
    defaults: GenerationDefaults
    device: torch.device


def load_parts(config: EngineConfig) -> LoadedModel:
    """Load the model that `config` names.

    Raises:
        InvalidConfig, UnknownModel, ModelLoadError: what is wrong, in words.
    """
    device = torch.device(pick_device(config.device, torch.cuda.is_available()))
    logger.info("loading the weights of %s onto %s", config.model, device)
    began = time.monotonic()
    try:
        model = load_model(config.model, dtype=config.dtype, device=device)
    except torch.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info(device)
        raise InvalidConfig(
            f"the weights of {config.model} do not fit into {device} ({free >> 20} of {total >> 20} MiB free): free "
            "memory there, take a smaller dtype or model, or device='cpu'"
        ) from error
    logger.info("weights loaded in %.1f s, as %s", time.monotonic() - began, model.config.dtype)
    return LoadedModel(model, load_tokenizer(config.model), load_generation_defaults(config.model), device)


def load(config: EngineConfig, parts: LoadedModel | None = None) -> Loaded:
    """A runner for `config`, on a model that is loaded already or is loaded now.

    Raises:
        InvalidConfig, UnknownModel, ModelLoadError: what is wrong, in words.
    """
    parts = parts or load_parts(config)
    began = time.monotonic()
    logger.info("making room for KV, warming up")
    vocab_size = min(parts.tokenizer.vocab_size, parts.model.config.vocab_size)
    try:
        runner = ModelRunner(parts.model, config, parts.device, num_valid_tokens=vocab_size)
    except MemoryError as error:
        raise InvalidConfig(
            f"max_num_seqs={config.max_num_seqs}: the tables of so many sequences do not fit into memory ({error}); "
            "lower it, or max_model_len"
        ) from error
    logger.info(
        "%d KV blocks of %d tokens; ready in %.1f s", runner.num_blocks, config.block_size, time.monotonic() - began
    )
    return Loaded(runner, parts.tokenizer, parts.defaults, vocab_size, parts.device.type == "cuda")


def pick_device(name: str, has_cuda: bool) -> str:
    """The device that `device=` means: "auto" takes a GPU where there is one.

    Raises:
        InvalidConfig: a kind of device that the engine does not run on, or a GPU that torch does not see.
    """
    check_device(name)
    if name == "auto":
        if not has_cuda and Path(NVIDIA_DRIVER).exists():
            logger.warning(
                "this machine has an NVIDIA driver but torch %s (CUDA %s) sees no GPU, so the CPU is used: the driver "
                "may be too old for that CUDA version, or torch is a CPU build",
                torch.__version__,
                torch.version.cuda or "none",
            )
        return "cuda" if has_cuda else "cpu"
    if name.startswith("cuda") and not has_cuda:
        raise InvalidConfig(f"device={name!r}: torch sees no GPU; use 'cpu', or check the driver and torch's build")
    number = int(name.partition(":")[2] or 0)
    if name.startswith("cuda") and number >= torch.cuda.device_count():
        raise InvalidConfig(f"device={name!r}: torch sees {torch.cuda.device_count()} GPUs, cuda:0 the first of them")
    return name
