"""Requests that pause: for their client, who resumes and finishes them, or by an operator, unseen by the client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from fake_core import FakeAsyncEngine
from nanolens.server.state import Limits
from served import ALWAYS_A, CHAT, COMPLETIONS, Served, answer_of, error_of, events_of, serving, texts_of


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as found:
        yield found


@pytest.fixture
def slow() -> Iterator[Served]:
    """A server whose engine takes 20 ms for a step, and speaks no text."""
    with serving(FakeAsyncEngine("fake:0.02")) as found:
        yield found


def resume(served: Served, name: str, **body: Any) -> httpx.Response:
    return served.run(served.client.post(f"/v1/requests/{name}/resume", json=body))


def finish(served: Served, name: str) -> httpx.Response:
    return served.run(served.client.post(f"/v1/requests/{name}/finish"))


@pytest.mark.parametrize("stream", [False, True])
def test_a_paused_request_goes_on_as_if_it_had_never_paused(served: Served, stream: bool) -> None:
    params: dict[str, Any] = {"prompt": "hello", "temperature": 0, "ignore_eos": True}
    whole = served.post(COMPLETIONS, max_tokens=24, **params).json()["choices"][0]["text"]
    first = served.post(COMPLETIONS, max_tokens=10, on_stop="pause", stream=stream, **params)
    name = first.headers["x-request-id"]
    second = resume(served, name, max_tokens=14, stream=stream)
    if stream:
        text = texts_of(events_of(first))[0] + texts_of(events_of(second))[0]
        assert events_of(first)[-1]["choices"][0]["finish_reason"] == "pause"
        ended = answer_of(finish(served, name))
        assert ended["choices"][0]["text"] == whole
        assert whole.startswith(text) and len(whole) - len(text) <= 3  # half a character was held back
    else:
        choice = answer_of(first)["choices"][0]
        assert (choice["finish_reason"], choice["pause_reason"]) == ("pause", "length")
        ended = answer_of(finish(served, name))
        assert ended["choices"][0]["text"] == whole and ended["id"] == name
        assert answer_of(second)["usage"]["completion_tokens"] == 14
    assert ended["usage"]["completion_tokens"] == 24 and ended["choices"][0]["finish_reason"] == "length"
    assert served.is_idle()


def test_what_is_appended_is_read_before_it_goes_on(served: Served) -> None:
    params: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_tokens": 8}
    first = served.complete("hello", on_stop="pause", **params)
    second = answer_of(resume(served, first["id"], append=" and", max_tokens=8))
    answer_of(finish(served, first["id"]))
    again = served.complete("hello", on_stop="pause", **params)
    third = answer_of(resume(served, again["id"], append=list(b" and"), max_tokens=8))
    answer_of(finish(served, again["id"]))
    assert second["choices"] == third["choices"]
    alone = served.complete("hello", **params | {"max_tokens": 16})["choices"][0]["text"]
    assert first["choices"][0]["text"] + second["choices"][0]["text"] != alone


def test_a_conversation_keeps_its_form_and_its_usage_is_the_turns(served: Served) -> None:
    first = served.chat(on_stop="pause", max_tokens=3, n=2, **ALWAYS_A)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    response = resume(served, first["id"], append="x", max_tokens=4, **options)
    chunks = events_of(response)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert texts_of(chunks) == {0: "AAAA", 1: "AAAA"}
    assert chunks[-1]["usage"]["completion_tokens"] == 8
    whole = answer_of(finish(served, first["id"]))
    assert [choice["message"]["content"] for choice in whole["choices"]] == ["A" * 7] * 2


def test_several_prompts_pause_under_numbered_names(served: Served) -> None:
    first = served.complete(["x", "y"], on_stop="pause", max_tokens=2, **ALWAYS_A)
    assert [choice["finish_reason"] for choice in first["choices"]] == ["pause", "pause"]
    for place in range(2):
        answer = answer_of(finish(served, f"{first['id']}-{place}"))
        assert [choice["text"] for choice in answer["choices"]] == ["AA"]
    assert served.is_idle()


def test_log_probabilities_of_a_turn_are_its_own(served: Served) -> None:
    first = served.complete("x", on_stop="pause", max_tokens=2, logprobs=1, echo=True, **ALWAYS_A)
    turn = answer_of(resume(served, first["id"], max_tokens=3))["choices"][0]
    assert turn["logprobs"]["tokens"] == ["A"] * 3 and turn["logprobs"]["text_offset"] == [0, 1, 2]
    answer_of(finish(served, first["id"]))


def test_what_is_not_paused_cant_go_on(served: Served) -> None:
    for response in (resume(served, "nobody"), finish(served, "nobody")):
        assert error_of(response, 404)["code"] == "request_not_found"
    ended = served.complete(max_tokens=1)["id"]
    assert error_of(finish(served, ended), 404)["param"] == "request_id"


@pytest.mark.parametrize(("field", "value"), [("append", ""), ("append", [264]), ("append", 5), ("max_tokens", 0)])
def test_a_resume_that_is_refused_changes_nothing(served: Served, field: str, value: Any) -> None:
    first = served.complete("x", on_stop="pause", max_tokens=2, **ALWAYS_A)
    assert error_of(resume(served, first["id"], **{field: value}))["param"] == field
    assert answer_of(resume(served, first["id"], max_tokens=1))["choices"][0]["text"] == "A"
    answer_of(finish(served, first["id"]))


def test_a_request_that_runs_is_in_use(slow: Served) -> None:
    async def work() -> httpx.Response:
        body = {"model": "tiny", "prompt": [1, 2], "max_tokens": 40}
        running = asyncio.create_task(slow.client.post(COMPLETIONS, json=body, headers={"X-Request-Id": "mine"}))
        await asyncio.sleep(0.2)
        answer = await slow.client.post("/v1/requests/mine/finish")
        await running
        return answer

    assert error_of(slow.run(work()), 409)["code"] == "request_not_paused"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_an_operators_pause_holds_the_answer_until_the_resume(slow: Served, stream: bool, path: str) -> None:
    prompt = {"prompt": [1, 2]} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "x"}]}

    async def work() -> tuple[httpx.Response, bool]:
        body = {"model": "tiny", "max_tokens": 20, "stream": stream, "n": 2, **prompt}
        answer = asyncio.create_task(slow.client.post(path, json=body, headers={"X-Request-Id": "mine"}))
        await asyncio.sleep(0.2)
        assert await slow.engine.pause("mine")
        await asyncio.sleep(0.3)
        was_held = not answer.done()
        await slow.state.replies["mine"].resume()
        return await answer, was_held

    response, was_held = slow.run(work())
    choices = [choice for chunk in events_of(response) for choice in chunk["choices"]] if stream else None
    choices = choices or answer_of(response)["choices"]
    ends = [(choice["index"], choice["finish_reason"]) for choice in choices if choice["finish_reason"]]
    assert was_held and sorted(ends) == [(0, "length"), (1, "length")]
    assert slow.is_idle()


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_aborted_while_an_operator_holds_it_ends(slow: Served, stream: bool) -> None:
    async def work() -> httpx.Response:
        body = {"model": "tiny", "prompt": [1, 2], "max_tokens": 40, "stream": stream}
        answer = asyncio.create_task(slow.client.post(COMPLETIONS, json=body, headers={"X-Request-Id": "mine"}))
        await asyncio.sleep(0.2)
        await slow.engine.pause("mine")
        await asyncio.sleep(0.1)
        await slow.engine.abort("mine")
        return await answer

    response = slow.run(work())
    choice = events_of(response)[-1]["choices"][0] if stream else answer_of(response)["choices"][0]
    assert choice["finish_reason"] == "abort" and slow.is_idle()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", [[1, 2], [[1, 2], [3, 4]]])
def test_a_deadline_ends_what_is_under_way(slow: Served, stream: bool, prompt: Any) -> None:
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": 60, "timeout": 0.3, "n": 2}
    response = slow.post(COMPLETIONS, stream=stream, **body)
    choices = [c for chunk in events_of(response) for c in chunk["choices"]] if stream else None
    choices = choices or answer_of(response)["choices"]
    ends = [(choice["finish_reason"], choice["stop_reason"]) for choice in choices if choice["finish_reason"]]
    assert ends == [("abort", "timeout")] * (2 if prompt == [1, 2] else 4)
    assert slow.is_idle()


def test_a_deadline_that_is_over_at_once_ends_a_request_too(slow: Served) -> None:
    answer = answer_of(slow.post(COMPLETIONS, prompt=[1, 2], max_tokens=60, timeout=1e-9))
    assert answer["choices"][0]["finish_reason"] == "abort" and slow.is_idle()


def test_the_servers_deadline_is_the_longest() -> None:
    limits = Limits(max_timeout_s=2.0)
    assert [limits.timeout_s(asked) for asked in (None, 1.0, 5.0)] == [2.0, 1.0, 2.0]
    assert Limits().timeout_s(None) is None


def test_several_prompts_get_another_name_where_one_of_their_names_is_taken(slow: Served) -> None:
    async def main() -> tuple[httpx.Response, httpx.Response]:
        body: dict[str, Any] = {"model": "tiny", "prompt": [5], "max_tokens": 40}
        other = asyncio.create_task(slow.client.post(COMPLETIONS, json=body, headers={"X-Request-Id": "m-1"}))
        while not slow.engine.has_request("m-1"):
            await asyncio.sleep(0.01)
        several = body | {"prompt": [[1], [2], [3]], "max_tokens": 2}
        mine = await slow.client.post(COMPLETIONS, json=several, headers={"X-Request-Id": "m"})
        return mine, await other

    mine, other = slow.run(main())
    assert len(answer_of(mine)["choices"]) == 3 and answer_of(mine)["id"].startswith("cmpl-")
    assert answer_of(other)["id"] == "m-1" and slow.is_idle()


def test_names_of_several_prompts_are_taken_before_they_are_with_the_engine(slow: Served) -> None:
    assert slow.state.take_name("m", COMPLETIONS, 3) == "m"
    assert slow.state.free_name("m-2", COMPLETIONS) != "m-2" and slow.state.free_name("m-3", COMPLETIONS) == "m-3"
    slow.state.drop_name("m", 3)
    assert slow.state.free_name("m", COMPLETIONS, 3) == "m"
