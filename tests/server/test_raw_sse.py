"""Streams as they are on the wire: every event parses, each choice ends exactly once, and [DONE] is the last event."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from serve import NAME, VOCAB_SIZE, Server, completion
from sse_wire import DONE, ends, parsed, texts

CHAT: dict[str, Any] = {
    "model": NAME, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 10, "temperature": 0,
    "ignore_eos": True,
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "completion": ("/v1/completions", completion("Hello"), 1),
    "completion, n": ("/v1/completions", completion("Hello", n=3, temperature=1.0, seed=1), 3),
    "completion, prompts": ("/v1/completions", completion([[1, 2], [3]], n=2), 4),
    "completion, usage": ("/v1/completions", completion("Hello", stream_options={"include_usage": True}), 1),
    "completion, logprobs": ("/v1/completions", completion("Hello", logprobs=2), 1),
    "completion, echo": ("/v1/completions", completion("Hello", echo=True), 1),
    "completion, one token": ("/v1/completions", completion("Hello", max_tokens=1), 1),
    "chat": ("/v1/chat/completions", CHAT, 1),
    "chat, n": ("/v1/chat/completions", CHAT | {"n": 2, "temperature": 1.0}, 2),
    "chat, usage": ("/v1/chat/completions", CHAT | {"stream_options": {"include_usage": True}}, 1),
    "chat, logprobs": ("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 2}, 1),
}


@pytest.fixture(autouse=True)
def ends_what_a_failed_test_leaves(tiny_server: Server) -> Iterator[None]:
    yield
    tiny_server.abort_all()


@pytest.mark.parametrize("case", CASES)
def test_every_event_parses_and_each_choice_ends_once(tiny_server: Server, case: str) -> None:
    path, body, count = CASES[case]
    with tiny_server.stream(path, body) as stream:
        assert stream.status == 200
        assert stream.headers["content-type"].startswith("text/event-stream")
        chunks = stream.chunks()
    assert sorted(ends(chunks)) == list(range(count)) and set(ends(chunks).values()) == {"length"}
    kind = "text_completion" if path == "/v1/completions" else "chat.completion.chunk"
    assert {(chunk["object"], chunk["model"]) for chunk in chunks} == {(kind, NAME)}
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    terminal = [chunk for chunk in chunks if any(choice["finish_reason"] for choice in chunk["choices"])]
    assert len(terminal) == count
    assert chunks[-1] is terminal[-1] or chunks[-1]["choices"] == []


@pytest.mark.parametrize("case", CASES)
def test_its_text_is_that_of_the_plain_answer(tiny_server: Server, case: str) -> None:
    path, body, _ = CASES[case]
    body = {name: value for name, value in body.items() if name != "stream_options"} | {"seed": 3}
    plain = tiny_server.post(path, body).json
    with tiny_server.stream(path, body) as stream:
        chunks = stream.chunks()
    assert texts(chunks) == {
        choice["index"]: choice["text"] if "text" in choice else choice["message"]["content"]
        for choice in plain["choices"]
    }


def test_no_cache_or_proxy_holds_a_stream_up(tiny_server: Server) -> None:
    with tiny_server.stream("/v1/completions", completion("a")) as stream:
        assert "no-cache" in stream.headers["cache-control"]
        assert "content-encoding" not in stream.headers
        list(stream.events())


def test_a_refused_stream_is_a_plain_answer(tiny_server: Server) -> None:
    with tiny_server.stream("/v1/completions", completion([VOCAB_SIZE])) as stream:
        assert (stream.status, stream.headers["content-type"]) == (400, "application/json")
        assert json.loads(stream.body())["error"]["param"] == "prompt"


def test_a_pause_ends_a_stream_and_a_resume_goes_on(tiny_server: Server) -> None:
    whole = tiny_server.complete("Hello", max_tokens=14)["choices"][0]["text"]
    headers = {"X-Request-Id": "paused-1"}
    with tiny_server.stream("/v1/completions", completion("Hello", max_tokens=6, on_stop="pause"), headers) as stream:
        first = stream.chunks()
    assert ends(first) == {0: "pause"}
    resume = {"max_tokens": 8}
    with tiny_server.stream("/v1/requests/paused-1/resume", resume) as stream:
        assert stream.status == 200, stream.body()
        second = stream.chunks()
    assert ends(second) == {0: "pause"}
    assert whole.startswith(texts(first)[0] + texts(second)[0])  # a pause holds back what may be half a character
    finished = tiny_server.post("/v1/requests/paused-1/finish", {})
    assert (finished.status, finished.json["choices"][0]["text"]) == (200, whole)
    tiny_server.wait_idle()
    assert tiny_server.post("/v1/requests/paused-1/resume", resume).status == 404


@pytest.mark.parametrize("name", ["%C3%8E%E2%82%AC", "%F3%9E%87%B3", "a%0D%0Ab%3A%20c", "%00"])
def test_a_path_that_names_what_no_header_can_hold_names_nothing(name: str, tiny_server: Server) -> None:
    for what in ("finish", "resume"):
        answer = tiny_server.post(f"/v1/requests/{name}/{what}", {})
        assert (answer.status, answer.json["error"]["type"]) == (404, "invalid_request_error"), answer.body
        assert "x-nanolens-request-id" not in answer.headers


def test_an_abort_from_outside_ends_a_stream(tiny_server: Server) -> None:
    headers = {"X-Request-Id": "aborted-1"}
    with tiny_server.stream("/v1/completions", completion("Hello", max_tokens=900), headers) as stream:
        events = stream.events()
        first = next(events)
        (sequence,) = tiny_server.snapshot()["sequences"]
        assert tiny_server.post(f"/debug/sequences/{sequence['seq']}/abort", {}).status == 200
        rest = list(events)
    assert rest[-1] == DONE and ends(parsed([first, *rest])) == {0: "abort"}
