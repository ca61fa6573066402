"""What is around Ray's HTTP proxy: headers that it can't read, and answers that it leaves without an end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from nanolens.server.ray_proxy import Edge
from nanolens.server.sse import DONE, event

TEXT = event({"choices": [{"text": "one"}]})


def head(status: int, kind: str) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": [(b"content-type", kind.encode())]}


def body(data: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


PLAIN, JSON = head(500, "text/plain"), head(200, "application/json")
STREAM = head(200, "text/event-stream; charset=utf-8")


def played(
    messages: list[dict[str, Any]], error: Exception | None = None, headers: tuple[tuple[bytes, bytes], ...] = ()
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

    asyncio.run(Edge(proxy)({"type": "http", "headers": list(headers)}, receive, send))
    return sent, seen


def test_an_answer_with_an_end_is_passed_on_as_it_is() -> None:
    for messages in ([JSON, body(b"{}")], [STREAM, body(TEXT, True), body(DONE, True), body(b"")],
                     [head(503, "application/json"), body(b"{}")]):  # fmt: skip
        assert played(messages)[0] == messages


@pytest.mark.parametrize(
    ("messages", "error"),
    [([PLAIN, body(b"Internal Server Error")], None), ([], OSError("gone")), ([], None)],
)
def test_a_front_that_is_gone_before_the_answer_is_an_error_in_json(
    messages: list[dict[str, Any]], error: Exception | None
) -> None:
    (start, end), _ = played(messages, error)
    assert start["status"] == 503 and dict(start["headers"])[b"content-type"] == b"application/json"
    assert json.loads(end["body"])["error"]["code"] == "front_died" and not end["more_body"]


@pytest.mark.parametrize("error", [None, OSError("gone")])
def test_a_stream_that_breaks_off_ends_in_an_error_event(error: Exception | None) -> None:
    sent, _ = played([STREAM, body(TEXT, True)], error)
    found = b"".join(each.get("body", b"") for each in sent).split(b"\n\n")
    assert found[0] + b"\n\n" == TEXT and found[2] + b"\n\n" == DONE
    assert json.loads(found[1].removeprefix(b"data: "))["error"]["code"] == "front_died"
    assert [each["more_body"] for each in sent[1:]] == [True, False]


def test_half_of_a_plain_answer_is_left_as_it_is() -> None:
    with pytest.raises(OSError, match="gone"):
        played([JSON, body(b"{", True)], OSError("gone"))
    assert played([JSON, body(b"{", True)])[0] == [JSON, body(b"{", True)]


def test_headers_that_the_proxy_can_not_read_do_not_reach_it() -> None:
    good = ((b"x-request-id", b"mine"), (b"x-note", b"caf\xe9"))
    bad = ((b"x-request-id", b"caf\xe9"), (b"x-session-id", b"\xff"), (b"serve_multiplexed_model_id", b"\xff"))
    assert played([JSON, body(b"{}")], headers=good + bad)[1] == list(good)
