"""W25 over HTTP: each bad request gets a 400 that names the field, beside a healthy stream that never notices."""

from __future__ import annotations

from typing import Any

import pytest

from metric_runs import key
from nanolens.telemetry.events import RequestRefused
from serve import NAME, VOCAB_SIZE, Server, completion
from sse_wire import ends, parsed, texts

HEALTHY = {"temperature": 0.9, "seed": 7, "max_tokens": 48}
PROMPT = [(i * 31 + 5) % 256 for i in range(10)]
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"

BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "bias": (COMPLETIONS, completion([1], logit_bias={str(VOCAB_SIZE): 5}), "logit_bias"),
    "stop id": (COMPLETIONS, completion([1], stop_token_ids=[VOCAB_SIZE + 7]), "stop_token_ids"),
    "negative": (COMPLETIONS, completion([-1]), "prompt"),
    "beyond": (COMPLETIONS, completion([VOCAB_SIZE]), "prompt"),
    "no ids": (COMPLETIONS, completion([]), "prompt"),
    "no text": (COMPLETIONS, completion(""), "prompt"),
    "no messages": (CHAT, {"model": NAME, "messages": []}, "messages"),
}


@pytest.fixture(scope="module")
def alone(tiny_server: Server) -> str:
    text: str = tiny_server.complete(PROMPT, **HEALTHY)["choices"][0]["text"]
    return text


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("bad", BAD)
def test_a_400_names_the_field_and_the_stream_goes_on(
    bad: str, streams: bool, tiny_server: Server, alone: str
) -> None:
    server = tiny_server
    path, body, field = BAD[bad]
    with server.stream(COMPLETIONS, completion(PROMPT, **HEALTHY)) as stream:
        events = stream.events()
        first = next(events)
        answer = server.post(path, body | {"stream": streams})
        assert (answer.status, answer.error["param"], answer.error["type"]) == (400, field, "invalid_request_error")
        assert field in answer.error["message"]
        assert server.get("/health").status == 200
        snapshot = server.snapshot()
        assert not snapshot["waiting"] and len(snapshot["sequences"]) <= 1  # the healthy one, if it still runs
        chunks = parsed([first, *events])
    assert texts(chunks) == {0: alone} and ends(chunks) == {0: "length"}


def test_none_of_them_is_in_the_waiting_gauge(tiny_server: Server) -> None:
    server = tiny_server
    server.wait_idle()
    for path, body, _ in BAD.values():
        assert server.post(path, body).status == 400
    server.wait_until(lambda: _refused(server) == _recorded(server), "counted in a scrape")
    found = server.metrics()
    for status in ("WAITING", "RUNNING", "PAUSED"):
        assert found[key("sequences", status=status)] == 0


def _recorded(server: Server) -> int:
    return sum(isinstance(event, RequestRefused) for event in server.events())


def _refused(server: Server) -> float:
    return sum(value for (name, _), value in server.metrics().items() if name == "nanolens_refused_requests_total")
