"""Large bodies: read beside the event loop, refused before they cost much, and told of as small ones are."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel

from nanolens.server import body_route
from nanolens.server.body_route import LONG_BODY, LONG_FIELD, read_long
from nanolens.server.protocol_requests import ChatCompletionRequest, CompletionRequest
from nanolens.server.state import SHRINKS
from nanolens.server.validation import MAX_NAME, describe_invalid
from served import CHAT, COMPLETIONS, Served, answer_of, error_of, serving

PADDING = {"user": "x" * LONG_BODY}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as found:
        yield found


def told(model: type[BaseModel], body: bytes) -> tuple[str | None, str]:
    """What a body is refused with."""
    with pytest.raises(RequestValidationError) as refused:
        read_long(model, body)
    return describe_invalid(refused.value.errors())


def test_a_long_body_is_read_in_another_thread_and_a_short_one_is_not(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def read(model: type[BaseModel], body: bytes, *most: int) -> BaseModel:
        threads.append(threading.current_thread())
        return read_long(model, body, *most)

    monkeypatch.setattr(body_route, "read_long", read)
    served.complete("a", max_tokens=1)
    assert not threads
    served.complete("a", max_tokens=1, **PADDING)
    assert len(threads) == 1 and threads[0] is not threading.main_thread()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": "hello", "temperature": 0, "stop": ["x"], "logit_bias": {"5": 1}}),
        (COMPLETIONS, {"prompt": [[1, 2], [3]], "temperature": 0, "n": 2}),
        (CHAT, {"messages": [{"role": "user", "content": "hello"}], "temperature": 0, "metadata": {"a": "b"}}),
        ("/tokenize", {"prompt": "hello"}),
    ],
)  # fmt: skip
def test_a_long_body_means_what_a_short_one_means(
    served: Served, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    if path != "/tokenize":
        body = body | {"max_tokens": 4, "seed": 1}
    short = answer_of(served.post(path, **body))
    monkeypatch.setattr(body_route, "LONG_BODY", 0)
    long = answer_of(served.post(path, **body))
    for name in ("choices", "usage", "tokens"):
        assert long.get(name) == short.get(name)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": "5"}, {"frobnicate": 1}, {"prompt": None}, {"prompt": [1.5]}, {"n": 10**30},
        {"suffix": "end"}, {"stream_options": {"x": 1}}, {"logit_bias": {"5": "a"}}, {"stop_token_ids": [-1]},
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_long_body_is_told_as_in_a_short_one(
    served: Served, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any]
) -> None:
    body = json.dumps({"model": "tiny", "prompt": "x"} | wrong)
    short = error_of(served.send(COMPLETIONS, body))
    monkeypatch.setattr(body_route, "LONG_BODY", 0)
    assert error_of(served.send(COMPLETIONS, body)) == short


@pytest.mark.parametrize("body", [b"{", b"[1]", b"5", b'{"a": NaN}', b"\xff", b"[" * 9000, b'{"n": "\\ud800"}'])
def test_what_is_no_object_is_refused(served: Served, monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    monkeypatch.setattr(body_route, "LONG_BODY", 0)
    assert "JSON" in error_of(served.send(COMPLETIONS, body))["message"]


def test_of_many_unknown_fields_the_first_are_named() -> None:
    body = json.dumps({"model": "m", "prompt": "x"} | {f"k{place}": 1 for place in range(50_000)}).encode()
    assert told(CompletionRequest, body) == ("k0", told(CompletionRequest, body)[1])
    assert told(CompletionRequest, body)[1].endswith("(and k1, k2, k3)")


def test_an_unknown_field_and_a_field_that_can_not_be_so_long_are_not_made_into_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_loads(text: bytes) -> object:
        raise AssertionError(text[:20])

    monkeypatch.setattr(json, "loads", no_loads)
    for name in ("zzz", "tools", "metadata"):
        body = b'{"model": "m", "messages": [], "%s": [%s1]}' % (name.encode(), b"{}," * LONG_FIELD)
        assert told(ChatCompletionRequest, body)[0] == name


def test_the_name_of_an_unknown_field_is_cut(served: Served) -> None:
    for padding in ({}, PADDING):
        error = error_of(served.post(COMPLETIONS, prompt="x", **padding, **{"z" * 5000: 1}))
        assert error["param"] == "z" * (MAX_NAME - 1) + "…" and len(error["message"]) < 300


def test_a_prompt_that_can_not_fit_is_refused_without_tokenizing(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_encode(text: str, add_special_tokens: bool = True) -> list[int]:
        raise AssertionError(len(text))

    tokenizer = served.state.tokenizer
    monkeypatch.setattr(tokenizer, "encode", no_encode)
    monkeypatch.setattr(tokenizer, "apply_chat_template", no_encode)
    text = "x" * (served.engine.started.max_model_len * SHRINKS + 1)
    for path, body in ((COMPLETIONS, {"prompt": text}), (CHAT, {"messages": [{"role": "user", "content": text}]})):
        error = error_of(served.post(path, **body))
        assert error["code"] == "context_length_exceeded" and error["param"] == next(iter(body))
    assert served.is_idle()


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        ([1] * 20_000, "context_length_exceeded"),
        ([[2], [1] * 20_000], "context_length_exceeded"),
        ([[1]] * 20_000, "invalid_value"),
        (["x"] * 20_000, "invalid_value"),
    ],
)
def test_more_tokens_or_prompts_than_can_be_are_refused_before_each_is_looked_at(
    served: Served, monkeypatch: pytest.MonkeyPatch, prompt: list[Any], code: str
) -> None:
    def no_validate(values: dict[str, Any]) -> BaseModel:
        raise AssertionError(len(values))

    monkeypatch.setattr(CompletionRequest, "model_validate", no_validate)
    error = error_of(served.post(COMPLETIONS, prompt=prompt))
    assert (error["param"], error["code"]) == ("prompt", code) and "20000" in error["message"]
    assert served.is_idle()
