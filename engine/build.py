"""Puts an engine together: runner, journal, core. The one place where the parts meet."""

from __future__ import annotations

import gc
import os
import secrets
import time
from typing import TYPE_CHECKING

from .. import __version__
from ..errors import InvalidConfig
from ..telemetry.clock import boot_id, monotonic_ns, wall_offset_ns
from ..telemetry.events import EngineReady, EngineStarted
from ..telemetry.journal import JournalWriter
from ..telemetry.recorder import NullRecorder, Recorder
from ..telemetry.registry import announce_journal
from .block_key import take_block_key
from .config import EngineConfig
from .core import EngineCore
from .engine import Engine
from .exporting import start_exporting
from .standard_files import open_standard_files

if TYPE_CHECKING:
    from .runner.load import LoadedModel
    from .runner.loaded import Loaded


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


def build_engine(config: EngineConfig, parts: LoadedModel | None = None) -> Engine:
    """Start an engine in this process.

    Args:
        config: its settings.
        parts: a model that is loaded already (`runner.load.load_parts`), which engines may share; None loads one.

    Raises:
        InvalidConfig, UnknownModel, ModelLoadError: what is wrong, in words.
        EngineDead: the exporter that the settings ask for did not start.
    """
    open_standard_files()
    run_id = new_run_id()
    exporting = start_exporting(config, run_id)
    if exporting is None:
        return _build(config, run_id, parts)
    try:
        engine = _build(exporting.config, run_id, parts)
        try:
            exporting.wait_ready()
        except BaseException:
            engine.close()
            raise
    except BaseException:
        exporting.abandon()
        raise
    engine.exporting = exporting
    return engine


def _load(config: EngineConfig, parts: LoadedModel | None) -> Loaded:
    if config.tensor_parallel_size == 1:
        from .runner.load import load  # brings torch, which nothing else in this folder needs

        return load(config, parts)
    if parts is not None:
        raise InvalidConfig(
            f"tensor_parallel_size={config.tensor_parallel_size} with a model that is loaded already: must be 1, or "
            "leave `parts` out: each rank loads its own part"
        )
    from .runner.tensor_parallel import load_ranks

    return load_ranks(config)


def _build(config: EngineConfig, run_id: str, parts: LoadedModel | None) -> Engine:
    recorder = make_recorder(config, run_id)
    loaded = _load(config, parts)
    gc.collect()
    gc.freeze()  # what loading left lives as long as the engine: no later collection has to walk it between two steps
    started = EngineStarted(
        t=monotonic_ns(), run_id=run_id, wall_offset_ns=wall_offset_ns(), pid=os.getpid(), version=__version__,
        model=config.model, config=config.as_record(), num_blocks=loaded.runner.num_blocks,
        block_size=config.block_size, vocab_size=loaded.vocab_size, max_model_len=loaded.runner.max_model_len,
        boot_id=boot_id(),
    )  # fmt: skip
    eos = frozenset(loaded.defaults.eos_token_ids) | frozenset(loaded.tokenizer.eos_token_ids)
    core = EngineCore(
        config, loaded.runner, recorder, started, eos_token_ids=eos,
        overlap=loaded.is_asynchronous if config.overlap is None else config.overlap, secret=take_block_key(),
    )  # fmt: skip
    if config.journal is not None:
        announce_journal(started, config.journal)
    recorder.record(EngineReady(monotonic_ns(), loaded.runner.startup))
    return Engine(core, loaded.tokenizer, loaded.defaults, loaded.vocab_size)
