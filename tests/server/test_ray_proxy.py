"""What is around Ray's HTTP proxy: headers that it can't read, and answers that it leaves without an end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from uvicorn.config import HTTP_PROTOCOLS, WS_PROTOCOLS, Config
from uvicorn.protocols.http.h11_impl import H11Protocol

from nanolens.server.ray_proxy import Edge, middlewares
from nanolens.server.sse import DONE, event

TEXT = event({"choices": [{"text": "one"}]})


def head(status: int, kind: str) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": [(b"content-type", kind.encode())]}


def body(data: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


PLAIN, JSON = head(500, "text/plain"), head(200, "application/json")
STREAM = head(200, "text/event-stream; charset=utf-8")


def played(
    messages: list[dict[str, Any]],
    error: Exception | None = None,
    headers: tuple[tuple[bytes, bytes], ...] = (),
    path: str = "/v1/completions",
) -> tuple[list[dict[str, Any]], list[tuple[bytes, bytes]]]:
    """What reaches the client of a proxy that sends these messages, and then fails; and the headers that it sees."""
    sent: list[dict[str, Any]] = []
    seen: list[tuple[bytes, bytes]] = []

    async def proxy(scope: Any, receive: Any, send: Any) -> None:
        seen.extend(scope["headers"])
        for each in messages:
            await send(each)
        if error is not None:
            raise error

    async def send(message: Any) -> None:
        sent.append(dict(message))

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    asyncio.run(Edge(proxy)({"type": "http", "path": path, "headers": list(headers)}, receive, send))
    return sent, seen


def test_an_answer_with_an_end_is_passed_on_as_it_is() -> None:
    for messages in ([JSON, body(b"{}")], [STREAM, body(TEXT, True), body(DONE, True), body(b"")],
                     [head(503, "application/json"), body(b"{}")]):  # fmt: skip
        assert played(messages)[0] == messages


@pytest.mark.parametrize(
    ("messages", "error", "status", "code"),
    [
        ([PLAIN, body(b"Internal Server Error")], None, 503, "front_died"),
        ([], None, 503, "front_died"),
        ([], OSError("broken"), 500, "proxy_error"),
        ([head(408, "text/plain; charset=utf-8"), body(b"timed out")], None, 408, "proxy_refused"),
        ([head(429, "text/plain"), body(b"too many")], None, 429, "proxy_refused"),
        ([head(503, "text/plain"), body(b"unavailable")], None, 503, "proxy_refused"),
    ],
)
def test_what_is_not_answered_is_an_error_in_json_that_says_whose_fault_it_was(
    messages: list[dict[str, Any]], error: Exception | None, status: int, code: str
) -> None:
    (start, end), _ = played(messages, error)
    assert start["status"] == status and dict(start["headers"])[b"content-type"] == b"application/json"
    assert json.loads(end["body"])["error"]["code"] == code and not end["more_body"]


def test_what_the_proxy_says_of_itself_is_passed_on() -> None:
    messages = [head(503, "text/plain"), body(b"draining")]
    assert played(messages, path="/-/healthz")[0] == messages


@pytest.mark.parametrize(("error", "code"), [(None, "front_died"), (OSError("broken"), "proxy_error")])
def test_a_stream_that_breaks_off_ends_in_an_error_event(error: Exception | None, code: str) -> None:
    sent, _ = played([STREAM, body(TEXT, True)], error)
    found = b"".join(each.get("body", b"") for each in sent).split(b"\n\n")
    assert found[0] + b"\n\n" == TEXT and found[2] + b"\n\n" == DONE
    assert json.loads(found[1].removeprefix(b"data: "))["error"]["code"] == code
    assert [each["more_body"] for each in sent[1:]] == [True, False]


def test_half_of_a_plain_answer_is_left_as_it_is() -> None:
    with pytest.raises(OSError, match="gone"):
        played([JSON, body(b"{", True)], OSError("gone"))
    assert played([JSON, body(b"{", True)])[0] == [JSON, body(b"{", True)]


NO_LIMIT = (b"x-request-timeout-seconds", b"0")


def test_an_id_that_the_proxy_can_not_read_does_not_reach_it() -> None:
    good = ((b"x-request-id", b"mine"), (b"x-note", b"caf\xe9"))
    assert played([JSON, body(b"{}")], headers=(*good, (b"x-request-id", b"caf\xe9")))[1] == [*good, NO_LIMIT]


@pytest.mark.parametrize(
    "name",
    [b"x-request-timeout-seconds", b"x-request-disconnect-disabled", b"x-session-id", b"x_session_id",
     b"serve-multiplexed-model-id", b"serve_multiplexed_model_id"],
)  # fmt: skip
def test_no_client_gives_the_proxy_orders(name: bytes) -> None:
    assert played([JSON, body(b"{}")], headers=((name, b"1"),))[1] == [NO_LIMIT]


def test_http_is_read_as_by_one_server_whatever_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HTTP_PROTOCOLS, "auto", "a.parser:of_another_kind")
    monkeypatch.setitem(WS_PROTOCOLS, "auto", "web:sockets")
    middlewares()
    config = Config(Edge)
    config.load()
    assert (config.http_protocol_class, config.ws_protocol_class) == (H11Protocol, None)
