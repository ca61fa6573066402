"""Values of a wrong type, and names that a journal can't hold: refused by field, and nothing breaks for the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanolens.engine.llm import LLM
from nanolens.engine.sampling_params import SamplingParams
from nanolens.errors import InvalidRequest
from nanolens.inspector.trace_cli import main as nano_trace
from nanolens.telemetry.events import CallbackFailed, RequestArrived, RequestRefused
from real_engine import greedy, ids_of, is_idle, recorded, tiny_llm

LIST_OF_IDS = "must be a text or a list of token ids"
Bad = tuple[Callable[[LLM], object], str, str]


def add(prompt: Any = (1, 2), params: Any = None, **options: Any) -> Callable[[LLM], object]:
    return lambda llm: llm.engine.add_request(prompt, params, **options)


def generate(prompts: Any, params: Any = None) -> Callable[[LLM], object]:
    return lambda llm: llm.generate(prompts, params, use_tqdm=False)


def chat(messages: Any) -> Callable[[LLM], object]:
    return lambda llm: llm.chat(messages, use_tqdm=False)


# What is sent, the field that the error names, its message.
REQUESTS: dict[str, Bad] = {
    **{f"params {value!r}": (add(params=value), "params",
                             f"params: must be SamplingParams, not {type(value).__name__}")
       for value in (5, "x", {"max_tokens": 4}, [5], {}, [], 0, "", False)},
    **{f"generate params {value!r}": (generate("a", value), "params",
                                      f"params: must be SamplingParams or a list of them, not {type(value).__name__}")
       for value in (5, "x", {"max_tokens": 4}, {}, b"x")},
    "generate nothing": (generate([], 5), "params", "params: must be SamplingParams or a list of them, not int"),
    "generate list of params": (generate(["a"], [5]), "params", "prompts[0]: params: must be SamplingParams, not int"),
    "generate empty params": (generate(["a"], [{}]), "params", "prompts[0]: params: must be SamplingParams, not dict"),
    **{f"messages {value!r}": (chat(value), "messages",
                               f"messages: must be a list of messages, not {type(value).__name__}")
       for value in ({}, 5, "x", None, {"role": "user", "content": "x"})},
    "messages [5]": (chat([5]), "messages", "messages[0]: a message is an object with role and content"),
    "messages mixed": (chat([[{"role": "user", "content": "x"}], 5]), "messages",
                       "messages: must be a list of messages, not int"),
    "prompt dict": (generate({"prompt": "x"}), "prompt", f"prompts[0]: prompt: {LIST_OF_IDS}, not dict"),
    "prompt set": (generate({1, 2}), "prompt", f"prompts[0]: prompt: {LIST_OF_IDS}, not set"),
    "prompt frozenset": (generate(frozenset("ab")), "prompt", f"prompts[0]: prompt: {LIST_OF_IDS}, not frozenset"),
    "prompt memoryview": (add(memoryview(b"ab")), "prompt", f"prompt: {LIST_OF_IDS}, not memoryview"),
    "prompt np float": (add(np.array([1.0, 2.0])), "prompt", "prompt[0]=1.0: must be a token id from 0 to 263"),
    "prompt np bool": (add(np.array([True])), "prompt", "prompt[0]=True: must be a token id from 0 to 263"),
    "prompt bools": (add([True, False]), "prompt", "prompt[0]=True: must be a token id from 0 to 263"),
    "prompt np scalar": (add(np.array(5)), "prompt", f"prompt: {LIST_OF_IDS}, not ndarray"),
    "generate np scalar": (generate(np.array(5)), "prompt", f"prompts[0]: prompt: {LIST_OF_IDS}, not ndarray"),
    "generate np text": (generate(np.array("abc")), "prompt", f"prompts[0]: prompt: {LIST_OF_IDS}, not ndarray"),
    "prompt np beyond": (add(np.array([1, 264])), "prompt", "prompt[1]=264: must be a token id from 0 to 263"),
    "id number": (add(request_id=5), "request_id", "request_id: must be a string, not int"),
    "id empty": (add(request_id=""), "request_id", "request_id='': must not be empty; None makes one"),
    "id bytes": (add(request_id=b"x"), "request_id", "request_id: must be a string, not bytes"),
    "id list": (add(request_id=[]), "request_id", "request_id: must be a string, not list"),
    "id surrogate": (add(request_id="a\ud800"), "request_id",
                     "request_id holds a lone surrogate at character 1: send Unicode"),
    "id long": (add(request_id="x" * 257), "request_id", "request_id has 257 characters: must be at most 256"),
    "trace number": (add(traceparent=5), "traceparent", "traceparent: must be a string, not int"),
    "trace surrogate": (add(traceparent="\udfff"), "traceparent",
                        "traceparent holds a lone surrogate at character 0: send Unicode"),
    "route list": (add(route=["a"]), "route", "route: must be a mapping of at most 16 names, not list"),
    "route long": (add(route=dict.fromkeys(map(str, range(17)))), "route",
                   "route: must be a mapping of at most 16 names, not 17 entries"),
    "route float": (add(route={"load": 0.5}), "route", "route: must be a string, not float"),
    "route name": (add(route={5: "a"}), "route", "route: must be a string, not int"),
    "route number": (add(route={"load": 1 << 63}), "route", "route: a number in it must fit into 64 bits"),
    "route surrogate": (add(route={"replica": "\ud800"}), "route",
                        "route holds a lone surrogate at character 0: send Unicode"),
    "trace long": (add(traceparent="x" * 257), "traceparent", "traceparent has 257 characters: must be at most 256"),
}  # fmt: skip


@pytest.mark.parametrize("bad", REQUESTS)
def test_a_wrong_type_is_refused_by_field_and_the_journal_stays_whole(bad: str, tmp_path: Path) -> None:
    request, field, message = REQUESTS[bad]
    with tiny_llm(journal=str(tmp_path)) as llm:
        outputs: list[Any] = []
        llm.engine.add_request("hello", greedy(6), on_finish=outputs.append)
        llm.engine.step()
        with pytest.raises(InvalidRequest) as refused:
            request(llm)
        assert (refused.value.field, str(refused.value)) == (field, message)
        while llm.engine.step():
            pass
        assert [output.outputs[0].finish_reason for output in outputs] == ["length"]
        assert is_idle(llm.engine.snapshot())
    assert nano_trace(["check", str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("request_id", "traceparent", "recorded_as"),
    [("a\ud800", None, ("a\\ud800", None)), (5, None, ("", None)), ("ok", "\udfff", ("ok", "\\udfff")),
     ("ok", 7, ("ok", None)), ("x" * 300, None, ("x" * 256, None))],
)  # fmt: skip
def test_a_refusal_is_recorded_under_what_can_be_written_of_its_names(
    request_id: Any, traceparent: Any, recorded_as: tuple[str, str | None]
) -> None:
    with tiny_llm() as llm:
        events = recorded(llm)
        with pytest.raises(InvalidRequest):
            llm.engine.add_request([1], greedy(2), request_id=request_id, traceparent=traceparent)
        refusals = [event for event in events if isinstance(event, RequestRefused)]
        assert [(event.request, event.traceparent) for event in refusals] == [recorded_as]


def test_names_of_256_characters_and_subclasses_of_str_are_taken() -> None:
    with tiny_llm() as llm:
        events = recorded(llm)
        name = llm.engine.add_request([1], greedy(2), request_id="é" * 256, traceparent="x" * 256)
        other = llm.engine.add_request([1], greedy(2), request_id=np.str_("mine"))
        llm.engine.step()
        arrived = [event.request for event in events if isinstance(event, RequestArrived)]
        assert arrived == [name, other] == ["é" * 256, "mine"]
        assert type(arrived[1]) is str


@pytest.mark.parametrize("request_id", [[], {}, None, 5, ["req-0"]])
def test_aborting_what_is_no_id_finds_nothing(request_id: Any) -> None:
    with tiny_llm() as llm:
        llm.engine.add_request("hello", greedy(4))
        assert llm.engine.abort(request_id) is False
        assert llm.engine.has_work


@pytest.mark.parametrize("value", [np.array(["finish", "pause"]), np.array([]), 5, None, ["pause"]])
def test_on_stop_of_a_wrong_type_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="must be 'finish' or 'pause'") as refused:
        SamplingParams(on_stop=value)
    assert refused.value.field == "on_stop"


@pytest.mark.parametrize("name", ["stop", "bad_words", "stop_token_ids"])
def test_an_array_without_dimensions_is_no_list(name: str) -> None:
    with pytest.raises(InvalidRequest, match="not one value") as refused:
        SamplingParams(**{name: np.array(5)})
    assert refused.value.field == name


IDS = [104, 101, 108]


@pytest.mark.parametrize(
    "prompt",
    [np.array(IDS), np.array(IDS, dtype=np.uint16), [np.int64(i) for i in IDS], tuple(np.array(IDS, dtype=np.int32))],
    ids=["int64", "uint16", "list", "tuple"],
)
def test_whole_numbers_of_numpy_are_token_ids(prompt: Any) -> None:
    with tiny_llm() as llm:
        expected = ids_of(llm.generate(IDS, greedy(4), use_tqdm=False))
        for given in (prompt, [prompt]):
            output = llm.generate(given, greedy(4), use_tqdm=False)[0]
            assert ids_of([output]) == expected
            assert output.prompt_token_ids == IDS
            assert {type(token) for token in output.prompt_token_ids} == {int}


def test_an_array_of_two_dimensions_is_a_prompt_a_row() -> None:
    with tiny_llm() as llm:
        expected = ids_of(llm.generate([IDS, IDS[::-1]], greedy(4), use_tqdm=False))
        assert ids_of(llm.generate(np.array([IDS, IDS[::-1]]), greedy(4), use_tqdm=False)) == expected


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "message"),
    [(ValueError("a\ud800"), "ValueError: a\\ud800"), (Unreadable(), "Unreadable: (its message can't be read)")],
    ids=["surrogate", "unreadable"],
)
def test_a_callbacks_error_is_recorded_whatever_its_message_is(
    error: Exception, message: str, tmp_path: Path
) -> None:
    def fails(_: object) -> None:
        raise error

    with tiny_llm(journal=str(tmp_path)) as llm:
        events = recorded(llm)
        llm.engine.add_request("hello", greedy(2), on_finish=fails)
        while llm.engine.step():
            pass
        assert [event.message for event in events if isinstance(event, CallbackFailed)] == [message]
    assert nano_trace(["check", str(tmp_path)]) == 0
