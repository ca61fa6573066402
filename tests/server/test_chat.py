"""POST /v1/chat/completions on a real engine: messages, the template, limits, log-probabilities, n, usage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nanolens.models.dummy import ByteTokenizer
from served import ALWAYS_A, CHAT, VOCAB_SIZE, Served, answer_of, error_of, serving, texts_of

USER = {"role": "user", "content": "hello"}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as found:
        yield found


def test_an_answer_has_openais_fields(served: Served) -> None:
    answer = served.chat(max_tokens=3, **ALWAYS_A)
    assert answer["id"].startswith("chatcmpl-") and answer["object"] == "chat.completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "AAA", "refusal": None},
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
        }
    ]
    prompt_tokens = len(ByteTokenizer(VOCAB_SIZE).apply_chat_template([USER]))
    assert answer["usage"] == {
        "prompt_tokens": prompt_tokens, "completion_tokens": 3, "total_tokens": prompt_tokens + 3,
    }  # fmt: skip


def test_a_conversation_is_what_its_template_makes_of_it(served: Served) -> None:
    messages = [{"role": "system", "content": "be brief"}, USER, {"role": "assistant", "content": "hi"}, USER]
    ids = ByteTokenizer(VOCAB_SIZE).apply_chat_template(messages)
    params: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    answer = answer_of(served.post(CHAT, messages=messages, **params))
    assert answer["choices"][0]["message"]["content"] == served.complete(ids, **params)["choices"][0]["text"]


def test_parts_of_text_are_joined(served: Served) -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    params: dict[str, Any] = {"max_tokens": 8, "temperature": 0}
    joined = answer_of(served.post(CHAT, messages=[{"role": "user", "content": parts}], **params))
    assert joined["choices"] == served.chat("hello", **params)["choices"]


def test_a_developers_message_is_a_systems(served: Served) -> None:
    params: dict[str, Any] = {"max_tokens": 8, "temperature": 0}
    answers = [
        answer_of(served.post(CHAT, messages=[{"role": role, "content": "be brief"}, USER], **params))["choices"]
        for role in ("developer", "system")
    ]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_both_names_of_the_limit_are_known(served: Served, name: str) -> None:
    assert served.chat(**{name: 5}, **ALWAYS_A)["choices"][0]["message"]["content"] == "AAAAA"


def test_two_different_limits_are_refused(served: Served) -> None:
    error = error_of(served.post(CHAT, messages=[USER], max_tokens=5, max_completion_tokens=6))
    assert error["param"] == "max_completion_tokens"


def test_without_a_limit_an_answer_may_fill_the_model(served: Served) -> None:
    answer = served.chat(**ALWAYS_A)
    assert answer["usage"]["total_tokens"] == served.engine.started.max_model_len
    assert answer["choices"][0]["finish_reason"] == "length"


def test_log_probabilities_tell_text_bytes_and_alternatives(served: Served) -> None:
    choice = served.chat(max_tokens=2, logprobs=True, top_logprobs=3, **ALWAYS_A)["choices"][0]
    assert [each["token"] for each in choice["logprobs"]["content"]] == ["A", "A"]
    for each in choice["logprobs"]["content"]:
        assert each["bytes"] == [65] and each["logprob"] < 0 and len(each["top_logprobs"]) == 3
        assert set(each["top_logprobs"][0]) == {"token", "logprob", "bytes"}
        values = [top["logprob"] for top in each["top_logprobs"]]
        assert values == sorted(values, reverse=True)


def test_log_probabilities_without_alternatives(served: Served) -> None:
    choice = served.chat(max_tokens=2, logprobs=True, **ALWAYS_A)["choices"][0]
    assert [each["top_logprobs"] for each in choice["logprobs"]["content"]] == [[], []]


def test_a_token_that_is_half_a_character_has_its_bytes(served: Served) -> None:
    forced = {"temperature": 0, "logit_bias": {str(0xC3): 100}}
    (entry,) = served.chat(max_tokens=1, logprobs=True, **forced)["choices"][0]["logprobs"]["content"]
    assert entry["bytes"] == [0xC3] and entry["token"] == "\\xc3"


def test_two_answers_to_one_question(served: Served) -> None:
    body: dict[str, Any] = {"n": 2, "max_tokens": 10, "seed": 3, "temperature": 1.5}
    answer = served.chat(**body)
    texts = {choice["index"]: choice["message"]["content"] for choice in answer["choices"]}
    assert texts[0] != texts[1] and answer["usage"]["completion_tokens"] == 20
    assert texts_of(served.chunks(CHAT, messages=[USER], **body)) == texts


def test_what_asks_for_nothing_is_taken(served: Served) -> None:
    served.chat(
        max_tokens=1, response_format={"type": "text"}, tools=[], tool_choice="none", modalities=["text"], store=False,
        metadata={"a": "b"}, user="me", service_tier="auto", parallel_tool_calls=True, logprobs=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "required"),
        ("functions", [{"name": "f"}]),
        ("response_format", {"type": "json_object"}),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "x"}),
        ("prediction", {"type": "content", "content": "x"}),
    ],
)
def test_what_is_not_supported_is_refused_by_name(served: Served, field: str, value: Any) -> None:
    error = error_of(served.post(CHAT, messages=[USER], **{field: value}))
    assert error["param"] == field and "not supported" in error["message"]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        ([USER, 5], "messages[1]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "tool", "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content"),
        ([{"role": "assistant", "content": "", "tool_calls": [{}]}], "messages[0].tool_calls"),
        ([{"role": "user", "content": "x" * 2000}], "messages"),
    ],
)
def test_messages_that_cant_be_used_are_refused_by_name(served: Served, messages: Any, param: str) -> None:
    assert error_of(served.post(CHAT, messages=messages))["param"] == param


def test_alternatives_need_log_probabilities(served: Served) -> None:
    assert error_of(served.post(CHAT, messages=[USER], top_logprobs=2))["param"] == "top_logprobs"
    assert error_of(served.post(CHAT, messages=[USER], logprobs=True, top_logprobs=21))["param"] == "top_logprobs"
