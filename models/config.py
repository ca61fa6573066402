"""A model's shape as one frozen value, read from a Hugging Face config.json. Knows neither tensors nor files.

What the decoder can't do exactly (sliding windows, experts, quantised weights, other RoPE kinds) is refused here,
by key and value, before any weight is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import ModelLoadError
from .registry import Architecture, find_architecture
from .rope_config import MAX_WHOLE, RopeConfig, read_rope, shown

DTYPES = ("float32", "bfloat16", "float16")

# key -> values under which the key changes nothing; any other value means mathematics that the decoder lacks
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "quantization_config": (None, {}),
    "num_experts": (None, 0),
    "num_local_experts": (None, 0),
    "n_routed_experts": (None, 0),
    "hidden_act": (None, "silu", "swish"),
    "partial_rotary_factor": (None, 1, 1.0),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "attention_chunk_size": (None,),
    "use_bidirectional_attention": (None, False),
    "kv_lora_rank": (None, 0),
    "no_rope_layers": (None, []),
    "is_encoder_decoder": (None, False),
    "add_cross_attention": (None, False),
}


@dataclass(frozen=True)
class ModelConfig:
    """Shape and numbers of a decoder.

    Attributes:
        architecture: the class name in config.json, a key of registry.ARCHITECTURES.
        num_layers, hidden_size, intermediate_size: depth, width of the residual stream, width of the MLP.
        num_heads, num_kv_heads, head_dim: query heads, key/value heads (GQA), and their width, which need not be
            hidden_size / num_heads.
        vocab_size: rows of the embedding and of the head; may exceed the tokenizer's.
        max_position_embeddings: longest context in tokens, what RoPE scaling adds included.
        rms_norm_eps: epsilon of every RMSNorm.
        tie_word_embeddings: the head is the embedding.
        rope: rotary positions.
        attention_bias, output_bias, mlp_bias: biases on q, k and v; on the output projection; on the MLP's three.
        qk_norm: RMSNorm over each query and key head.
        eos_token_ids: ids that end a text; empty where config.json names none.
        dtype: "float32", "bfloat16" or "float16": the checkpoint's, or in a loaded model the one it runs in;
            None where config.json does not say.
    """

    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    rope: RopeConfig
    attention_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    eos_token_ids: tuple[int, ...]
    dtype: str | None

    @property
    def qkv_size(self) -> int:
        """Rows of the joined q, k, v projection."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    def kv_bytes_per_token(self, element_size: int) -> int:
        """Bytes that one token's keys and values take over all layers, at `element_size` bytes an element."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * element_size

    @classmethod
    def from_hf(cls, raw: dict[str, Any]) -> ModelConfig:
        """Read a parsed config.json.

        Raises:
            ModelLoadError: an unsupported architecture or feature, a missing key, or a value out of range; the
                message names key and value.
        """
        family = find_architecture(raw)
        _refuse_unsupported(raw)
        hidden, heads = _size(raw, "hidden_size"), _size(raw, "num_attention_heads")
        kv_heads = heads if raw.get("num_key_value_heads") is None else _size(raw, "num_key_value_heads")
        if heads % kv_heads:
            raise ModelLoadError(f"num_attention_heads={heads} is not a multiple of num_key_value_heads={kv_heads}")
        layers, positions = _size(raw, "num_hidden_layers"), _size(raw, "max_position_embeddings")
        _refuse_sliding_window(raw, layers, positions)
        rope, max_positions = read_rope(raw, positions, family.default_rope_theta)
        return cls(
            architecture=family.name,
            num_layers=layers,
            hidden_size=hidden,
            intermediate_size=_size(raw, "intermediate_size"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=_head_dim(raw, family, hidden, heads),
            vocab_size=_size(raw, "vocab_size"),
            max_position_embeddings=max_positions,
            rms_norm_eps=_epsilon(raw),
            tie_word_embeddings=_switch(raw, "tie_word_embeddings"),
            rope=rope,
            attention_bias=_flag(raw, family.qkv_bias),
            output_bias=_flag(raw, family.output_bias),
            mlp_bias=_flag(raw, family.mlp_bias),
            qk_norm=family.qk_norm,
            eos_token_ids=read_token_ids(raw.get("eos_token_id"), "config.json: eos_token_id"),
            dtype=_dtype(raw),
        )


def read_token_ids(value: Any, where: str) -> tuple[int, ...]:
    """An id, a list of ids or null, as a tuple without repetitions, order kept.

    Raises:
        ModelLoadError: anything else; the message names `where`.
    """
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for each in ids:
        if not isinstance(each, int) or isinstance(each, bool) or not 0 <= each <= MAX_WHOLE:
            raise ModelLoadError(f"{where}={shown(value)}: must be a token id, a list of token ids, or null")
    return tuple(dict.fromkeys(ids))


def _size(raw: dict[str, Any], key: str) -> int:
    value = raw.get(key)
    if value is None:
        raise ModelLoadError(f"config.json has no {key}; it is needed")
    return _whole(value, key, 1)


def _whole(value: Any, key: str, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_WHOLE:
        raise ModelLoadError(
            f"config.json: {key}={shown(value)}: must be a whole number of at least {least} and at most {MAX_WHOLE}"
        )
    return value


def _switch(raw: dict[str, Any], key: str) -> bool:
    """A true or false; absent and null are false."""
    value = raw.get(key)
    if value is not None and not isinstance(value, bool):
        raise ModelLoadError(f"config.json: {key}={shown(value)}: must be true, false or null")
    return bool(value)


def _flag(raw: dict[str, Any], rule: bool | str) -> bool:
    return rule if isinstance(rule, bool) else _switch(raw, rule)


def _epsilon(raw: dict[str, Any]) -> float:
    value = raw.get("rms_norm_eps", 1e-6)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise ModelLoadError(f"config.json: rms_norm_eps={shown(value)}: must be a number from 0 to 1")
    return float(value)


def _head_dim(raw: dict[str, Any], family: Architecture, hidden: int, heads: int) -> int:
    if raw.get("head_dim") is not None:
        head_dim = _size(raw, "head_dim")
    elif family.default_head_dim is not None:
        head_dim = family.default_head_dim
    elif hidden % heads:
        raise ModelLoadError(f"hidden_size={hidden} is not a multiple of num_attention_heads={heads}; give head_dim")
    else:
        head_dim = hidden // heads
    if head_dim % 2:
        raise ModelLoadError(f"head_dim={head_dim}: must be even, since RoPE turns pairs")
    return head_dim


def _dtype(raw: dict[str, Any]) -> str | None:
    value = raw.get("torch_dtype") if raw.get("dtype") is None else raw["dtype"]
    if value in (None, "auto"):
        return None
    if value not in DTYPES:
        raise ModelLoadError(f"config.json: dtype={shown(value)} is not supported; supported are {', '.join(DTYPES)}")
    return str(value)


def _refuse_unsupported(raw: dict[str, Any]) -> None:
    for key, neutral in _NEUTRAL.items():
        if raw.get(key) not in neutral:
            allowed = " or ".join(repr(value) for value in neutral if value is not None) or "null"
            raise ModelLoadError(f"config.json: {key}={shown(raw[key])} is not supported; only {allowed} is")


def _refuse_sliding_window(raw: dict[str, Any], layers: int, positions: int) -> None:
    """A window matters only where a layer uses it and it is narrower than the context."""
    kinds = raw.get("layer_types")
    if kinds is not None and not (isinstance(kinds, list) and all(isinstance(kind, str) for kind in kinds)):
        raise ModelLoadError(f"config.json: layer_types={shown(kinds)}: must be a list of names, or null")
    other = sorted(set(kinds or []) - {"full_attention"})
    window = None if raw.get("sliding_window") is None else _whole(raw["sliding_window"], "sliding_window", 0)
    first = 0 if raw.get("max_window_layers") is None else _whole(raw["max_window_layers"], "max_window_layers", 0)
    narrow = window is not None and window < positions
    if other and (narrow or other != ["sliding_attention"]):
        raise ModelLoadError(
            f"config.json: layer_types holds {shown(', '.join(other))} (sliding_window={window!r}), which is not "
            "supported; every layer must be full_attention"
        )
    if _switch(raw, "use_sliding_window") and kinds is None and narrow and first < layers:
        raise ModelLoadError(
            f"config.json: use_sliding_window=True with sliding_window={window} from layer {first} on is not supported"
        )
