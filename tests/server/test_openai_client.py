"""The public `openai` client against the server: what its users call, and what they see when something is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from serve import NAME, Server

PROMPT = [(i * 37 + 11) % 256 for i in range(9)]
MESSAGES: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a river."}]
FULL: dict[str, Any] = {"ignore_eos": True}  # extra_body: the tiny model ends its text at random


@pytest.fixture(scope="module")
def client(tiny_server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{tiny_server.url}/v1", api_key="any", max_retries=0, timeout=60) as client:
        yield client


def complete(client: OpenAI, **fields: Any) -> Any:
    return client.completions.create(
        **({"model": NAME, "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "extra_body": FULL} | fields)
    )


def chat(client: OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(
        **({"model": NAME, "messages": MESSAGES, "max_tokens": 12, "temperature": 0, "extra_body": FULL} | fields)
    )


def test_models_are_listed_and_found(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).object == "model"


def test_a_completion(client: OpenAI) -> None:
    found = complete(client)
    assert (found.object, found.model, len(found.choices)) == ("text_completion", NAME, 1)
    assert found.choices[0].finish_reason == "length" and found.choices[0].text
    assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens) == (9, 12, 21)


def test_a_streamed_completion_has_the_text_of_a_plain_one(client: OpenAI) -> None:
    chunks = list(complete(client, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == complete(client).choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["length"]
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_chat_completion(client: OpenAI) -> None:
    found = chat(client)
    assert (found.object, found.choices[0].message.role) == ("chat.completion", "assistant")
    assert found.choices[0].message.content and found.usage.completion_tokens == 12


def test_a_streamed_chat_begins_with_the_role_and_has_the_text_of_a_plain_one(client: OpenAI) -> None:
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    pieces = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(pieces) == chat(client).choices[0].message.content
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 12


def test_the_stream_helper_assembles_the_answer(client: OpenAI) -> None:
    stop = chat(client).choices[0].message.content[-2:]  # a text that the length ends is an error to the helper
    with client.chat.completions.stream(
        model=NAME, messages=MESSAGES, max_tokens=12, temperature=0, stop=stop, extra_body=FULL
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == chat(client, stop=stop).choices[0].message.content
    assert final.choices[0].finish_reason == "stop"


def test_max_completion_tokens_is_the_newer_name(client: OpenAI) -> None:
    found = client.chat.completions.create(
        model=NAME, messages=MESSAGES, max_completion_tokens=5, temperature=0, extra_body=FULL
    )
    assert found.usage is not None and found.usage.completion_tokens == 5


@pytest.mark.parametrize("ask", [complete, chat])
def test_two_choices_keep_apart(client: OpenAI, ask: Any) -> None:
    settings = {"n": 2, "temperature": 1.0, "seed": 11}
    plain = ask(client, **settings)
    assert [choice.index for choice in plain.choices] == [0, 1]
    texts = {0: "", 1: ""}
    ends: dict[int, list[str]] = {0: [], 1: []}
    for chunk in ask(client, stream=True, **settings):
        for choice in chunk.choices:
            texts[choice.index] += (choice.text if ask is complete else choice.delta.content) or ""
            ends[choice.index] += [choice.finish_reason] if choice.finish_reason else []
    assert texts == {c.index: c.text if ask is complete else c.message.content for c in plain.choices}
    assert texts[0] != texts[1] and ends == {0: ["length"], 1: ["length"]}


def test_several_prompts_have_choices_in_their_order(client: OpenAI) -> None:
    prompts = [[1, 2, 3], [4, 5, 6], [7, 8]]
    together = complete(client, prompt=prompts, n=2)
    assert [choice.index for choice in together.choices] == list(range(6))
    for number, prompt in enumerate(prompts):
        alone = complete(client, prompt=prompt).choices[0].text
        assert [choice.text for choice in together.choices[2 * number : 2 * number + 2]] == [alone, alone]
    assert together.usage.prompt_tokens == 8


def test_a_list_of_texts_is_a_list_of_prompts(client: OpenAI) -> None:
    found = complete(client, prompt=["ab", "cde"])
    assert len(found.choices) == 2 and found.usage.prompt_tokens == 5


@pytest.mark.parametrize("ask", [complete, chat])
def test_a_stop_string_ends_the_text_before_it(client: OpenAI, ask: Any) -> None:
    def text_of(found: Any) -> str:
        return str(found.choices[0].text if ask is complete else found.choices[0].message.content)

    whole = text_of(ask(client, max_tokens=40))
    stop = whole[len(whole) // 2 :][:2]
    found = ask(client, max_tokens=40, stop=[stop, "not there"])
    assert text_of(found) == whole[: whole.index(stop)] and found.choices[0].finish_reason == "stop"


def test_logprobs_of_a_completion(client: OpenAI) -> None:
    found = complete(client, logprobs=3).choices[0]
    told = found.logprobs
    assert len(told.tokens) == len(told.token_logprobs) == len(told.top_logprobs) == len(told.text_offset) == 12
    assert all(-20 < value <= 0 for value in told.token_logprobs) and told.text_offset[0] == 0
    for token, logprob, top in zip(told.tokens, told.token_logprobs, told.top_logprobs, strict=True):
        assert 3 <= len(top) <= 4 or len(set(top)) < 3  # two ids may have the same text
        assert max(top.values()) == pytest.approx(logprob) and top[token] == pytest.approx(logprob)


@pytest.mark.parametrize("streams", [False, True])
def test_logprobs_of_a_chat(client: OpenAI, streams: bool) -> None:
    found = chat(client, logprobs=True, top_logprobs=2, stream=streams)
    choices = [choice for chunk in found for choice in chunk.choices] if streams else found.choices
    content = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
    assert len(content) == 12
    for entry in content:
        assert len(entry.top_logprobs) == 2 and entry.top_logprobs[0].logprob == pytest.approx(entry.logprob)
        assert entry.bytes is None or bytes(entry.bytes)


def test_a_seed_repeats_and_another_differs(client: OpenAI) -> None:
    one, same, other = (complete(client, temperature=1.0, seed=seed).choices[0].text for seed in (4, 4, 5))
    assert one == same != other


def test_penalties_and_bias_reach_the_sampler(client: OpenAI) -> None:
    assert complete(client, logit_bias={"65": 100}).choices[0].text == "A" * 12
    plain = complete(client, max_tokens=60).choices[0].text
    assert complete(client, max_tokens=60, presence_penalty=2.0, frequency_penalty=2.0).choices[0].text != plain


def test_echo_puts_the_prompt_before_the_text(client: OpenAI) -> None:
    assert complete(client, prompt="abc", echo=True).choices[0].text == (
        "abc" + complete(client, prompt="abc").choices[0].text
    )


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "max_tokens": (complete, {"max_tokens": 0}, "max_tokens"),
    "temperature": (chat, {"temperature": -1}, "temperature"),
    "top_p": (complete, {"top_p": 2}, "top_p"),
    "n": (chat, {"n": 0}, "n"),
    "logprobs": (complete, {"logprobs": 1000}, "logprobs"),
    "type": (complete, {"max_tokens": "many"}, "max_tokens"),
    "unknown": (complete, {"extra_body": {"top_kk": 1}}, "top_kk"),
    "too long": (complete, {"prompt": [1] * 5000}, "prompt"),
    "role": (chat, {"messages": [{"role": "nobody", "content": "x"}]}, "messages"),
    "no content": (chat, {"messages": [{"role": "user"}]}, "messages"),
}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("bad", BAD)
def test_a_bad_request_is_a_bad_request_error_that_names_the_field(client: OpenAI, bad: str, streams: bool) -> None:
    ask, fields, param = BAD[bad]
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, stream=streams, **fields)
    assert caught.value.param is not None and caught.value.param.startswith(param)
    assert caught.value.type == "invalid_request_error"


def test_an_unknown_model_is_a_not_found_error(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match=NAME) as caught:
        complete(client, model="gpt-9")
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


def test_the_clients_timeout_aborts_the_request(client: OpenAI, tiny_server: Server) -> None:
    with pytest.raises(openai.APITimeoutError):
        complete(client, max_tokens=900, timeout=0.1)
    tiny_server.wait_idle()
    assert complete(client).usage.completion_tokens == 12


@pytest.mark.parametrize("streams", [False, True])
def test_a_deadline_of_the_request_ends_it_with_its_reason(client: OpenAI, streams: bool) -> None:
    found = complete(client, max_tokens=900, stream=streams, extra_body=FULL | {"timeout": 0.05})
    choices = [choice for chunk in found for choice in chunk.choices] if streams else found.choices
    assert choices[-1].finish_reason == "abort"


@pytest.mark.parametrize("ask", [complete, chat])
def test_an_early_close_aborts_the_request(client: OpenAI, tiny_server: Server, ask: Any) -> None:
    before = tiny_server.snapshot()["totals"]["requests_finished_abort"]
    stream = ask(client, max_tokens=450, n=2, stream=True, temperature=1.0)
    next(iter(stream))
    stream.close()
    tiny_server.wait_idle()
    assert tiny_server.snapshot()["totals"]["requests_finished_abort"] == before + 1


def test_the_request_id_comes_back(client: OpenAI) -> None:
    raw = client.completions.with_raw_response.create(
        model=NAME, prompt="a", max_tokens=1, extra_headers={"X-Request-Id": "mine-1"}
    )
    assert raw.headers["x-request-id"] == "mine-1" and raw.parse().object == "text_completion"
