"""Answers as a client reads them: events cut anywhere, framing, and what no answer may hold."""

from __future__ import annotations

import asyncio

import pytest

from fake_openai import DONE, END, STREAM_HEAD, chunk, event, piece, usage
from nanolens.benchmarks.serve_http import Broken, Exchange, Target
from nanolens.benchmarks.serve_stream import EventSplitter, Reply
from nanolens.errors import InvalidConfig

GOOD = piece("a", "Hel") + piece("a", "lo", "stop") + usage("a", 3, 2) + DONE


def read(*parts: bytes, is_stream: bool = True, close_after: int | None = None) -> Reply:
    """A reply whose parts came at 1, 2, ... ns."""
    reply = Reply(is_stream, close_after)
    for now, part in enumerate(parts, 1):
        if reply.take(part, now):
            break
    reply.end(len(parts))
    return reply


def exchanged(*parts: bytes, closes: bool = False) -> tuple[Exchange, bytes]:
    """An exchange to which a server writes `parts`, and the body that it took."""
    taken: list[bytes] = []

    async def main() -> Exchange:
        exchange = Exchange(b"", lambda data, now: bool(taken.append(data)))
        for part in parts:
            exchange.data_received(part)
        if closes:
            exchange.connection_lost(None)
        if exchange.ended.done():
            exchange.ended.exception()
        return exchange

    return asyncio.run(main()), b"".join(taken)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_events_are_the_same_wherever_the_bytes_are_cut(size: int, newline: bytes) -> None:
    text = b': hello\n\ndata: {"a": 1}\n\nevent: x\ndata: one\ndata:two\nid: 3\n\ndata: [DONE]\n\n'
    text = text.replace(b"\n", newline)
    splitter = EventSplitter()
    found = [each for at in range(0, len(text), size) for each in splitter.feed(text[at : at + size])]
    assert found == [b'{"a": 1}', b"one\ntwo", b"[DONE]"]
    assert splitter.rest == b""


def test_an_answer_has_its_text_times_usage_and_reason() -> None:
    reply = read(piece("a", "Hel"), piece("a", "lo") + piece("a", "!"), piece("a", "", "stop"), usage("a", 3, 4) + DONE)
    assert (reply.text, reply.times, reply.last_t) == ("Hello!", [1, 2, 2], 3)
    assert (reply.usage, reply.finish_reasons, reply.ids, reply.faults) == ((3, 4), ["stop"], {"a"}, [])


def test_a_role_alone_is_no_text() -> None:
    role = event({"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    said = event({"id": "c", "choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]})
    reply = read(role, said, DONE)
    assert (reply.text, reply.times, reply.faults) == ("Hi", [2], [])


def test_a_whole_answer_is_read_without_events() -> None:
    body = b'{"id": "a", "choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}'
    reply = read(body[:20], body[20:], is_stream=False)
    assert (reply.text, reply.finish_reasons, reply.faults) == ("Hi", ["stop"], [])


def test_the_client_leaves_after_so_many_pieces() -> None:
    reply = read(piece("a", "x"), piece("a", "y"), piece("a", "z"), close_after=2)
    assert (reply.text, reply.was_left, reply.faults) == ("xy", True, [])


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (piece("a", "x", "stop"), "ended without [DONE]"),
        (piece("a", "x") + DONE, "0 finish reasons"),
        (piece("a", "x", "stop") + piece("a", "", "stop") + DONE, "2 finish reasons"),
        (piece("a", "x", "stop") + piece("a", "y") + DONE, "text after the finish reason"),
        (GOOD + piece("a", "y"), "an event after [DONE]"),
        (piece("a", "x") + piece("b", "y", "stop") + DONE, "chunks of several answers: a, b"),
        (b"data: {broken\n\n" + GOOD, "no answer of the API"),
        (GOOD + b"data: half", "half an event"),
        (b"", "an empty body"),
    ],
)
def test_what_no_stream_may_hold_is_named(body: bytes, fault: str) -> None:
    assert any(fault in each for each in read(*([body] if body else [])).faults)


def test_an_error_event_has_its_message() -> None:
    reply = read(piece("a", "x"), event({"error": {"message": "the engine has ended"}}), DONE)
    assert (reply.error, reply.faults) == ("the engine has ended", [])


@pytest.mark.parametrize("size", [1, 5, 10_000])
def test_a_chunked_body_is_read_wherever_it_is_cut(size: int) -> None:
    data = STREAM_HEAD + chunk(b"Hello") + chunk(b", world") + END
    exchange, body = exchanged(*(data[at : at + size] for at in range(0, len(data), size)))
    assert (exchange.status, body, exchange.ended.done()) == (200, b"Hello, world", True)


def test_a_body_with_a_length_ends_there() -> None:
    exchange, body = exchanged(b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\nno", b"ne")
    assert (exchange.status, body, exchange.ended.done()) == (404, b"none", True)


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    exchange, body = exchanged(b"HTTP/1.0 200 OK\r\n\r\nall", closes=True)
    assert (body, exchange.ended.exception()) == (b"all", None)


@pytest.mark.parametrize(
    ("parts", "closes", "kind", "message"),
    [
        ((STREAM_HEAD, chunk(b"x")), True, "disconnected", "closed after status 200"),
        ((), True, "disconnected", "closed before a response"),
        ((b"SSH-2.0-hello\r\n\r\n",), False, "malformed", "begins with 'SSH-2.0-hello'"),
        ((STREAM_HEAD, b"zz\r\nx\r\n"), False, "malformed", "no HTTP"),
    ],
)
def test_an_exchange_that_breaks_says_how(parts: tuple[bytes, ...], closes: bool, kind: str, message: str) -> None:
    exchange, _ = exchanged(*parts, closes=closes)
    error = exchange.ended.exception()
    assert isinstance(error, Broken)
    assert error.kind == kind and message in str(error)


def test_requests_carry_the_key_and_an_id() -> None:
    target = Target.parse("http://127.0.0.1:8000/v1/", "secret-key")
    text = target.request("POST", "/v1/completions", b"{}", "r-1")
    assert text.startswith(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:8000\r\n")
    assert text.endswith(b"\r\n\r\n{}")
    for line in (b"Authorization: Bearer secret-key", b"X-Request-Id: r-1", b"Content-Length: 2"):
        assert line + b"\r\n" in text


@pytest.mark.parametrize("url", ["ftp://a", "http://", "http://a:port", "http://a:99999", "http://a/?q=1"])
def test_what_is_no_server_is_refused(url: str) -> None:
    with pytest.raises(InvalidConfig, match="URL"):
        Target.parse(url)
