"""W31 over HTTP: a stream's usage comes once, before [DONE], only where asked for, and is that of a plain answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from nanolens.telemetry.events import SequencePreempted
from serve import Server, completion
from sse_wire import ends

PROMPT = [(i * 29 + 3) % 256 for i in range(10)]
COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
CASES: dict[str, dict[str, Any]] = {
    "length": {"max_tokens": 12},
    "n": {"max_tokens": 9, "n": 3, "temperature": 0.8, "seed": 5},
    "echo": {"max_tokens": 5, "echo": True},
}


def counts(usage: dict[str, Any]) -> list[int]:
    return [usage[name] for name in COUNTS]


def streamed(server: Server, body: dict[str, Any], include_usage: bool | None) -> list[dict[str, Any]]:
    options = {} if include_usage is None else {"stream_options": {"include_usage": include_usage}}
    with server.stream("/v1/completions", body | options) as stream:
        return stream.chunks()


def check(chunks: list[dict[str, Any]], expected: list[int]) -> None:
    """Exactly one chunk more than those with choices: the last one, and the only one with a usage."""
    assert chunks[-1]["choices"] == [] and counts(chunks[-1]["usage"]) == expected
    assert all(chunk["choices"] and chunk.get("usage") is None for chunk in chunks[:-1])


@pytest.mark.parametrize("case", CASES)
def test_a_stream_has_the_usage_of_the_plain_answer(tiny_server: Server, case: str) -> None:
    body = completion(PROMPT, **CASES[case])
    usage = tiny_server.complete(PROMPT, **CASES[case])["usage"]
    generated = CASES[case]["max_tokens"] * CASES[case].get("n", 1)
    assert counts(usage) == [len(PROMPT), generated, len(PROMPT) + generated]
    check(streamed(tiny_server, body, include_usage=True), counts(usage))


@pytest.mark.parametrize("include_usage", [False, None])
def test_without_the_option_there_is_none(tiny_server: Server, include_usage: bool | None) -> None:
    chunks = streamed(tiny_server, completion(PROMPT), include_usage)
    assert all(chunk["choices"] and chunk.get("usage") is None for chunk in chunks)


def test_it_is_the_same_for_chat(tiny_server: Server) -> None:
    body = completion(None, messages=[{"role": "user", "content": "Hi"}], stream_options={"include_usage": True})
    del body["prompt"]
    with tiny_server.stream("/v1/chat/completions", body) as stream:
        chunks = stream.chunks()
    plain = tiny_server.post("/v1/chat/completions", {name: body[name] for name in body if name != "stream_options"})
    assert counts(plain.json["usage"])[1] == 16
    check(chunks, counts(plain.json["usage"]))


def test_with_a_stop_string_every_generated_token_counts(tiny_server: Server) -> None:
    tokens = tiny_server.complete(PROMPT, max_tokens=24, logprobs=0)["choices"][0]["logprobs"]["tokens"]
    stop = next(token for token in tokens[6:] if len(token) == 1 and token.isascii())
    expected = tokens.index(stop) + 1
    plain = tiny_server.complete(PROMPT, max_tokens=24, stop=stop)
    assert plain["choices"][0]["finish_reason"] == "stop"
    assert counts(plain["usage"]) == [len(PROMPT), expected, len(PROMPT) + expected]
    chunks = streamed(tiny_server, completion(PROMPT, max_tokens=24, stop=stop), include_usage=True)
    check(chunks, counts(plain["usage"]))
    assert ends(chunks) == {0: "stop"}


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("w31"), num_blocks=26) as server:
        yield server


def test_with_preemptions_nothing_counts_twice(crowded: Server) -> None:
    found: dict[int, list[dict[str, Any]]] = {}

    def run(number: int) -> None:
        found[number] = streamed(crowded, completion([number, *PROMPT], max_tokens=60), include_usage=True)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert any(isinstance(event, SequencePreempted) for event in crowded.events())
    for chunks in found.values():
        check(chunks, [len(PROMPT) + 1, 60, len(PROMPT) + 61])
    assert len(found) == 4
