"""Text across pauses: the pieces of a stream joined are the text that it would have had, without what was appended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from fake_engine import FakeEngine
from nanolens.engine.llm import LLM
from nanolens.engine.outputs import Delta, RequestOutput
from nanolens.engine.sampling_params import SamplingParams
from nanolens.engine.sequence import SequenceStatus
from tiny_tokenizers import WAVING_HAND, byte_fallback_tokenizer, byte_level_tokenizer

PROMPT = [1, 2, 3]
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


def byte_level_script() -> list[int]:
    """Words, a character of two bytes, one of eight over three tokens, and a special token in the middle."""
    tokenizer = byte_level_tokenizer()
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    ids = tokenizer(f"hello w\u00e9 {WAVING_HAND}")["input_ids"]
    return [*ids, end, *tokenizer(" world \u20ac!")["input_ids"]]


def byte_fallback_script() -> list[int]:
    """Words with a space before them, and characters that are written byte by byte."""
    tokenizer = byte_fallback_tokenizer()
    euro = [f"<0x{byte:02X}>" for byte in "\u20ac".encode()]
    names = [f"{SPACE}a", f"{SPACE}word", *euro, f"{SPACE}word", "</s>", "a", *euro, *euro, SPACE, "a"]
    return [tokenizer.convert_tokens_to_ids(name) for name in names]


SCRIPTS = {
    "byte_level": (byte_level_tokenizer, byte_level_script),
    "byte_fallback": (byte_fallback_tokenizer, byte_fallback_script),
}
each_script = pytest.mark.parametrize("kind", SCRIPTS)
each_overlap = pytest.mark.parametrize("overlap", [False, True], ids=["in_turn", "overlapped"])


class Told:
    """One request on an engine whose model says what a script has, and all that its caller was told of it."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, script: list[int], overlap: bool = False, streams: bool = True,
        on_delta: Callable[[Delta], None] = lambda delta: None, eos: frozenset[int] = frozenset(), **params: Any,
    ) -> None:  # fmt: skip
        self.engine = FakeEngine(overlap=overlap, eos=eos)
        self.engine.tokenizer = tokenizer  # type: ignore[assignment]
        self.engine.runner.token_of = self._say
        self.script = list(script)
        self.deltas: list[Delta] = []
        self.rests: list[RequestOutput] = []
        self.on_delta = on_delta
        own = SamplingParams(**({"temperature": 0.0, "max_tokens": len(script)} | params))
        self.engine.add_request(
            PROMPT, own, request_id="r", on_output=self._take if streams else None, on_pause=self.rests.append,
            on_finish=self.engine._finished,
        )  # fmt: skip

    def _say(self, context: Any) -> int:
        seq = self.engine.seq("r") if "r" in self.engine.core.requests else None
        appended = seq.appended if seq is not None else []
        before = sum(end - start for start, end in appended)
        return self.script[min(len(context) - len(PROMPT) - before, len(self.script) - 1)]

    def _take(self, delta: Delta) -> None:
        self.deltas.append(delta)
        self.on_delta(delta)

    @property
    def streamed(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def seq(self) -> Any:
        return self.engine.seq("r")

    def run_to(self, count: int) -> None:
        """Step until so many tokens are read, or a few more with overlap."""
        while self.seq.num_read_output_tokens < count and self.engine.step():
            pass

    def end(self) -> str:
        """Run to the end, through whatever pauses are left; the whole text."""
        self.engine.run()
        if "r" in self.engine.core.requests:
            self.engine.finish("r")
        output = self.engine.outputs["r"]
        assert not self.deltas or self.streamed == output.outputs[0].text
        self.engine.check_empty()
        return output.outputs[0].text


def undisturbed(kind: str, **params: Any) -> str:
    tokenizer, script = SCRIPTS[kind]
    return Told(tokenizer(), script(), **params).end()


@each_script
def test_the_scripts_say_what_their_tokenizer_decodes(kind: str) -> None:
    tokenizer, script = SCRIPTS[kind]
    ids = script()
    assert undisturbed(kind) == tokenizer().decode(ids, skip_special_tokens=True)
    alone = [tokenizer().decode([token]) for token in ids]
    assert "\N{REPLACEMENT CHARACTER}" in "".join(alone)  # some characters span tokens


# Pauses of each kind, at each token


@each_script
@each_overlap
@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("skip", [True, False])
def test_an_operators_pause_at_any_token_leaves_the_text(kind: str, streams: bool, skip: bool, overlap: bool) -> None:
    tokenizer, script = SCRIPTS[kind]
    whole = tokenizer().decode(script(), skip_special_tokens=skip)
    for count in range(len(script())):
        told = Told(tokenizer(), script(), overlap, streams, skip_special_tokens=skip)
        told.run_to(count)
        if "r" in told.engine.core.requests and told.engine.pause("r"):
            assert whole.startswith(told.rests[0].outputs[0].text)
            told.engine.resume("r")
        assert told.end() == whole


@each_script
@each_overlap
@pytest.mark.parametrize("streams", [True, False])
def test_a_pause_by_length_at_any_token_leaves_the_text(kind: str, streams: bool, overlap: bool) -> None:
    tokenizer, script = SCRIPTS[kind]
    for count in range(1, len(script())):
        told = Told(tokenizer(), script(), overlap, streams, max_tokens=count, on_stop="pause")
        told.engine.run()
        told.engine.resume("r", max_tokens=len(script()) - count)
        assert told.end() == undisturbed(kind)


@each_script
@each_overlap
def test_a_pause_after_every_single_token_leaves_the_text(kind: str, overlap: bool) -> None:
    tokenizer, script = SCRIPTS[kind]
    told = Told(tokenizer(), script(), overlap, max_tokens=1, pause_after_prefill=True, on_stop="pause")
    for _ in script()[1:]:
        told.engine.run()
        told.engine.resume("r", max_tokens=1)
    assert told.end() == undisturbed(kind)
    assert [token for delta in told.deltas for token in delta.token_ids] == script()


@each_script
def test_a_callback_that_pauses_at_every_piece_leaves_the_text(kind: str) -> None:
    tokenizer, script = SCRIPTS[kind]

    def pause(delta: Delta) -> None:
        if delta.token_ids and not delta.finish_reason:
            told.engine.pause("r")

    told = Told(tokenizer(), script(), overlap=True, on_delta=pause)
    for _ in script()[1:]:
        told.engine.run()
        told.engine.resume("r")
    assert told.end() == undisturbed(kind)


def test_no_piece_before_a_pause_holds_half_a_character() -> None:
    tokenizer = byte_level_tokenizer()
    script = tokenizer(WAVING_HAND * 2)["input_ids"]
    told = Told(tokenizer, script, max_tokens=1, on_stop="pause")
    for _ in script[1:]:
        told.engine.run()
        told.engine.resume("r", max_tokens=1)
    assert told.end() == WAVING_HAND * 2
    assert not any("\N{REPLACEMENT CHARACTER}" in delta.text for delta in told.deltas)


@pytest.mark.parametrize("how", ["finish", "abort"])
def test_who_ends_while_half_a_character_is_held_back_gets_it_as_decoding_shows_it(how: str) -> None:
    tokenizer = byte_level_tokenizer()
    script = tokenizer("a" + WAVING_HAND)["input_ids"][:2]
    told = Told(tokenizer, script, on_stop="pause")
    told.engine.run()
    assert told.streamed == told.rests[0].outputs[0].text == "a"
    getattr(told.engine, how)("r")
    text = told.engine.outputs["r"].outputs[0].text
    assert text == told.streamed == tokenizer.decode(script) != "a"
    assert [delta.finish_reason for delta in told.deltas][-1] == ("length" if how == "finish" else "abort")


# Stop strings


@each_overlap
@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("include", [True, False])
def test_a_pause_within_a_stop_string_does_not_hide_it(streams: bool, include: bool, overlap: bool) -> None:
    tokenizer = byte_level_tokenizer()
    script = [*b"say S", *b"TOP and more"]
    for count in range(1, 7):  # with overlap one more is read before it pauses
        told = Told(
            tokenizer, script, overlap, streams, stop=["STOP"], include_stop_str_in_output=include
        )
        told.run_to(count)
        told.engine.pause("r")
        assert "S" not in told.streamed
        told.engine.resume("r")
        assert told.end() == ("say STOP" if include else "say ")
        [out] = told.engine.outputs["r"].outputs
        assert (out.finish_reason, out.stop_reason) == ("stop", "STOP")
        assert bytes(out.token_ids) == b"say STOP"


def test_what_only_began_like_a_stop_string_is_there_after_the_pause() -> None:
    told = Told(byte_level_tokenizer(), [*b"say STOOP"], stop=["STOP"], max_tokens=7, on_stop="pause")
    told.engine.run()
    assert told.streamed == "say "
    told.engine.resume("r", max_tokens=2)
    assert told.end() == "say STOOP"


@each_overlap
@pytest.mark.parametrize("include", [True, False])
def test_a_stop_string_pauses_and_what_follows_is_another_piece_of_the_text(include: bool, overlap: bool) -> None:
    told = Told(
        byte_level_tokenizer(), [*b"one; two; six"], overlap, stop=["; "], on_stop="pause",
        include_stop_str_in_output=include,
    )  # fmt: skip
    for heard in ("one", "one two", "one two six"):
        told.engine.run()
        out = told.rests[-1].outputs[0]
        expected = heard.replace(" ", "; ") + "; " * (heard != "one two six") if include else heard.replace(" ", "")
        assert out.text == told.streamed == expected
        if heard != "one two six":
            assert (out.pause_reason, out.stop_reason, out.finish_reason) == ("stop", "; ", None)
            assert told.deltas[-1].pause_reason == "stop" and told.deltas[-1].stop_reason == "; "
            told.engine.resume("r")
    assert out.pause_reason == "length" and out.stop_reason is None
    told.end()


def test_a_stop_string_that_pauses_is_the_stop_reason_of_the_end() -> None:
    told = Told(byte_level_tokenizer(), [*b"one; two"], stop=["; "], on_stop="pause")
    told.engine.run()
    assert told.end() == "one"
    [out] = told.engine.outputs["r"].outputs
    assert (out.finish_reason, out.stop_reason) == ("stop", "; ")


def test_a_stop_string_may_not_span_two_turns() -> None:
    told = Told(byte_level_tokenizer(), [*b"abSTOPcd"], stop=["STOP"], max_tokens=4, on_stop="pause")
    told.engine.run()
    assert told.streamed == "ab"
    told.engine.resume("r", append=[*b"?"], max_tokens=4)
    assert told.end() == "abSTOPcd"  # "ST" was the end of a turn, "OP" the beginning of the next


@pytest.mark.parametrize("skip", [True, False])
def test_the_end_of_sequence_that_pauses_is_not_shown(skip: bool) -> None:
    tokenizer = byte_level_tokenizer()
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    script = [*b"hello", end, *b" you", end]
    told = Told(
        tokenizer, script, eos=frozenset([end]), on_stop="pause", max_tokens=20, skip_special_tokens=skip
    )
    told.engine.run()
    assert told.streamed == told.rests[0].outputs[0].text == "hello"
    assert told.rests[0].outputs[0].pause_reason == "stop"
    told.engine.resume("r")
    told.engine.run()
    assert told.rests[1].outputs[0].text == "hello you"
    assert told.end() == "hello you"


# Turns


@each_overlap
@pytest.mark.parametrize("streams", [True, False])
def test_the_text_of_several_turns_leaves_out_what_was_appended(streams: bool, overlap: bool) -> None:
    tokenizer = byte_level_tokenizer()
    script = [*b"one", *b" two", *b" \xc3\xa9t\xc3\xa9"]
    told = Told(tokenizer, script, overlap, streams, max_tokens=3, on_stop="pause")
    for append, count in (("ask again", 4), (WAVING_HAND, 6)):
        told.engine.run()
        told.engine.resume("r", append=append, max_tokens=count)
    assert told.end() == "one two \u00e9t\u00e9"
    assert told.engine.outputs["r"].outputs[0].token_ids == script


def test_a_turn_begins_behind_the_last_appended_token_as_decoding_has_it() -> None:
    """A decoder that strips the first space of a text must not strip that of a turn."""
    tokenizer = byte_fallback_tokenizer()
    word, a = (tokenizer.convert_tokens_to_ids(SPACE + name) for name in ("word", "a"))
    told = Told(tokenizer, [word, a, word], max_tokens=1, on_stop="pause")
    for _ in range(2):
        told.engine.run()
        told.engine.resume("r", append=[a], max_tokens=1)
    assert told.end() == "word a word"


def test_half_a_character_at_the_end_of_a_turn_is_not_completed_by_the_next() -> None:
    tokenizer = byte_level_tokenizer()
    told = Told(tokenizer, [*b"a\xc3", *b"b"], max_tokens=2, on_stop="pause")
    told.engine.run()
    assert told.streamed == "a"
    told.engine.resume("r", append=[0xA9], max_tokens=1)  # the other half, but not of this text
    assert told.streamed == "a\N{REPLACEMENT CHARACTER}"
    assert told.end() == "a\N{REPLACEMENT CHARACTER}b"


def test_appended_text_is_read_with_its_special_tokens_and_without_others() -> None:
    tokenizer = byte_level_tokenizer()
    told = Told(tokenizer, [*b"xy"], max_tokens=1, on_stop="pause")
    told.engine.run()
    told.engine.resume("r", append="<|end|>hello", max_tokens=1)
    end, hello = tokenizer.convert_tokens_to_ids("<|end|>"), tokenizer("hello")["input_ids"]
    assert told.seq.given_token_ids == [*PROMPT, end, *hello]
    assert told.end() == "xy"


def test_each_of_a_group_has_its_own_text_across_pauses() -> None:
    tokenizer = byte_level_tokenizer()
    script = tokenizer(f"h\u00e9 {WAVING_HAND}!")["input_ids"]
    told = Told(tokenizer, script, streams=False, n=2)
    told.run_to(2)
    told.engine.pause("r", index=1)
    told.engine.run()
    assert told.rests[0].outputs[0].text == f"h\u00e9 {WAVING_HAND}!"
    told.engine.resume("r", index=1)
    told.engine.run()
    assert [out.text for out in told.engine.outputs["r"].outputs] == [f"h\u00e9 {WAVING_HAND}!"] * 2


# The embedded model


@pytest.mark.model
def test_a_real_answer_reads_the_same_with_a_pause_at_any_token(smollm2: Callable[..., LLM]) -> None:
    llm = smollm2(overlap=True)
    question = [{"role": "user", "content": "Count to five in French, with emoji."}]
    prompt = llm.engine.chat_prompt(question)
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=24)
    [alone] = llm.generate([prompt], params, use_tqdm=False)
    done: list[RequestOutput] = []
    texts: list[str] = []
    name = llm.engine.add_request(
        prompt, params, on_output=lambda delta: texts.append(delta.text), on_finish=done.append
    )
    while not done:
        assert llm.engine.step()
        if not done and llm.engine.pause(name):
            assert llm.engine.core.requests[name].sequences[0].status is SequenceStatus.PAUSED
            llm.engine.resume(name)
    assert done[0].outputs[0].token_ids == alone.outputs[0].token_ids
    assert "".join(texts) == done[0].outputs[0].text == alone.outputs[0].text
