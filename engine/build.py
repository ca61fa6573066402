"""Puts an engine together: model, runner, journal, core. The one place where the parts meet; torch is loaded here."""

from __future__ import annotations

import os
import secrets
import time

from ..errors import InvalidConfig
from ..telemetry.clock import monotonic_ns, wall_offset_ns
from ..telemetry.events import EngineStarted
from ..telemetry.journal import JournalWriter
from ..telemetry.recorder import NullRecorder, Recorder
from .config import EngineConfig
from .core import EngineCore
from .engine import Engine


def new_run_id() -> str:
    """A name for a run that sorts by its start: UTC time and some random digits."""
    return time.strftime("%Y%m%dT%H%M%S", time.gmtime()) + "-" + secrets.token_hex(3)


def make_recorder(config: EngineConfig, run_id: str) -> Recorder | NullRecorder:
    """The recorder that the settings ask for."""
    if not config.recording:
        if config.journal is not None:
            raise InvalidConfig(f"journal={config.journal!r} with recording=False: nothing would be written; drop one")
        return NullRecorder()
    writer = None if config.journal is None else JournalWriter(config.journal, run_id, config.journal_cap)
    return Recorder(writer)


def build_engine(config: EngineConfig) -> Engine:
    """Load the model and start an engine in this process.

    Raises:
        InvalidConfig, UnknownModel, ModelLoadError: what is wrong, in words.
    """
    import torch

    from .. import __version__
    from ..models import load_generation_defaults, load_model, load_tokenizer
    from .runner.model_runner import ModelRunner

    run_id = new_run_id()
    recorder = make_recorder(config, run_id)
    device = torch.device(pick_device(config.device, torch.cuda.is_available()))
    model = load_model(config.model, dtype=config.dtype, device=device)
    tokenizer = load_tokenizer(config.model)
    defaults = load_generation_defaults(config.model)
    eos = frozenset(defaults.eos_token_ids)
    vocab_size = model.config.vocab_size if tokenizer is None else min(tokenizer.vocab_size, model.config.vocab_size)
    runner = ModelRunner(model, config, device, num_valid_tokens=vocab_size)
    started = EngineStarted(
        t=monotonic_ns(), run_id=run_id, wall_offset_ns=wall_offset_ns(), pid=os.getpid(), version=__version__,
        model=config.model, config=config.as_record(), num_blocks=runner.num_blocks, block_size=config.block_size,
        vocab_size=vocab_size, max_model_len=runner.max_model_len,
    )  # fmt: skip
    overlap = config.overlap if config.overlap is not None else device.type == "cuda"
    core = EngineCore(
        config, runner, recorder, started, eos_token_ids=eos, overlap=overlap, secret=secrets.token_bytes(32)
    )
    return Engine(core, tokenizer, defaults, vocab_size)


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
