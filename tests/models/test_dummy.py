"""Dummies: random weights that are the same each time, and a tokenizer of bytes."""

from __future__ import annotations

import pytest
import torch

from nanolens.errors import InvalidRequest
from nanolens.models import load_generation_defaults, load_model, load_tokenizer
from nanolens.models.dummy import EOS, SPECIALS, ByteTokenizer
from tiny_models import greedy, paged_logits, some_ids

TINY = ["dummy:qwen3-tiny", "dummy:llama-tiny"]


@pytest.mark.parametrize("name", TINY)
def test_weights_are_the_same_each_time(name: str) -> None:
    first, second = (paged_logits(load_model(name), some_ids(12)) for _ in range(2))
    assert torch.isfinite(first).all()
    assert torch.equal(first, second)


@pytest.mark.parametrize("name", TINY)
def test_context_matters(name: str) -> None:
    model = load_model(name)
    one, other = paged_logits(model, [5, 6, 7, 8])[-1], paged_logits(model, [9, 6, 7, 8])[-1]
    assert float((one - other).abs().max()) > 0.1
    assert len(set(greedy(model, some_ids(8), 8))) > 1


@pytest.mark.parametrize("name", TINY)
def test_vocabulary_is_the_tokenizers(name: str) -> None:
    tokenizer = load_tokenizer(name)
    assert tokenizer.vocab_size == load_model(name).config.vocab_size == 256 + len(SPECIALS)
    assert set(load_generation_defaults(name).eos_token_ids) == set(tokenizer.eos_token_ids)
    assert load_model(name).config.max_position_embeddings == 4096


def test_text_comes_back() -> None:
    tokenizer = ByteTokenizer(264)
    text = "naïve \N{WAVING HAND SIGN}\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode(text)[:-3]).endswith("\ufffd")


def test_special_tokens_are_left_out_or_written() -> None:
    tokenizer = ByteTokenizer(151936)
    assert tokenizer.decode([104, 105, EOS]) == "hi"
    assert tokenizer.decode([104, 105, EOS, 9000], skip_special_tokens=False) == "hi<|eos|><9000>"


def test_chat_template() -> None:
    tokenizer = ByteTokenizer(264)
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|user|>hi<|end|><|assistant|>"


@pytest.mark.parametrize("messages", [[], [{"role": "poet", "content": "hi"}]])
def test_bad_messages_are_refused(messages: list[dict[str, str]]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ByteTokenizer(264).apply_chat_template(messages)
    assert caught.value.field == "messages"


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="lone surrogate at character 1"):
        ByteTokenizer(264).encode("a\ud800")
