"""W28: a character that is split over tokens streams whole, or exactly as decoding gives it, once, at the end."""

from __future__ import annotations

from nanolens.engine.detokenizer import TextStream
from tiny_tokenizers import WAVING_HAND, byte_level_tokenizer


def split_ids() -> list[int]:
    """Waving hand and skin tone as three tokens, the first of which ends inside a character, as in Qwen3."""
    ids = byte_level_tokenizer()(WAVING_HAND)["input_ids"]
    assert [byte_level_tokenizer().decode([i]) for i in ids] == ["\ufffd", "\ufffd", WAVING_HAND[1]]
    return ids


def test_no_delta_holds_a_replacement_character() -> None:
    stream = TextStream(byte_level_tokenizer())
    deltas = [stream.push([token_id])[0] for token_id in split_ids()]
    deltas.append(stream.finish()[0])
    assert not any("\ufffd" in delta for delta in deltas)
    assert "".join(deltas) == stream.text == byte_level_tokenizer().decode(split_ids()) == WAVING_HAND


def test_an_end_inside_the_character_flushes_what_decoding_gives_once() -> None:
    first = split_ids()[:1]
    stream = TextStream(byte_level_tokenizer())
    assert stream.push(first) == ("", None)
    assert stream.finish() == (byte_level_tokenizer().decode(first), None)
    assert stream.finish() == ("", None)


def test_tokens_are_counted_not_characters() -> None:
    stream = TextStream(byte_level_tokenizer())
    stream.push(split_ids())
    stream.finish()
    assert (stream.num_tokens, len(stream.text)) == (3, 2)
