"""/tokenize, /detokenize, /v1/models, and what single tokens stand for in real tokenizers' forms."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from nanolens.models.dummy import ByteTokenizer
from nanolens.server.token_text import TokenTexts
from served import VOCAB_SIZE, Served, answer_of, error_of, serving
from tiny_tokenizers import WAVING_HAND, byte_fallback_tokenizer, byte_level_tokenizer


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as found:
        yield found


def test_text_to_ids_and_back(served: Served) -> None:
    answer = answer_of(served.post("/tokenize", prompt="h\u00e9"))
    assert answer == {"count": 3, "max_model_len": 1024, "tokens": [104, 195, 169]}
    assert answer_of(served.post("/detokenize", tokens=answer["tokens"])) == {"prompt": "h\u00e9"}


def test_messages_to_ids(served: Served) -> None:
    messages = [{"role": "user", "content": "hi"}]
    ids = ByteTokenizer(VOCAB_SIZE).apply_chat_template(messages)
    assert answer_of(served.post("/tokenize", messages=messages))["tokens"] == ids
    assert answer_of(served.post("/tokenize", messages=messages, add_generation_prompt=False))["tokens"] == ids[:-1]


def test_special_tokens_are_shown_unless_they_are_skipped(served: Served) -> None:
    assert answer_of(served.post("/detokenize", tokens=[65, 257])) == {"prompt": "A<|eos|>"}
    assert answer_of(served.post("/detokenize", tokens=[65, 257], skip_special_tokens=True)) == {"prompt": "A"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "prompt"),
        ("/tokenize", {"prompt": "\ud800"}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [264]}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
    ],
)
def test_what_cant_be_turned_is_refused(served: Served, path: str, body: dict[str, Any], param: str) -> None:
    assert error_of(served.send(path, json.dumps(body)))["param"] == param


def test_the_model_is_listed_under_each_name(served: Served) -> None:
    cards = answer_of(served.get("/v1/models"))["data"]
    assert [card["id"] for card in cards] == ["tiny", "other-name"] and cards[0]["object"] == "model"
    assert answer_of(served.get("/v1/models/other-name")) == cards[1]
    assert error_of(served.get("/v1/models/some/other"), 404)["code"] == "model_not_found"


def test_bytes_of_byte_level_tokens() -> None:
    tokenizer: Any = byte_level_tokenizer()
    texts = TokenTexts(tokenizer)
    ids = tokenizer.encode(f"hello w{WAVING_HAND}")
    assert b"".join(texts.bytes_of(each) for each in ids) == f"hello w{WAVING_HAND}".encode()
    assert texts.text_of(ids[0]) == "hello" and texts.text_of(0xF0) == "\\xf0"


def test_bytes_of_byte_fallback_tokens_and_of_a_space_that_decoders_strip() -> None:
    tokenizer: Any = byte_fallback_tokenizer()
    texts = TokenTexts(tokenizer)
    word, byte = tokenizer.convert_tokens_to_ids("\u2581word"), tokenizer.convert_tokens_to_ids("<0xF0>")
    assert texts.bytes_of(word) == b" word" and texts.bytes_of(byte) == b"\xf0"
