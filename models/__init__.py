"""Models by name: a directory, a hub name, `smollm2`, or `dummy:NAME`. On kernels/; knows nothing of the engine.

Importing this package imports no torch; the functions do, when called.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidConfig, ModelLoadError, UnknownModel
from .config import DTYPES, ModelConfig

if TYPE_CHECKING:
    import torch

    from .generation import GenerationDefaults
    from .parallel import Collectives, Shard
    from .tokenizer import AnyTokenizer
    from .transformer import Transformer

__all__ = [
    "DummyModel",
    "ModelConfig",
    "load_config",
    "load_generation_defaults",
    "load_model",
    "load_tokenizer",
    "resolve_model",
]

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]


@dataclass(frozen=True)
class DummyModel:
    """A model of a known shape without files.

    Attributes:
        name: `dummy:NAME`.
        config: its shape.
    """

    name: str
    config: ModelConfig


def resolve_model(name: str) -> Path | DummyModel:
    """Find what MODEL names; fetches it where that is needed.

    Args:
        name: a directory, a hub name (`owner/model`), `smollm2`, or `dummy:NAME`.

    Returns:
        A directory with config.json, or a dummy's shape.

    Raises:
        UnknownModel: none of these, or a hub name that can't be fetched.
        ModelLoadError: a directory without config.json, or the embedded model can't be made.
    """
    from .embedded import ALIAS, embedded_directory

    if name.startswith("dummy:"):
        from .dummy import dummy_shape

        return DummyModel(name, ModelConfig.from_hf(dummy_shape(name)))
    path = Path(name).expanduser()
    if name and path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelLoadError(f"{path}: no config.json there; MODEL must be the directory that holds it")
        return path
    if name == ALIAS:
        return embedded_directory()
    if name and path.exists():
        raise UnknownModel(f"{name!r} is a file; give the directory that holds config.json and model.safetensors")
    if _HUB_NAME.fullmatch(name):
        return _from_hub(name)
    raise UnknownModel(
        f"{name!r} is no directory here and no known model; give a directory, a hub name (owner/model), "
        f"{ALIAS!r}, or dummy:qwen3-0.6b"
    )


def load_config(name: str) -> ModelConfig:
    """A model's shape.

    Raises:
        UnknownModel, ModelLoadError: as `resolve_model`, or a config.json that can't be run.
    """
    found = resolve_model(name)
    return found.config if isinstance(found, DummyModel) else _read_config(found)


def load_model(
    name: str,
    dtype: str = "auto",
    device: str | torch.device = "cpu",
    shard: Shard | None = None,
    collectives: Collectives | None = None,
) -> Transformer:
    """Load a model, or one rank's part of it, ready to run; its `config.dtype` is the one it runs in.

    Args:
        name: as for `resolve_model`.
        dtype: "float32", "bfloat16", "float16"; "auto": float32 on a CPU, elsewhere the checkpoint's.
        device: where to.
        shard: the part, where the model is split; `config` then has this rank's heads and MLP columns. None: all.
        collectives: to the other ranks; needed where there are any.

    Raises:
        UnknownModel, ModelLoadError: naming the file, tensor or config key at fault.
        InvalidConfig: another dtype, or a model that can't be split so.
    """
    import torch

    from .dummy import fill_random
    from .loader import Checkpoint, load_weights, stored_dtype
    from .parallel import WHOLE
    from .transformer import Transformer

    if dtype not in ("auto", *DTYPES):
        raise InvalidConfig(f"dtype={dtype!r}: must be one of auto, {', '.join(DTYPES)}")
    place = torch.device(device)
    found = resolve_model(name)
    config = found.config if isinstance(found, DummyModel) else _read_config(found)
    if dtype != "auto" or place.type == "cpu":
        config = dataclasses.replace(config, dtype="float32" if dtype == "auto" else dtype)

    def build(config: ModelConfig) -> Transformer:
        return Transformer(config, getattr(torch, config.dtype or "float32"), place, shard or WHOLE, collectives)

    if isinstance(found, DummyModel):
        model = build(config)
        fill_random(model)
    else:
        with Checkpoint(found) as checkpoint:
            model = build(dataclasses.replace(config, dtype=config.dtype or stored_dtype(checkpoint)))
            load_weights(model, checkpoint)
    model.pack()
    return model.eval()


def load_tokenizer(name: str) -> AnyTokenizer:
    """A model's tokenizer.

    Raises:
        UnknownModel, ModelLoadError: as `resolve_model`, or there is none that transformers can read.
    """
    found = resolve_model(name)
    if isinstance(found, DummyModel):
        from .dummy import ByteTokenizer

        return ByteTokenizer(found.config.vocab_size)
    from .tokenizer import Tokenizer

    return Tokenizer(found)


def load_generation_defaults(name: str) -> GenerationDefaults:
    """What a model suggests for sampling, and every id that ends a text.

    Raises:
        UnknownModel, ModelLoadError: as `resolve_model`, or a generation_config.json that makes no sense.
    """
    from .generation import GenerationDefaults, read_generation_defaults

    found = resolve_model(name)
    if isinstance(found, DummyModel):
        return GenerationDefaults(found.config.eos_token_ids)
    return read_generation_defaults(found, _read_config(found).eos_token_ids)


def _read_config(directory: Path) -> ModelConfig:
    path = directory / "config.json"
    try:
        raw: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path}: can't be read: {error}") from error
    if not isinstance(raw, dict):
        raise ModelLoadError(f"{path}: must hold a JSON object")
    try:
        return ModelConfig.from_hf(raw)
    except ModelLoadError as error:
        raise ModelLoadError(f"{directory}: {error}") from error


@functools.cache  # one visit to the network for config, weights and tokenizer
def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    except Exception as error:  # the hub client raises HTTP, OS, validation and its own errors
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise UnknownModel(
            f"{name!r} is no directory here, and the hub can't give it ({reason[0]}); check the name and the "
            "connection, or give a directory"
        ) from error
