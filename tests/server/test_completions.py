"""POST /v1/completions on a real engine: prompts of every form, n, echo, log-probabilities, stops, ids, usage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nanolens.engine.llm import LLM
from real_engine import greedy, tiny_llm
from served import ALWAYS_A, COMPLETIONS, Served, error_of, serving, texts_of


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as found:
        yield found


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with tiny_llm() as found:
        yield found


def ids_alone(llm: LLM, prompt: Any, max_tokens: int) -> list[int]:
    return llm.generate([prompt], greedy(max_tokens), use_tqdm=False)[0].outputs[0].token_ids


def test_a_completion_has_openais_fields(served: Served) -> None:
    answer = served.complete("hello", max_tokens=3, **ALWAYS_A)
    assert answer["id"].startswith("cmpl-") and answer["object"] == "text_completion" and answer["model"] == "tiny"
    assert answer["created"] > 1_700_000_000 and answer["system_fingerprint"].startswith("fp_")
    assert answer["choices"] == [
        {"index": 0, "text": "AAA", "logprobs": None, "finish_reason": "length", "stop_reason": None}
    ]
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}


def test_greedy_tokens_are_those_of_the_offline_engine(served: Served, llm: LLM) -> None:
    expected = ids_alone(llm, "The answer", 24)
    answer = served.complete("The answer", max_tokens=24, temperature=0, ignore_eos=True, logprobs=0)
    text = llm.engine.tokenizer.decode(expected, skip_special_tokens=True)  # type: ignore[union-attr]
    assert answer["choices"][0]["text"] == text
    assert len(answer["choices"][0]["logprobs"]["tokens"]) == 24


@pytest.mark.parametrize(
    ("prompt", "alone"),
    [("hi", ["hi"]), ([104, 105], ["hi"]), (["hi", "you"], ["hi", "you"]), ([[104, 105], [121]], ["hi", "y"])],
)
def test_each_form_of_a_prompt_gives_what_its_texts_give(served: Served, prompt: Any, alone: list[str]) -> None:
    params = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
    answer = served.complete(prompt, **params)
    assert [choice["text"] for choice in answer["choices"]] == [
        served.complete(text, **params)["choices"][0]["text"] for text in alone
    ]
    assert answer["usage"]["prompt_tokens"] == sum(len(text) for text in alone)


@pytest.mark.parametrize("stream", [False, True])
def test_choices_of_several_prompts_are_numbered_prompt_after_prompt(served: Served, stream: bool) -> None:
    body = {"prompt": ["x", "yy", "z"], "n": 2, "echo": True, "max_tokens": 2, **ALWAYS_A}
    if stream:
        texts = texts_of(served.chunks(COMPLETIONS, **body))
    else:
        texts = {choice["index"]: choice["text"] for choice in served.complete(**body)["choices"]}
    assert texts == {0: "xAA", 1: "xAA", 2: "yyAA", 3: "yyAA", 4: "zAA", 5: "zAA"}


def test_a_seed_gives_the_same_texts_and_n_gives_different_ones(served: Served) -> None:
    body = {"max_tokens": 12, "n": 2, "seed": 7, "temperature": 1.5}
    first, second = served.complete(**body), served.complete(**body)
    texts = [choice["text"] for choice in first["choices"]]
    assert texts == [choice["text"] for choice in second["choices"]] and texts[0] != texts[1]


@pytest.mark.parametrize("stop", ["AAA", ["no", "AAA"]])
def test_a_stop_string_over_several_tokens_ends_the_text_before_it(served: Served, stop: Any) -> None:
    choice = served.complete(max_tokens=9, stop=stop, **ALWAYS_A)["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("", "stop", "AAA")


def test_a_stop_string_stays_in_the_text_where_that_is_asked_for(served: Served) -> None:
    choice = served.complete(max_tokens=9, stop="AAA", include_stop_str_in_output=True, **ALWAYS_A)["choices"][0]
    assert choice["text"] == "AAA"


def test_a_stop_token_ends_the_text_and_is_named(served: Served) -> None:
    choice = served.complete(max_tokens=9, stop_token_ids=[65], **ALWAYS_A)["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("", "stop", 65)


def test_sixteen_tokens_are_the_default(served: Served) -> None:
    assert served.complete(**ALWAYS_A)["choices"][0]["text"] == "A" * 16


def test_legacy_log_probabilities_are_four_lists_of_equal_length(served: Served) -> None:
    logprobs = served.complete(max_tokens=3, logprobs=2, **ALWAYS_A)["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["A", "A", "A"] and logprobs["text_offset"] == [0, 1, 2]
    for value, top in zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        assert value < 0 and top["A"] == value  # the sampled one is among them, though not one of the likeliest two
        assert len(top) in (2, 3) and all(other >= value for other in top.values())


def test_without_alternatives_only_the_sampled_token_is_listed(served: Served) -> None:
    logprobs = served.complete(max_tokens=2, logprobs=0, **ALWAYS_A)["choices"][0]["logprobs"]
    assert [list(top) for top in logprobs["top_logprobs"]] == [["A"], ["A"]]


def test_a_token_that_is_no_whole_character_is_shown_by_its_bytes(served: Served) -> None:
    forced = {"temperature": 0, "logit_bias": {str(0xC3): 100}}
    choice = served.complete(max_tokens=2, logprobs=0, **forced)["choices"][0]
    assert choice["logprobs"]["tokens"] == ["bytes:\\xc3", "bytes:\\xc3"] and choice["text"] == "\ufffd\ufffd"


def test_echo_puts_the_prompt_in_front(served: Served) -> None:
    assert served.complete("say ", echo=True, max_tokens=2, **ALWAYS_A)["choices"][0]["text"] == "say AA"
    assert served.complete([115, 97], echo=True, max_tokens=1, **ALWAYS_A)["choices"][0]["text"] == "saA"


def test_echo_with_log_probabilities_tells_those_of_the_prompt_too(served: Served, llm: LLM) -> None:
    choice = served.complete("say", echo=True, max_tokens=2, logprobs=1, **ALWAYS_A)["choices"][0]
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == ["s", "a", "y", "A", "A"] and logprobs["text_offset"] == [0, 1, 2, 3, 4]
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    assert all(value < 0 for value in logprobs["token_logprobs"][1:])


def test_a_prompt_can_be_scored_without_an_answer(served: Served) -> None:
    answer = served.complete("say", echo=True, max_tokens=0, logprobs=1)
    (choice,) = answer["choices"]
    assert choice["text"] == "say" and choice["finish_reason"] == "length"
    assert choice["logprobs"]["tokens"] == ["s", "a", "y"] and choice["logprobs"]["token_logprobs"][1] < 0
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}


def test_usage_counts_each_prompt_once_and_every_generated_id(served: Served) -> None:
    usage = served.complete(["abc", "de"], n=3, max_tokens=4, **ALWAYS_A)["usage"]
    assert usage == {"prompt_tokens": 5, "completion_tokens": 24, "total_tokens": 29}


def test_best_of_equal_to_n_is_taken(served: Served) -> None:
    assert len(served.complete(n=2, best_of=2, max_tokens=1)["choices"]) == 2


def test_null_is_the_same_as_absent(served: Served) -> None:
    names = ("n", "temperature", "top_p", "seed", "stop", "logit_bias", "stream", "stream_options", "suffix", "user")
    assert served.complete(**dict.fromkeys(names), max_tokens=1)["usage"]["completion_tokens"] == 1


def test_the_clients_id_names_the_request_everywhere(served: Served) -> None:
    headers = {"X-Request-ID": "my.request:1"}
    response = served.post(COMPLETIONS, headers, prompt="x", max_tokens=1)
    assert response.headers["x-request-id"] == response.json()["id"] == "my.request:1"
    again = served.post(COMPLETIONS, headers, prompt="x", max_tokens=1)
    assert again.json()["id"] == "my.request:1"  # it is free again


@pytest.mark.parametrize("unusable", ["", "a b", "x" * 129, "-a", "a/b"])
def test_an_id_that_cant_be_used_is_replaced(served: Served, unusable: str) -> None:
    response = served.post(COMPLETIONS, {"X-Request-Id": unusable}, prompt="x", max_tokens=1)
    assert response.headers["x-request-id"] == response.json()["id"] and response.json()["id"].startswith("cmpl-")


def test_an_id_that_a_live_request_has_is_not_given_twice(served: Served) -> None:
    served.state.names.add("taken")
    try:
        response = served.post(COMPLETIONS, {"X-Request-Id": "taken"}, prompt="x", max_tokens=1)
    finally:
        served.state.names.discard("taken")
    assert response.headers["x-request-id"] == "taken" and response.json()["id"].startswith("cmpl-")
    assert response.headers["x-nanolens-request-id"] == response.json()["id"]


def test_another_name_of_the_model_is_the_one_answered_with(served: Served) -> None:
    assert served.complete(model="other-name", max_tokens=1)["model"] == "other-name"


def test_more_prompts_than_allowed_are_refused(served: Served) -> None:
    assert error_of(served.post(COMPLETIONS, prompt=["x"] * 1025))["param"] == "prompt"
    assert error_of(served.post(COMPLETIONS, prompt=["x"] * 1024, n=5))["param"] == "n"


def test_nothing_is_left_behind(served: Served) -> None:
    served.complete(["a", "b"], n=2, max_tokens=2)
    assert served.is_idle()
