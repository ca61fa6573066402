"""Streams: every event parses, one end for each choice, usage where it is asked for, [DONE] last, errors told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from nanolens.engine.outputs import Delta
from nanolens.errors import EngineDead, RequestFailed
from nanolens.server.calls import Call
from nanolens.server.replies import joined
from nanolens.server.sse import DONE, EventStream, event
from served import ALWAYS_A, CHAT, COMPLETIONS, Served, events_of, serving, texts_of

USER = {"role": "user", "content": "hello"}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as found:
        yield found


@pytest.mark.parametrize("include_usage", [None, False, True])
@pytest.mark.parametrize(("path", "prompt"), [(COMPLETIONS, {"prompt": ["ab", "c"]}), (CHAT, {"messages": [USER]})])
def test_a_stream_tells_what_the_whole_answer_tells(
    served: Served, path: str, prompt: dict[str, Any], include_usage: bool | None
) -> None:
    body = prompt | {"n": 2, "max_tokens": 30, "seed": 5, "temperature": 1.2}
    whole = served.post(path, **body).json()
    options = {} if include_usage is None else {"stream_options": {"include_usage": include_usage}}
    chunks = served.chunks(path, **body, **options)
    frames = [{key: chunk[key] for key in ("id", "object", "created", "model")} for chunk in chunks]
    assert frames == [frames[0]] * len(frames)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    ends = [(choice["index"], choice["finish_reason"]) for choice in choices if choice["finish_reason"]]
    assert sorted(ends) == [(choice["index"], choice["finish_reason"]) for choice in whole["choices"]]
    for index, text in texts_of(chunks).items():
        own = whole["choices"][index]
        assert text == (own["text"] if path == COMPLETIONS else own["message"]["content"])
        assert [c["finish_reason"] is not None for c in choices if c["index"] == index].index(True) == sum(
            c["index"] == index for c in choices
        ) - 1  # nothing comes behind the end
    usages = [chunk for chunk in chunks if chunk.get("usage") is not None]
    assert len(usages) == bool(include_usage)
    if include_usage:
        assert usages == [chunks[-1]] and usages[0]["choices"] == [] and usages[0]["usage"] == whole["usage"]
    else:
        assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


def test_a_chat_stream_begins_with_the_role_of_each_choice(served: Served) -> None:
    chunks = served.chunks(CHAT, messages=[USER], n=2, max_tokens=3)
    assert [chunk["choices"][0]["delta"] for chunk in chunks[:2]] == [{"role": "assistant", "content": ""}] * 2
    assert [chunk["choices"][0]["index"] for chunk in chunks[:2]] == [0, 1]
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in chunks[2:])


def test_the_start_of_a_stop_string_is_never_sent(served: Served) -> None:
    chunks = served.chunks(COMPLETIONS, prompt="x", max_tokens=9, stop="AAA", **ALWAYS_A)
    assert texts_of(chunks) == {0: ""} and chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_log_probabilities_of_a_stream_are_those_of_the_whole(served: Served) -> None:
    body: dict[str, Any] = {"prompt": "x", "max_tokens": 12, "logprobs": 2, "seed": 4, "temperature": 1.1}
    whole = served.post(COMPLETIONS, **body).json()["choices"][0]["logprobs"]
    pieces = [chunk["choices"][0]["logprobs"] for chunk in served.chunks(COMPLETIONS, **body)]
    for name, values in whole.items():
        assert [value for piece in pieces if piece for value in piece[name]] == values


@pytest.mark.parametrize("logprobs", [None, 1])
def test_echo_comes_before_the_text(served: Served, logprobs: int | None) -> None:
    body: dict[str, Any] = {"prompt": ["say ", "x"], "echo": True, "max_tokens": 2, "logprobs": logprobs, **ALWAYS_A}
    whole = {choice["index"]: choice["text"] for choice in served.post(COMPLETIONS, **body).json()["choices"]}
    assert texts_of(served.chunks(COMPLETIONS, **body)) == whole == {0: "say AA", 1: "xAA"}


def test_a_refused_request_is_no_stream(served: Served) -> None:
    for body in ({"prompt": ["x", [999]]}, {"prompt": "x", "stop_token_ids": [264]}):
        response = served.post(COMPLETIONS, stream=True, **body)
        assert response.status_code == 400 and response.headers["content-type"] == "application/json"
    assert served.is_idle()


@pytest.mark.parametrize(
    ("error", "code"), [(RequestFailed("block 7 burns"), "request_failed"), (EngineDead("SIGKILL"), "engine_dead")]
)
def test_an_error_is_the_last_event_but_done(
    served: Served, monkeypatch: pytest.MonkeyPatch, error: Exception, code: str
) -> None:
    async def pieces(self: Call) -> AsyncIterator[tuple[int, Delta]]:
        yield 0, Delta(0, "some", [1])
        yield 0, Delta(0, "", [], "error")
        raise error

    monkeypatch.setattr(Call, "pieces", pieces)
    events = events_of(served.post(COMPLETIONS, prompt="x", stream=True, stream_options={"include_usage": True}))
    assert [list(each) == ["error"] for each in events] == [False, True]
    assert events[-1]["error"]["code"] == code and str(error) in events[-1]["error"]["message"]


def test_an_event_is_one_line_whatever_is_in_it() -> None:
    assert event({"text": "a\n\r\n\u2028\u0085"}).count(b"\n") == 2


def test_pieces_that_waited_are_joined_by_index() -> None:
    pieces = [Delta(0, "a", [1]), Delta(1, "x", [2]), Delta(0, "b", [3], "stop", "b"), Delta(1, "", [4])]
    assert joined(pieces) == [Delta(0, "ab", [1, 3], "stop", "b"), Delta(1, "x", [2, 4])]
    assert pieces[0] == Delta(0, "a", [1])


def sent_by(stream: EventStream, *, gone_after: int = 99, breaks_after: int = 99) -> list[bytes]:
    """What a client gets that goes away, or breaks, after so many messages."""
    bodies: list[bytes] = []

    async def main() -> None:
        gone, sent = asyncio.Event(), 0

        async def receive() -> dict[str, Any]:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal sent
            sent += 1
            if sent > breaks_after:
                raise OSError("connection reset")
            if sent > gone_after:
                gone.set()
                await asyncio.sleep(3600)  # the transport takes nothing more
            bodies.append(message.get("body", b""))

        await asyncio.wait_for(stream({"type": "http"}, receive, send), 10)

    asyncio.run(main())
    return bodies


def stream_of(count: int, closed: list[str]) -> EventStream:
    async def events() -> AsyncIterator[bytes]:
        for number in range(count):
            yield event({"n": number})
        yield DONE

    async def close() -> None:
        closed.append("closed")

    return EventStream(events(), close)


@pytest.mark.parametrize("ends", [{}, {"gone_after": 2}, {"breaks_after": 2}])
def test_a_stream_is_closed_once_however_it_ends(ends: dict[str, int]) -> None:
    closed: list[str] = []
    bodies = sent_by(stream_of(5, closed), **ends)
    assert closed == ["closed"]
    assert bodies[1] == event({"n": 0}) and (bodies[-2] == DONE) == (not ends)


def test_how_long_a_client_made_an_event_wait_is_told() -> None:
    waits: list[float] = []

    async def main() -> None:
        async def events() -> AsyncIterator[bytes]:
            yield DONE

        async def close() -> None:
            pass

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(3600)
            return {}

        async def send(message: Any) -> None:
            await asyncio.sleep(0.05 if message.get("body") else 0)

        await EventStream(events(), close, waits.append)({"type": "http"}, receive, send)

    asyncio.run(main())
    assert len(waits) == 1 and waits[0] >= 0.04


def test_a_wait_that_ends_in_a_broken_connection_is_told_too() -> None:
    waits: list[float] = []

    async def main() -> None:
        async def events() -> AsyncIterator[bytes]:
            yield DONE

        async def close() -> None:
            waits.append(-1)

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(3600)
            return {}

        async def send(message: Any) -> None:
            if message.get("body"):
                await asyncio.sleep(0.05)
                raise TimeoutError

        await EventStream(events(), close, waits.append)({"type": "http"}, receive, send)

    asyncio.run(main())
    assert len(waits) == 2 and waits[0] >= 0.04 and waits[1] == -1
