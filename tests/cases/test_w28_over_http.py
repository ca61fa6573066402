"""W28 over HTTP: a character that is split over tokens streams whole, or as decoding gives it, once, at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bigram_model import chain, save_bigram
from serve import Server, completion
from sse_wire import ends, texts
from tiny_tokenizers import WAVING_HAND, byte_level_tokenizer

HAND_IDS: list[int] = byte_level_tokenizer()(WAVING_HAND)["input_ids"]  # 3 tokens; the first ends in a character


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("w28")
    model = save_bigram(directory / "model", byte_level_tokenizer(), chain([ord("a"), *HAND_IDS, ord(".")]))
    with Server(directory, str(model)) as server:
        yield server


def streamed(server: Server, max_tokens: int) -> tuple[list[str], dict[str, int]]:
    """The texts of a stream's deltas, and its usage."""
    body = completion("a", max_tokens=max_tokens, stream_options={"include_usage": True})
    with server.stream("/v1/completions", body) as stream:
        chunks = stream.chunks()
    whole = server.complete("a", max_tokens=max_tokens)
    assert texts(chunks) == {0: whole["choices"][0]["text"]} and ends(chunks) == {0: "length"}
    assert chunks[-1]["usage"] == whole["usage"]
    return [choice["text"] for chunk in chunks for choice in chunk["choices"]], chunks[-1]["usage"]


def test_no_delta_holds_a_replacement_character(server: Server) -> None:
    deltas, usage = streamed(server, 3)
    assert not any("\ufffd" in delta for delta in deltas)
    assert "".join(deltas) == byte_level_tokenizer().decode(HAND_IDS) == WAVING_HAND
    assert usage["completion_tokens"] == 3  # tokens, of two characters


@pytest.mark.parametrize("count", [1, 2])
def test_an_end_inside_the_character_gives_what_decoding_gives_once(server: Server, count: int) -> None:
    deltas, usage = streamed(server, count)
    assert "".join(deltas) == byte_level_tokenizer().decode(HAND_IDS[:count])
    assert sum("\ufffd" in delta for delta in deltas) == (count == 1)
    assert usage["completion_tokens"] == count


def test_the_echo_of_the_prompt_comes_before_it(server: Server) -> None:
    text = server.complete("a", max_tokens=3, echo=True)["choices"][0]["text"]
    assert text == "a" + WAVING_HAND
