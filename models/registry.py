"""The architectures that nanolens runs, each as the few ways in which it departs from the shared decoder.

All of them are pre-norm decoders with RMSNorm, rotary positions, grouped-query attention and a gated SiLU MLP
(models/transformer.py). What sets one apart is data, not code; this file knows neither tensors nor files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import ModelLoadError


@dataclass(frozen=True)
class Architecture:
    """How one family fills in the shared decoder.

    Attributes:
        name: the class name in `architectures` of config.json.
        model_type: the name in `model_type`, read where `architectures` is absent.
        qkv_bias, output_bias, mlp_bias: True or False where the family fixes it, else the config key that says so.
        qk_norm: RMSNorm over each query and key head before the rotation.
        default_head_dim: head_dim where config.json is silent; None: hidden_size / num_attention_heads.
        default_rope_theta: rotary base where config.json is silent; None: silence is an error.
    """

    name: str
    model_type: str
    qkv_bias: bool | str
    output_bias: bool | str
    mlp_bias: bool | str
    qk_norm: bool
    default_head_dim: int | None
    default_rope_theta: float | None


# Touvron et al. 2023 (arXiv 2302.13971, 2307.09288), Grattafiori et al. 2024 (arXiv 2407.21783). Checkpoints of the
# first two generations carry no rope_theta and mean the RoPE paper's 10000.
LLAMA = Architecture(
    name="LlamaForCausalLM",
    model_type="llama",
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    mlp_bias="mlp_bias",
    qk_norm=False,
    default_head_dim=None,
    default_rope_theta=10000.0,
)

# Yang et al. 2024 (arXiv 2407.10671): biases on the query, key and value projections only.
QWEN2 = Architecture(
    name="Qwen2ForCausalLM",
    model_type="qwen2",
    qkv_bias=True,
    output_bias=False,
    mlp_bias=False,
    qk_norm=False,
    default_head_dim=None,
    default_rope_theta=None,
)

# Yang et al. 2025 (arXiv 2505.09388): QK-norm in place of the biases, heads of 128 whatever the hidden size.
QWEN3 = Architecture(
    name="Qwen3ForCausalLM",
    model_type="qwen3",
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    mlp_bias=False,
    qk_norm=True,
    default_head_dim=128,
    default_rope_theta=None,
)

ARCHITECTURES: dict[str, Architecture] = {each.name: each for each in (LLAMA, QWEN2, QWEN3)}


def find_architecture(raw: dict[str, Any]) -> Architecture:
    """The architecture that a config.json names.

    Raises:
        ModelLoadError: it names none, or one that is not supported; the message lists those that are.
    """
    supported = ", ".join(ARCHITECTURES)
    names = raw.get("architectures")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ModelLoadError(f"config.json: architectures={names!r:.120}: must be a list of names, or null")
    if names:
        for name in names:
            if name in ARCHITECTURES:
                return ARCHITECTURES[name]
        raise ModelLoadError(f"architectures={names!r} is not supported; supported are {supported}")
    model_type = raw.get("model_type")
    for each in ARCHITECTURES.values():
        if each.model_type == model_type:
            return each
    raise ModelLoadError(
        f"config.json names no supported architecture (architectures is absent, model_type={model_type!r}); "
        f"supported are {supported}"
    )
