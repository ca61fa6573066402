"""Text streams out of tokens exactly, once, and never by half a character or half a stop string."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanolens.engine.detokenizer import IncrementalDetokenizer, TextStream
from tiny_tokenizers import WAVING_HAND, byte_fallback_tokenizer, byte_level_tokenizer

TOKENIZERS = {"byte-level": byte_level_tokenizer, "byte-fallback": byte_fallback_tokenizer}
REPLACEMENT = "\ufffd"


def deltas_of(tokenizer: Any, ids: list[int], skip_special_tokens: bool = True) -> list[str]:
    """One delta a token, and what the end releases."""
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.finish()]


class CountingTokenizer:
    """Passes on to a tokenizer and counts the ids that it decodes."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.num_decoded = 0

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        self.num_decoded += len(ids)
        return self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self.tokenizer.convert_tokens_to_ids(token)

    def convert_ids_to_tokens(self, token_id: int) -> str:
        return self.tokenizer.convert_ids_to_tokens(token_id)


# --- exactness -----------------------------------------------------------------------------------------------------


@given(st.text(max_size=60))
def test_random_text_streams_whole_characters_and_joins_to_itself(text: str) -> None:
    tokenizer = byte_level_tokenizer()
    deltas = deltas_of(tokenizer, tokenizer(text)["input_ids"])
    assert "".join(deltas) == text
    assert REPLACEMENT in text or not any(REPLACEMENT in delta for delta in deltas)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(seed=st.integers(0, 2**32), length=st.integers(0, 80), skip=st.booleans())
@settings(max_examples=200)
def test_any_ids_join_to_what_decoding_them_at_once_gives(name: str, seed: int, length: int, skip: bool) -> None:
    tokenizer = TOKENIZERS[name]()
    draw = random.Random(seed)
    # Few distinct ids, so that runs of equal bytes, of spaces and of special tokens are common.
    some = [draw.randrange(len(tokenizer) + 2) for _ in range(draw.randint(1, 6))]
    ids = [draw.choice(some) for _ in range(length)]
    assert "".join(deltas_of(tokenizer, ids, skip)) == tokenizer.decode(ids, skip_special_tokens=skip)


@given(st.lists(st.sampled_from([0xF0, 0x9F, 0x91, 0x8B, 0xE0, 0x80, 0xC3, 0xFF, 0x41]), max_size=60))
def test_broken_utf8_joins_to_what_decoding_it_at_once_gives(ids: list[int]) -> None:
    tokenizer = byte_level_tokenizer()
    assert "".join(deltas_of(tokenizer, ids)) == tokenizer.decode(ids)


FALLBACK_PIECES = ["a", "\u2581", "\u2581a", "<0xE4>", "<0xBD>", "<0xA0>", "<0x0A>", "</s>"]


@given(st.lists(st.sampled_from(FALLBACK_PIECES), max_size=40))
def test_byte_fallback_joins_to_what_decoding_it_at_once_gives(tokens: list[str]) -> None:
    tokenizer = byte_fallback_tokenizer()
    ids = tokenizer.convert_tokens_to_ids(tokens)
    assert "".join(deltas_of(tokenizer, ids)) == tokenizer.decode(ids, skip_special_tokens=True)


def test_only_the_first_space_of_a_sentencepiece_text_is_stripped() -> None:
    tokenizer = byte_fallback_tokenizer()
    ids = tokenizer.convert_tokens_to_ids(["\u2581word", "\u2581word", "\u2581", "\u2581word"])
    assert deltas_of(tokenizer, ids) == ["word", " word", " ", " word", ""]


def test_special_tokens_are_shown_only_where_asked_for() -> None:
    tokenizer = byte_level_tokenizer()
    ids = [ord("h"), tokenizer.eos_token_id, ord("i")]
    assert deltas_of(tokenizer, ids, skip_special_tokens=True) == ["h", "", "i", ""]
    assert deltas_of(tokenizer, ids, skip_special_tokens=False) == ["h", "<|end|>", "i", ""]


def test_an_id_that_pads_the_vocabulary_gives_no_text() -> None:
    tokenizer = byte_level_tokenizer()
    assert deltas_of(tokenizer, [ord("h"), len(tokenizer) + 5, ord("i")]) == ["h", "", "i", ""]


def test_combining_marks_come_with_their_own_token() -> None:
    tokenizer = byte_level_tokenizer()
    assert deltas_of(tokenizer, list("e\u0301".encode())) == ["e", "", "\u0301", ""]


# --- half characters -----------------------------------------------------------------------------------------------


def test_a_character_split_over_tokens_comes_whole_with_its_last_byte() -> None:
    tokenizer = byte_level_tokenizer()
    ids = tokenizer(WAVING_HAND)["input_ids"]
    assert len(ids) == 3
    assert deltas_of(tokenizer, ids) == ["", WAVING_HAND[0], WAVING_HAND[1], ""]


def test_an_unfinished_character_is_flushed_once_at_the_end() -> None:
    tokenizer = byte_level_tokenizer()
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert detokenizer.push(0xF0) == detokenizer.push(0x9F) == ""
    assert detokenizer.finish() == tokenizer.decode([0xF0, 0x9F]) == REPLACEMENT
    assert detokenizer.finish() == ""


def test_a_real_replacement_character_is_not_lost() -> None:
    tokenizer = byte_level_tokenizer()
    assert "".join(deltas_of(tokenizer, tokenizer("a\ufffdb\ufffd")["input_ids"])) == "a\ufffdb\ufffd"


def test_a_run_of_fallback_bytes_waits_for_its_end() -> None:
    """One wrong byte turns the whole run into U+FFFD, so that the good character before it was not final."""
    tokenizer = byte_fallback_tokenizer()
    good = tokenizer.convert_tokens_to_ids(["<0xE4>", "<0xBD>", "<0xA0>", "a"])
    bad = tokenizer.convert_tokens_to_ids(["<0xE4>", "<0xBD>", "<0xA0>", "<0xFF>", "a"])
    assert deltas_of(tokenizer, good) == ["", "", "", "\u4f60a", ""]
    assert deltas_of(tokenizer, bad) == ["", "", "", "", REPLACEMENT * 4 + "a", ""]


# --- cost ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("byte-level", ["h"]),
        ("byte-level", ["\u00ff"]),  # byte FF: never valid
        ("byte-level", ["<|end|>"]),
        ("byte-level", ["\u00f0", "<|end|>"]),
        ("byte-fallback", ["<0xE4>"]),
        ("byte-fallback", ["\u2581"]),
    ],
)
def test_decoding_costs_the_same_for_each_token_however_long_the_text(name: str, tokens: list[str]) -> None:
    tokenizer = TOKENIZERS[name]()
    counting = CountingTokenizer(tokenizer)
    ids = tokenizer.convert_tokens_to_ids(tokens) * (4000 // len(tokens))
    assert "".join(deltas_of(counting, ids)) == tokenizer.decode(ids, skip_special_tokens=True)
    assert counting.num_decoded <= 50 * len(ids)


# --- with stop strings ---------------------------------------------------------------------------------------------


def stream_of(stream: TextStream, ids: list[int]) -> tuple[list[str], str | None]:
    """Push ids one by one until a stop string ends the text, then finish; the deltas and the stop string."""
    deltas = []
    for token_id in ids:
        delta, matched = stream.push([token_id])
        deltas.append(delta)
        if matched is not None:
            break
    delta, matched = stream.finish()
    return [*deltas, delta], matched


def test_a_stop_string_inside_a_token_cuts_the_text_there() -> None:
    tokenizer = byte_level_tokenizer()
    stream = TextStream(tokenizer, stop=["ell"])
    ids = tokenizer("hello hello")["input_ids"]
    assert stream_of(stream, ids) == (["h", ""], "ell")
    assert (stream.text, stream.num_tokens) == ("h", 1)


def test_tokens_after_the_one_that_completed_a_stop_string_are_not_counted() -> None:
    stream = TextStream(byte_level_tokenizer(), stop=["b"])
    assert stream.push(list(b"abcd")) == ("a", "b")
    assert stream.num_tokens == 2
    assert stream.push(list(b"ef")) == ("", "b")
    assert (stream.num_tokens, stream.text) == (2, "a")


@pytest.mark.parametrize(("min_tokens", "text"), [(0, "x"), (4, "x"), (5, "xDEFGy"), (9, "xDEFGyDEFGz")])
def test_a_stop_string_counts_when_a_token_after_min_tokens_completes_it(min_tokens: int, text: str) -> None:
    stream = TextStream(byte_level_tokenizer(), stop=["DEFG"], min_tokens=min_tokens)
    stream_of(stream, list(b"xDEFGyDEFGz"))
    if min_tokens == 9:
        text = "xDEFGy"  # the second one ends with token 10
    assert stream.text == text


def test_a_stop_string_held_back_by_the_decoder_is_found_at_the_end() -> None:
    tokenizer = byte_fallback_tokenizer()
    stream = TextStream(tokenizer, stop=["\n"])
    assert stream.push(tokenizer.convert_tokens_to_ids(["a", "<0x0A>"])) == ("a", None)
    assert stream.finish() == ("", "\n")
    assert stream.text == "a"


def test_finish_gives_what_was_held_back_exactly_once() -> None:
    stream = TextStream(byte_level_tokenizer(), stop=["DEFG"])
    assert stream.push([ord("D"), ord("E"), 0xC3]) == ("", None)
    assert stream.finish() == ("DE\ufffd", None)
    assert stream.finish() == ("", None)
    assert stream.text == "DE\ufffd"
