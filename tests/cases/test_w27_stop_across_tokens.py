"""W27: a stop string over several tokens is never shown by half, and what was held back for it is never lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from nanolens.engine.detokenizer import TextStream
from nanolens.engine.llm import LLM
from nanolens.engine.outputs import CompletionOutput, Delta
from nanolens.engine.sampling_params import SamplingParams
from real_engine import is_idle, scripted_llm
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


class Pieces:
    """A tokenizer whose tokens from id 0 on are these texts."""

    texts = ("D", "EF", "G", "X", "abc", "DE", "FG")
    vocab_size = 264
    eos_token_ids: tuple[int, ...] = ()
    special_ids: frozenset[int] = frozenset()
    is_fast = has_chat_template = False

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        raise NotImplementedError

    def apply_chat_template(self, messages: object, add_generation_prompt: bool = True) -> list[int]:
        raise NotImplementedError

    def decode(self, token_ids: Sequence[int], /, *, skip_special_tokens: bool = True) -> str:
        return "".join(self.texts[token_id] for token_id in token_ids)


def streamed(script: str, overlap: bool = False, **params: Any) -> tuple[list[Delta], CompletionOutput]:
    """What a stream gives when the model writes these pieces, and what `generate` gives."""
    ids = [Pieces.texts.index(piece) for piece in script.split()]
    own = SamplingParams(temperature=0.0, **({"stop": ["DEFG"], "max_tokens": len(ids)} | params))
    with scripted_llm(lambda position, token: {ids[position]: 1.0}, tokenizer=Pieces(), overlap=overlap) as llm:
        deltas = list(llm.stream([4], own))
        assert is_idle(llm.engine.snapshot())
        return deltas, llm.generate([4], own, use_tqdm=False)[0].outputs[0]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_stream_shows_nothing_of_the_stop_string(overlap: bool) -> None:
    deltas, whole = streamed("abc D EF G X X", overlap)
    assert not any("D" in delta.text for delta in deltas)
    assert "".join(delta.text for delta in deltas) == whole.text == "abc"
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", "DEFG")
    assert (whole.finish_reason, whole.stop_reason) == ("stop", "DEFG")
    assert [token for delta in deltas for token in delta.token_ids] == whole.token_ids == [4, 0, 1, 2]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_stream_shows_what_only_began_like_it(overlap: bool) -> None:
    deltas, whole = streamed("DE X", overlap)
    assert [delta.text for delta in deltas] == ["", "DEX"]
    assert (whole.text, whole.finish_reason, deltas[-1].finish_reason) == ("DEX", "length", "length")


@pytest.mark.parametrize("overlap", [False, True])
def test_a_stream_that_ends_by_length_gives_what_was_held_back(overlap: bool) -> None:
    deltas, whole = streamed("abc D EF", overlap)
    assert [delta.text for delta in deltas] == ["abc", "", "DEF"]
    assert (whole.text, whole.finish_reason, deltas[-1].finish_reason) == ("abcDEF", "length", "length")


def test_a_stop_string_wanted_in_the_text_is_there_in_both() -> None:
    deltas, whole = streamed("abc DE FG X", include_stop_str_in_output=True)
    assert "".join(delta.text for delta in deltas) == whole.text == "abcDEFG"
    assert whole.finish_reason == "stop"


def test_a_stop_string_in_the_middle_of_a_token_cuts_its_text() -> None:
    deltas, whole = streamed("D abc X", stop=["b"])
    assert "".join(delta.text for delta in deltas) == whole.text == "Da"
    assert (whole.token_ids, whole.stop_reason) == ([0, 4], "b")


@pytest.mark.model
def test_any_part_of_a_real_text_stops_it_where_it_first_comes(smollm2: Callable[..., LLM]) -> None:
    llm = smollm2()
    prompt = llm.engine.chat_prompt([{"role": "user", "content": "List three uses of a paper clip."}])
    text = llm.generate(prompt, SamplingParams(temperature=0.0, max_tokens=32), use_tqdm=False)[0].outputs[0].text
    assert len(text) > 60
    parts = [text[start : start + length] for start, length in ((11, 3), (20, 9), (31, 17), (44, 1), (5, 40))]
    own = [SamplingParams(temperature=0.0, max_tokens=32, stop=part) for part in parts]
    for part, params, output in zip(parts, own, llm.generate([prompt] * 5, own, use_tqdm=False), strict=True):
        deltas = list(llm.stream(prompt, params))
        assert output.outputs[0].text == "".join(delta.text for delta in deltas) == text[: text.index(part)]
        assert output.outputs[0].stop_reason == deltas[-1].stop_reason == part
