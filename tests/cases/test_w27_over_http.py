"""W27 over HTTP: a stop string over several tokens is never streamed by half, and what was held back is never lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from bigram_model import chain, save_bigram
from serve import Server, completion
from sse_wire import ends, texts

# What the model writes after each prompt, token by token.
WRITES = {"a": ["D", "EF", "G", "X"], "b": ["DE", "x"]}


def pieces() -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are the pieces that the model writes."""
    words = ["<eos>", *WRITES, *(piece for written in WRITES.values() for piece in written)]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", unk_token="<eos>")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory, tokenizer = tmp_path_factory.mktemp("w27"), pieces()
    runs = [tokenizer.convert_tokens_to_ids([prompt, *WRITES[prompt]]) for prompt in WRITES]
    model = save_bigram(directory / "model", tokenizer, chain(*runs))
    with Server(directory, str(model)) as server:
        yield server


def both(server: Server, prompt: str, max_tokens: int) -> tuple[list[str], dict[int, str], dict[str, Any]]:
    """The deltas and the ends of a stream, and the choice of the same request without one."""
    body = completion(prompt, max_tokens=max_tokens, stop="DEFG")
    whole = server.post("/v1/completions", body).json["choices"][0]
    with server.stream("/v1/completions", body) as stream:
        chunks = stream.chunks()
    assert texts(chunks) == {0: whole["text"]} and ends(chunks) == {0: whole["finish_reason"]}
    return [choice["text"] for chunk in chunks for choice in chunk["choices"]], ends(chunks), whole


def test_no_delta_holds_the_beginning_of_the_stop_string(server: Server) -> None:
    deltas, finish, whole = both(server, "a", 8)
    assert not any("D" in delta for delta in deltas)
    assert finish == {0: "stop"} and whole["text"] == ""


def test_text_that_only_began_like_it_is_shown(server: Server) -> None:
    deltas, finish, whole = both(server, "b", 2)
    assert "".join(deltas) == whole["text"] == "DEx" and finish == {0: "length"}


@pytest.mark.parametrize(("prompt", "max_tokens", "text"), [("a", 1, "D"), ("a", 2, "DEF"), ("b", 1, "DE")])
def test_text_still_held_back_at_the_length_limit_is_shown(
    server: Server, prompt: str, max_tokens: int, text: str
) -> None:
    deltas, finish, whole = both(server, prompt, max_tokens)
    assert "".join(deltas) == whole["text"] == text and finish == {0: "length"}


def test_the_stop_string_is_counted_in_the_usage(server: Server) -> None:
    found = server.complete("a", stop="DEFG")
    assert found["usage"] == {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4} | {
        name: value for name, value in found["usage"].items() if name.endswith("_details")
    }
