"""The wrapper over transformers' tokenizers, on a small one made here."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanolens.errors import InvalidRequest, ModelLoadError
from nanolens.models.tokenizer import Tokenizer
from tiny_tokenizers import byte_level_tokenizer

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'poet' %}{{ raise_exception('no poets') }}{% endif %}"
    "{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)


def saved(directory: Path, template: str | None = None) -> Tokenizer:
    byte_level_tokenizer().save_pretrained(directory)
    if template is not None:
        (directory / "chat_template.jinja").write_text(template)
    return Tokenizer(directory)


def test_ids_and_text_are_transformers(tmp_path: Path) -> None:
    tokenizer, text = saved(tmp_path), "hello world  !"
    assert tokenizer.encode(text) == byte_level_tokenizer().encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens(tmp_path: Path) -> None:
    tokenizer = saved(tmp_path)
    (end,) = tokenizer.encode("<|end|>")
    assert end in tokenizer.special_ids
    assert tokenizer.decode([104, end]) == "h"
    assert tokenizer.decode([104, end], skip_special_tokens=False) == "h<|end|>"


def test_ids_beyond_the_vocabulary_have_no_text(tmp_path: Path) -> None:
    tokenizer = saved(tmp_path)
    assert tokenizer.vocab_size == len(byte_level_tokenizer())
    assert tokenizer.decode([104, tokenizer.vocab_size + 5, 105]) == "hi"


def test_chat_template_gives_ids(tmp_path: Path) -> None:
    tokenizer = saved(tmp_path, TEMPLATE)
    messages = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(messages) == tokenizer.encode("hi<|end|>>")
    assert tokenizer.apply_chat_template(messages, add_generation_prompt=False) == tokenizer.encode("hi<|end|>")


@pytest.mark.parametrize(
    ("template", "messages", "words"),
    [
        (None, [{"role": "user", "content": "hi"}], "no chat template: send a prompt"),
        (TEMPLATE, [], "at least one message"),
        (TEMPLATE, [{"role": "poet", "content": "hi"}], "refuses these messages: no poets"),
    ],
)
def test_messages_that_cant_be_rendered_are_refused(
    template: str | None, messages: list[dict[str, str]], words: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        saved(tmp_path, template).apply_chat_template(messages)
    assert caught.value.field == "messages"


def test_a_lone_surrogate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="lone surrogate at character 2") as caught:
        saved(tmp_path).encode("ab\udfff")
    assert caught.value.field == "prompt"


def test_a_directory_without_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=f"{tmp_path}: no tokenizer"):
        Tokenizer(tmp_path)
