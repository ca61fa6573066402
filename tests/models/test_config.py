"""What a config.json means, and which ones are refused, by key and value."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest

from nanolens.errors import ModelLoadError
from nanolens.models.config import ModelConfig
from nanolens.models.rope import rope_frequencies

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 96,
    "max_position_embeddings": 512,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"]}
QWEN3 = LLAMA | {"architectures": ["Qwen3ForCausalLM"]}


def old_rope(**keys: Any) -> dict[str, Any]:
    """LLAMA without rope_parameters, and with these keys."""
    return {key: value for key, value in LLAMA.items() if key != "rope_parameters"} | keys


@pytest.mark.parametrize(
    ("raw", "biases"),
    [
        (LLAMA, (False, False, False)),
        (LLAMA | {"attention_bias": True}, (True, True, False)),
        (LLAMA | {"mlp_bias": True}, (False, False, True)),
        (QWEN2, (True, False, False)),
        (QWEN2 | {"attention_bias": False}, (True, False, False)),
        (QWEN3, (False, False, False)),
        (QWEN3 | {"attention_bias": True}, (True, True, False)),
    ],
)
def test_biases_by_family(raw: dict[str, Any], biases: tuple[bool, bool, bool]) -> None:
    config = ModelConfig.from_hf(raw)
    assert (config.attention_bias, config.output_bias, config.mlp_bias) == biases


def test_only_qwen3_norms_its_heads() -> None:
    assert [ModelConfig.from_hf(raw).qk_norm for raw in (LLAMA, QWEN2, QWEN3)] == [False, False, True]


def test_head_dim_is_the_stated_one_or_the_familys() -> None:
    stated = [ModelConfig.from_hf(raw | {"head_dim": 48}).head_dim for raw in (LLAMA, QWEN2, QWEN3)]
    silent = [ModelConfig.from_hf(raw).head_dim for raw in (LLAMA, QWEN2, QWEN3)]
    assert (stated, silent) == ([48, 48, 48], [16, 16, 128])


def test_kv_heads_default_to_the_query_heads() -> None:
    assert ModelConfig.from_hf(LLAMA).num_kv_heads == 4
    assert ModelConfig.from_hf(LLAMA | {"num_key_value_heads": 1}).num_kv_heads == 1


@pytest.mark.parametrize(("eos", "ids"), [(None, ()), (2, (2,)), ([2, 0, 2], (2, 0))])
def test_eos_ids(eos: Any, ids: tuple[int, ...]) -> None:
    assert ModelConfig.from_hf(LLAMA | {"eos_token_id": eos}).eos_token_ids == ids


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_dtype_under_both_names(key: str) -> None:
    assert ModelConfig.from_hf(LLAMA | {key: "bfloat16"}).dtype == "bfloat16"


def test_model_type_stands_in_for_architectures() -> None:
    raw = {key: value for key, value in QWEN3.items() if key != "architectures"} | {"model_type": "qwen3"}
    assert ModelConfig.from_hf(raw).architecture == "Qwen3ForCausalLM"


def test_unknown_architecture_lists_the_supported_ones() -> None:
    with pytest.raises(ModelLoadError, match=r"GPT2LMHeadModel.*LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"):
        ModelConfig.from_hf(LLAMA | {"architectures": ["GPT2LMHeadModel"]})


@pytest.mark.parametrize("key", ["hidden_size", "vocab_size", "num_hidden_layers", "max_position_embeddings"])
def test_missing_size_is_named(key: str) -> None:
    with pytest.raises(ModelLoadError, match=f"config.json has no {key}"):
        ModelConfig.from_hf({name: value for name, value in LLAMA.items() if name != key})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config=.*gptq"),
        ({"num_local_experts": 8}, "num_local_experts=8"),
        ({"num_experts": 4}, "num_experts=4"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"attn_logit_softcapping": 50.0}, r"attn_logit_softcapping=50.0"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor=0.5"),
        (
            {"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 2},
            "sliding_window=128 from layer 2",
        ),
        ({"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 128}, "sliding_attention"),
        ({"layer_types": ["linear_attention"]}, "linear_attention"),
        ({"num_key_value_heads": 3}, "num_attention_heads=4 is not a multiple of num_key_value_heads=3"),
        ({"num_attention_heads": 5}, "hidden_size=64 is not a multiple of num_attention_heads=5"),
        ({"head_dim": 15}, "head_dim=15"),
        ({"vocab_size": 0}, "vocab_size=0"),
        ({"dtype": "float8_e4m3fn"}, "dtype='float8_e4m3fn'"),
        ({"eos_token_id": "</s>"}, "eos_token_id='</s>'"),
    ],
)
def test_unsupported_is_refused_by_key_and_value(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError, match=named):
        ModelConfig.from_hf(LLAMA | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": 128},
        {"use_sliding_window": False, "sliding_window": 128},
        {"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 4},
        {"use_sliding_window": True, "sliding_window": 512},
        {"layer_types": ["full_attention"] * 4, "use_sliding_window": False},
    ],
)
def test_a_window_that_no_layer_uses_is_accepted(changes: dict[str, Any]) -> None:
    assert ModelConfig.from_hf(LLAMA | changes) == ModelConfig.from_hf(LLAMA)


@pytest.mark.parametrize(
    "raw",
    [
        old_rope(rope_theta=500000.0),
        old_rope(rope_parameters={"rope_theta": 500000.0}),
        old_rope(rope_parameters={"rope_type": "default", "rope_theta": 500000.0}, rope_theta=500000.0),
        old_rope(rope_theta=500000.0, rope_scaling=None),
        old_rope(rope_scaling={"rope_type": "default", "rope_theta": 500000.0}),
    ],
)
def test_theta_is_read_from_either_place(raw: dict[str, Any]) -> None:
    assert ModelConfig.from_hf(raw).rope.theta == 500000.0


def test_scaling_under_its_old_names() -> None:
    raw = old_rope(
        rope_theta=1e6, rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    )
    rope = ModelConfig.from_hf(raw).rope
    assert (rope.kind, rope.theta, rope.factor, rope.original_max_position_embeddings) == ("yarn", 1e6, 4.0, 128)


def test_scaling_and_parameters_that_differ_are_refused() -> None:
    raw = LLAMA | {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    with pytest.raises(
        ModelLoadError, match=r"rope_parameters.rope_type='default' but rope_scaling.rope_type='linear'"
    ):
        ModelConfig.from_hf(raw)


def test_llama_without_theta_takes_the_papers_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert ModelConfig.from_hf(old_rope()).rope.theta == 10000.0
    assert "neither rope_parameters.rope_theta nor rope_theta" in caplog.text


@pytest.mark.parametrize("name", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_qwen_without_theta_is_refused(name: str) -> None:
    with pytest.raises(ModelLoadError, match=r"neither rope_parameters\.rope_theta nor rope_theta"):
        ModelConfig.from_hf(old_rope(architectures=[name]))


@pytest.mark.parametrize(
    ("rope", "named"),
    [
        ({"rope_type": "longrope", "factor": 4.0}, "rope_type='longrope'.*default, linear, llama3, yarn"),
        ({"rope_type": "dynamic", "factor": 4.0}, "rope_type='dynamic'"),
        ({"rope_type": "linear"}, "rope_type='linear' needs factor"),
        ({"rope_type": "llama3", "factor": 8.0, "high_freq_factor": 4.0}, "needs low_freq_factor"),
        ({"rope_type": "linear", "factor": 0}, "factor=0.*above 0"),
        ({"rope_type": "linear", "factor": "2"}, "factor='2'.*number"),
        ({"rope_theta": -1.0}, r"rope_theta=-1.0"),
        ({"mrope_section": [16, 24, 24]}, "mrope_section"),
        ({"full_attention": {"rope_theta": 1e6}}, "full_attention"),
        ({"partial_rotary_factor": 0.25}, "partial_rotary_factor"),
    ],
)
def test_rope_that_cant_be_done_is_refused(rope: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError, match=named):
        ModelConfig.from_hf(old_rope(rope_parameters={"rope_theta": 1e6} | rope))


@pytest.mark.parametrize(
    ("rope", "longest"),
    [
        ({"rope_type": "default"}, 512),
        ({"rope_type": "linear", "factor": 4.0}, 2048),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}, 2048),
        ({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 128}, 512),
        (
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            512,
        ),
    ],
)
def test_longest_context_includes_the_stretch(rope: dict[str, Any], longest: int) -> None:
    raw = old_rope(rope_parameters={"rope_theta": 1e6} | rope)
    assert ModelConfig.from_hf(raw).max_position_embeddings == longest


KEYS = ["architectures", "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings", "original_max_position_embeddings",
        "rms_norm_eps", "tie_word_embeddings", "attention_bias", "mlp_bias", "eos_token_id", "dtype", "torch_dtype",
        "layer_types", "sliding_window", "max_window_layers", "use_sliding_window", "rope_parameters", "rope_scaling",
        "rope_theta", "quantization_config", "num_experts", "num_local_experts", "n_routed_experts", "hidden_act",
        "partial_rotary_factor", "attn_logit_softcapping", "final_logit_softcapping", "attention_chunk_size",
        "use_bidirectional_attention", "kv_lora_rank", "no_rope_layers", "is_encoder_decoder",
        "add_cross_attention"]  # fmt: skip
NONSENSE: list[Any] = [None, "x", "", [], [[]], [None], {}, {"x": 1}, -1, 0, 0.5, math.nan, math.inf, 10**30, 10**400,
                       True, False]  # fmt: skip
ROPE_KEYS = ["rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings", "low_freq_factor",
             "high_freq_factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate",
             "partial_rotary_factor"]  # fmt: skip
SCALED = [
    {"rope_type": "default", "rope_theta": 1e6},
    {"rope_type": "linear", "rope_theta": 1e6, "factor": 4.0},
    {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0},
    {"rope_type": "llama3", "rope_theta": 1e6, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
]


def read_or_refuse(raw: dict[str, Any]) -> None:
    """A config is read, and its frequencies are numbers, or it is refused as ModelLoadError."""
    try:
        config = ModelConfig.from_hf(raw)
    except ModelLoadError as error:
        assert len(str(error)) < 500
        return
    assert config.head_dim > 1 << 20 or rope_frequencies(config.rope, config.head_dim)[0].isfinite().all()


@pytest.mark.parametrize("value", NONSENSE, ids=lambda value: repr(value)[:12])
@pytest.mark.parametrize("raw", [LLAMA, QWEN2, QWEN3], ids=["llama", "qwen2", "qwen3"])
def test_nonsense_under_any_key_is_refused_in_words_or_harmless(raw: dict[str, Any], value: Any) -> None:
    for key in KEYS:
        read_or_refuse(raw | {key: value})
    windowed = raw | {"use_sliding_window": True, "sliding_window": 128}
    for key in ("layer_types", "sliding_window", "max_window_layers", "use_sliding_window"):
        read_or_refuse(windowed | {key: value})


@pytest.mark.parametrize("value", [*NONSENSE, 1, 1e-30, 1e30, 1e300], ids=lambda value: repr(value)[:12])
@pytest.mark.parametrize("rope", SCALED, ids=lambda rope: rope["rope_type"])
def test_nonsense_under_any_rope_key_is_refused_in_words_or_harmless(rope: dict[str, Any], value: Any) -> None:
    for key in ROPE_KEYS:
        read_or_refuse(old_rope(rope_parameters=rope | {key: value}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("architectures", 5),
        ("architectures", [[]]),
        ("architectures", {}),
        ("rms_norm_eps", "x"),
        ("rms_norm_eps", None),
        ("rms_norm_eps", []),
        ("rms_norm_eps", -1),
        ("rms_norm_eps", math.nan),
        ("rms_norm_eps", True),
        ("layer_types", 5),
        ("layer_types", [None]),
        ("sliding_window", "x"),
        ("sliding_window", True),
        ("max_window_layers", "x"),
        ("use_sliding_window", "yes"),
        ("tie_word_embeddings", "false"),
        ("attention_bias", 1),
        ("mlp_bias", []),
        ("vocab_size", 10**30),
        ("eos_token_id", 10**30),
        ("dtype", []),
        ("rope_theta", 10**400),
        ("rope_scaling", []),
    ],
)
def test_nonsense_is_named_with_its_value(key: str, value: Any) -> None:
    with pytest.raises(ModelLoadError) as caught:
        ModelConfig.from_hf(old_rope(**{key: value}))
    assert f"{key}={repr(value)[:60]}" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rope_theta": 1.0}, "rope_theta=1.0: must be above 1"),
        ({"beta_fast": -1.0}, "beta_fast=-1.0: must be above 0"),
        ({"attention_factor": 0}, "attention_factor=0.0: must be above 0"),
        ({"mscale": -1.0}, "mscale=-1.0: must be at least 0"),
        ({"truncate": "no"}, "truncate='no': must be true or false"),
        ({"factor": math.inf}, "factor=inf: must be a number"),
        ({"factor": 1e20}, r"factor=1e\+20: a context of"),
        ({"original_max_position_embeddings": 0.5}, "original_max_position_embeddings=0.5: a context of 0.5"),
    ],
)
def test_a_yarn_value_that_has_no_frequencies_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError, match=named):
        ModelConfig.from_hf(old_rope(rope_parameters=SCALED[2] | changes))
