"""W27: a stop string over several tokens is never shown by half, and what was held back for it is never lost."""

from __future__ import annotations

from nanolens.engine.detokenizer import TextStream
from tiny_tokenizers import byte_level_tokenizer

D, E, F, G, X = (ord(letter) for letter in "DEFGX")


def test_no_delta_holds_the_beginning_of_the_stop_string() -> None:
    stream = TextStream(byte_level_tokenizer(), stop=["DEFG"])
    deltas = [stream.push([D]), stream.push([E]), stream.push([F, G])]
    assert deltas == [("", None), ("", None), ("", "DEFG")]
    assert stream.finish() == ("", "DEFG")
    assert stream.text == ""


def test_text_held_back_is_shown_when_the_length_ends_it() -> None:
    stream = TextStream(byte_level_tokenizer(), stop=["DEFG"])
    deltas = [stream.push([token_id])[0] for token_id in (D, E, X)]
    deltas.append(stream.finish()[0])
    assert "".join(deltas) == stream.text == "DEX"


def test_text_still_held_back_at_the_length_limit_is_shown() -> None:
    stream = TextStream(byte_level_tokenizer(), stop=["DEFG"])
    assert [stream.push([token_id])[0] for token_id in (D, E)] == ["", ""]
    assert stream.finish() == ("DE", None)
