"""Safetensors into a model's parameters, in place, with every element and every tensor accounted for.

Knows files and targets; not what the parameters mean.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import ModelLoadError
from .layers import Target
from .transformer import EMBEDDING, HEAD, Transformer

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_FLOATS = ("F32", "BF16", "F16")

# Old checkpoints store what follows from config.json.
_DERIVED = re.compile(r"(^|\.)rotary_emb\.inv_freq$")


class Checkpoint:
    """The tensors of a directory's safetensors: one file, or the shards that an index names. A context manager.

    Raises:
        ModelLoadError: no weights, an unreadable or truncated file, a missing shard, or an index that contradicts
            its shards.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}  # tensor name -> open file that holds it
        self._places: dict[str, str] = {}  # tensor name -> that file's name
        try:
            self._open_all()
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _open_all(self) -> None:
        if (self.directory / SINGLE).exists():
            self._open(SINGLE)
            return
        weight_map = _read_index(self.directory)
        shards = sorted(set(weight_map.values()))
        missing = [shard for shard in shards if not (self.directory / shard).is_file()]
        if missing:
            raise ModelLoadError(f"{self.directory}: {INDEX} names {_some(missing)}, which is not there")
        for shard in shards:
            self._open(shard)
        for name, shard in weight_map.items():
            if self._places.get(name) != shard:
                raise ModelLoadError(f"{self.directory}: {INDEX} says that {shard} holds {name}, but it does not")

    def _open(self, file: str) -> None:
        path = self.directory / file
        try:
            opened = self._stack.enter_context(safe_open(path, framework="pt", device="cpu"))
        except (SafetensorError, OSError) as error:
            raise ModelLoadError(f"{path}: not a whole safetensors file ({error}); fetch it again") from error
        for name in opened.keys():  # noqa: SIM118 (not a mapping)
            if name in self._places:
                raise ModelLoadError(f"{self.directory}: {name} is in both {self._places[name]} and {file}")
            self._files[name], self._places[name] = opened, file

    @property
    def names(self) -> frozenset[str]:
        """Of all tensors."""
        return frozenset(self._files)

    def dtype_of(self, name: str) -> str:
        """The tensor's dtype in safetensors' words: F32, BF16, F16."""
        return str(self._files[name].get_slice(name).get_dtype())

    def tensor(self, name: str, part: tuple[slice, ...] = ()) -> Tensor:
        """A tensor, or a part of it that alone is read, as it is stored, on the CPU."""
        if part:
            return self._files[name].get_slice(name)[part]  # type: ignore[no-any-return]
        return self._files[name].get_tensor(name)  # type: ignore[no-any-return]

    def read_into(self, target: Target) -> None:
        """Copy a tensor, or the part that the target asks for, to its place; casts to the parameter's dtype.

        Raises:
            ModelLoadError: another shape than expected, or no floating-point weights.
        """
        source = self._files[target.name].get_slice(target.name)
        where = f"{self.directory / self._places[target.name]}: {target.name}"
        if tuple(source.get_shape()) != target.shape:
            raise ModelLoadError(
                f"{where} has shape {list(source.get_shape())}; config.json asks for {list(target.shape)}"
            )
        if source.get_dtype() not in _FLOATS:
            raise ModelLoadError(f"{where} has dtype {source.get_dtype()}; supported are {', '.join(_FLOATS)}")
        target.view.copy_(self.tensor(target.name, target.part))


def load_weights(model: Transformer, checkpoint: Checkpoint) -> None:
    """Fill every parameter of a model.

    Raises:
        ModelLoadError: an element that no tensor sets or that two set, a tensor that is missing, left over, or of
            the wrong shape; each by name.
    """
    targets = list(model.targets())
    check_coverage(model.named_parameters(), targets)
    wanted = {target.name for target in targets}
    missing = sorted(wanted - checkpoint.names)
    if missing:
        hint = " (tie_word_embeddings is false, so the head needs its own weight)" if HEAD in missing else ""
        raise ModelLoadError(f"{checkpoint.directory}: the checkpoint lacks {_some(missing)}{hint}")
    extra = sorted(name for name in checkpoint.names - wanted if not _ignorable(name, model, checkpoint))
    if extra:
        raise ModelLoadError(
            f"{checkpoint.directory}: the checkpoint holds {_some(extra)}, for which {model.config.architecture} as "
            "config.json describes it has no place"
        )
    for target in targets:
        checkpoint.read_into(target)


def check_coverage(parameters: Iterable[tuple[str, Tensor]], targets: Iterable[Target]) -> None:
    """Make sure that the targets fill each element of each parameter exactly once.

    Raises:
        ModelLoadError: naming the parameter, and how many elements are left unset or where two targets meet.
    """
    spans: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    names: set[str] = set()
    for target in targets:
        if target.name in names and not target.part:
            raise ModelLoadError(f"{target.name} is read twice")
        names.add(target.name)
        storage, start = target.view.untyped_storage().data_ptr(), int(target.view.storage_offset())
        spans[storage].append((start, start + target.view.numel(), target.name))
    for name, parameter in parameters:
        end = 0
        for start, stop, source in sorted(spans[parameter.untyped_storage().data_ptr()]):
            if start < end:
                raise ModelLoadError(f"parameter {name}: {source} overlaps what another tensor sets")
            if start > end:
                break
            end = stop
        if end != parameter.numel():
            raise ModelLoadError(f"parameter {name}: no tensor sets its elements from {end} to {parameter.numel()}")


def _ignorable(name: str, model: Transformer, checkpoint: Checkpoint) -> bool:
    """Derived tables, and a tied head's copy. A copy that differs would be a head of its own: config.json is wrong."""
    if _DERIVED.search(name):
        return True
    if name != HEAD or not model.config.tie_word_embeddings:
        return False
    part = next(target.part for target in model.targets() if target.name == EMBEDDING)
    if not torch.equal(checkpoint.tensor(HEAD, part), checkpoint.tensor(EMBEDDING, part)):
        raise ModelLoadError(
            f"{checkpoint.directory}: config.json ties the head to the embedding, but {HEAD} and {EMBEDDING} differ; "
            "set tie_word_embeddings to false, or remove the wrong tensor"
        )
    return True


def _read_index(directory: Path) -> dict[str, str]:
    path = directory / INDEX
    if not path.exists():
        raise ModelLoadError(
            f"{directory}: neither {SINGLE} nor {INDEX} is there; only safetensors are read "
            f"(present: {_some(sorted(each.name for each in directory.iterdir())) or 'nothing'})"
        )
    try:
        weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelLoadError(f"{path}: not an index of safetensors: {error!r}") from error
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise ModelLoadError(f"{path}: weight_map must map tensor names to file names")
    return weight_map


def _some(names: list[str], most: int = 5) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def stored_dtype(checkpoint: Checkpoint) -> str:
    """The embedding's dtype as config.json would spell it; float32 where there is no embedding to ask."""
    spelled = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
    return spelled.get(checkpoint.dtype_of(EMBEDDING), "float32") if EMBEDDING in checkpoint.names else "float32"
