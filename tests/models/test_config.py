"""What a config.json means, and which ones are refused, by key and value."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from nanolens.errors import ModelLoadError
from nanolens.models.config import ModelConfig

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
