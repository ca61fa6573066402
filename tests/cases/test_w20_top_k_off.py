"""W20: top_k of -1, 0 and the whole vocabulary are the same thing, in a request and in generation_config.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nanolens.engine.llm import LLM
from nanolens.engine.sampling_params import SamplingParams
from nanolens.errors import InvalidRequest
from real_engine import greedy, ids_of, prompt_of, tiny_llm
from tiny_models import save_tiny
from tiny_tokenizers import byte_level_tokenizer

PROMPT = prompt_of(9)


def sampled(llm: LLM, top_k: int | None) -> list[int]:
    params = SamplingParams(seed=5, temperature=1.0, top_k=top_k, max_tokens=24, ignore_eos=True)
    return ids_of(llm.generate(PROMPT, params, use_tqdm=False))[0]


def test_off_is_off_however_it_is_said() -> None:
    with tiny_llm() as llm:
        by_zero = sampled(llm, 0)
        assert sampled(llm, -1) == by_zero
        assert sampled(llm, llm.engine.vocab_size) == by_zero
        assert sampled(llm, llm.engine.vocab_size + 1) == by_zero
        assert by_zero != ids_of(llm.generate(PROMPT, greedy(24), use_tqdm=False))[0]


def test_one_is_greedy() -> None:
    with tiny_llm() as llm:
        assert sampled(llm, 1) == ids_of(llm.generate(PROMPT, greedy(24), use_tqdm=False))[0]


def test_less_than_off_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match=r"top_k=-2: must be at least -1 \(0 and -1 turn it off\)") as refused:
        SamplingParams(top_k=-2)
    assert refused.value.field == "top_k"


def test_the_models_own_zero_is_off_too(tmp_path: Path) -> None:
    vocab_size = len(byte_level_tokenizer())
    save_tiny(tmp_path, vocab_size=vocab_size)
    byte_level_tokenizer().save_pretrained(tmp_path)
    found = {}
    for top_k in (None, 0, 1):
        (tmp_path / "generation_config.json").write_text(json.dumps({"top_k": top_k}))
        with LLM(str(tmp_path), num_blocks=16, device="cpu") as llm:
            found[top_k] = sampled(llm, None)
            own = sampled(llm, 0)
    assert found[0] == found[None] != found[1]
    assert own == found[0]  # a request's own value wins over the model's top_k=1
