"""A call passed to replicas: what is tried elsewhere, what the client gets once something has reached it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nanolens.server.fleet_messages import HttpCall, Report
from nanolens.server.fleet_metrics import RouterMetrics
from nanolens.server.fleet_relay import MAX_TRIES, Attempt, Elsewhere, Relay, kind_of
from nanolens.server.fleet_spans import RouterSpan
from nanolens.server.fleet_view import FleetView
from nanolens.server.sse import DONE, event

GONE, HANGS = object(), object()
LOST = event({"error": {"message": "m", "type": "server_error", "param": None, "code": "engine_dead"}})
ROLE = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
STREAM_HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}


def text(words: str) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": words}, "finish_reason": None}]})


def head(status: int = 200) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]}


def body(data: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


def stream(*events: bytes) -> list[Any]:
    return [STREAM_HEAD, *(body(each, True) for each in events), body(b"")]


class Replicas:
    """Answers from a list, one a try; GONE in one is the replica's end."""

    def __init__(self, *answers: list[Any], names: tuple[str, ...] = ("a", "b")) -> None:
        self.answers, self.names = list(answers), names
        self.asked: list[HttpCall] = []
        self.cancelled = self.ended = 0
        self.sent: list[dict[str, Any]] = []
        view = FleetView()
        view.update(names)
        view.take(Report(names[0]))
        self.metrics = RouterMetrics(view)
        self.span = RouterSpan.begin(None, "r")

    def ask(self, call: HttpCall) -> Attempt:
        self.asked.append(call)
        call.route.replica = next((name for name in self.names if name not in call.avoid), self.names[0])
        call.route.reason = "load"
        answer = self.answers.pop(0)

        async def messages() -> AsyncIterator[list[dict[str, Any]]]:
            for each in answer:
                if each is GONE:
                    raise Elsewhere("gone")
                if each is HANGS:
                    await asyncio.Event().wait()
                yield [each]

        def cancel() -> None:
            self.cancelled += 1

        def end() -> None:
            self.ended += 1

        return Attempt(messages(), cancel, end)

    async def send(self, message: Any) -> None:
        self.sent.append(dict(message))

    def run(self, call: HttpCall | None = None) -> bytes:
        relay = Relay(
            self.ask, self.send, lambda tried: bool(set(self.names) - tried), self.metrics, self.span
        )
        asyncio.run(relay.run(call or HttpCall("POST", "/v1/completions", generates=True)))
        assert self.cancelled == len(self.asked) - relay.has_ended and self.ended == len(self.asked)
        heads = [each for each in self.sent if each["type"] == "http.response.start"]
        assert len(heads) == 1 and self.sent[0] is heads[0]
        assert [each.get("more_body", False) for each in self.sent[1:]].count(False) == 1
        return b"".join(each.get("body", b"") for each in self.sent)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])


def test_an_answer_is_passed_on_as_it_is() -> None:
    replicas = Replicas(stream(ROLE, text("one"), DONE))
    assert replicas.run() == ROLE + text("one") + DONE
    assert replicas.metrics.routed == {("a", "load"): 1}


def test_a_request_that_waited_at_a_replica_that_died_is_answered_by_another() -> None:
    replicas = Replicas([GONE], [head(), body(b"{}")])
    assert (replicas.run(), replicas.status) == (b"{}", 200)
    assert [(call.attempt, call.avoid) for call in replicas.asked] == [(1, frozenset()), (2, frozenset("a"))]
    assert replicas.metrics.retried == {"a": 1} and not replicas.metrics.broken
    assert replicas.metrics.routed == {("b", "load"): 1}
    assert replicas.span.tries == [("a", "gone")] and not replicas.span.error


def test_a_stream_that_has_only_its_openings_goes_on_elsewhere_without_repeating_them() -> None:
    replicas = Replicas([STREAM_HEAD, body(ROLE, True), GONE], stream(ROLE, text("one"), DONE))
    assert replicas.run() == ROLE + text("one") + DONE


@pytest.mark.parametrize("before", [[], [body(ROLE, True)], [body(ROLE, True), body(LOST, True)]])
def test_the_head_of_a_stream_is_that_of_the_replica_that_gives_its_text(before: list[Any]) -> None:
    first, second = ({**STREAM_HEAD, "headers": [*STREAM_HEAD["headers"], (b"x-nanolens-replica", name)]} for name in
                     (b"a", b"b"))  # fmt: skip
    replicas = Replicas([first, *before, GONE], [second, *stream(ROLE, text("one"), DONE)[1:]])
    assert replicas.run() == ROLE + text("one") + DONE
    assert replicas.sent[0] == second


def test_a_stream_waits_for_its_first_text_and_no_longer() -> None:
    replicas = Replicas([STREAM_HEAD, body(ROLE, True), HANGS])
    relay = Relay(replicas.ask, replicas.send, lambda tried: True, replicas.metrics, replicas.span)

    async def main(call: HttpCall) -> int:
        task = asyncio.create_task(relay.run(call))
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return len(replicas.sent)

    assert asyncio.run(main(HttpCall("POST", "/v1/completions", generates=True))) == 0
    replicas.answers.append([STREAM_HEAD, body(text("one"), True), HANGS])
    assert asyncio.run(main(HttpCall("POST", "/v1/completions", generates=True))) == 2


def test_a_stream_that_only_one_replica_can_give_is_not_held_back() -> None:
    replicas = Replicas([STREAM_HEAD, GONE])
    events = replicas.run(HttpCall("POST", "/v1/requests/x/resume", pinned="a"))
    assert replicas.sent[0] == STREAM_HEAD and b"replica_died" in events and len(replicas.asked) == 1


def test_a_stream_that_has_text_ends_in_an_error_event() -> None:
    replicas = Replicas([STREAM_HEAD, body(text("one"), True), GONE])
    events = replicas.run().split(b"\n\n")
    assert events[0] + b"\n\n" == text("one") and events[2] + b"\n\n" == DONE
    error = json.loads(events[1].removeprefix(b"data: "))["error"]
    assert error["code"] == "replica_died" and "in the middle" in error["message"]
    assert replicas.metrics.broken == {"a": 1} and "gone" in replicas.span.error


def test_a_stream_that_breaks_off_without_an_end_counts_as_gone() -> None:
    replicas = Replicas([STREAM_HEAD, body(text("one"), True)])
    assert b"replica_died" in replicas.run()


def test_an_engine_that_died_before_it_generated_is_left_for_another() -> None:
    replicas = Replicas(stream(ROLE, LOST, DONE), stream(ROLE, text("one"), DONE))
    assert replicas.run() == ROLE + text("one") + DONE


@pytest.mark.parametrize("answer", [
    stream(ROLE, text("one"), LOST, DONE),
    [head(503), body(LOST.removeprefix(b"data: "))],
])  # fmt: skip
def test_an_answer_that_ends_as_the_engine_is_gone_is_broken(answer: list[Any]) -> None:
    replicas = Replicas(answer, names=("a",))
    assert b"engine_dead" in replicas.run()
    assert replicas.metrics.broken == {"a": 1} and replicas.span.error == "replica a: engine_dead"


def test_other_errors_break_no_answer() -> None:
    late = event({"error": {"message": "m", "type": "server_error", "param": None, "code": "timeout"}})
    replicas = Replicas(stream(ROLE, text("one"), late, DONE))
    replicas.run()
    assert not replicas.metrics.broken and not replicas.span.error


def test_the_id_that_a_request_goes_by_at_its_replica_is_told() -> None:
    told: list[str] = []
    answer = [{**head(), "headers": [(b"x-request-id", b"mine"), (b"x-nanolens-request-id", b"cmpl-1")]}, body(b"{}")]
    replicas = Replicas(answer)
    relay = Relay(replicas.ask, replicas.send, lambda tried: True, replicas.metrics, replicas.span,
                  told.append)  # fmt: skip
    asyncio.run(relay.run(HttpCall("POST", "/v1/completions", generates=True)))
    assert told == ["cmpl-1"]


def test_where_a_request_went_is_known_though_its_client_left_before_the_answer() -> None:
    replicas = Replicas([HANGS])

    async def leave() -> None:
        relay = Relay(replicas.ask, replicas.send, lambda tried: True, replicas.metrics, replicas.span)
        task = asyncio.create_task(relay.run(HttpCall("POST", "/v1/completions", generates=True)))
        while not replicas.asked:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(leave())
    assert (replicas.span.attributes["nanolens.replica"], replicas.metrics.routed) == ("a", {("a", "load"): 1})
    assert replicas.ended == 1


@pytest.mark.parametrize("status", [429, 503])
def test_a_replica_without_room_is_left_for_another(status: int) -> None:
    replicas = Replicas([head(status), body(b"full")], [head(), body(b"{}")])
    assert (replicas.run(), replicas.status) == (b"{}", 200)
    assert replicas.metrics.routed == {("b", "load"): 1}


def test_where_no_replica_is_left_its_refusal_is_the_answer() -> None:
    replicas = Replicas([head(429), body(b"full")], [head(429), body(b"full too")])
    assert (replicas.run(), replicas.status) == (b"full too", 429)


def test_a_refusal_for_what_was_asked_is_not_tried_elsewhere() -> None:
    replicas = Replicas([head(400), body(b"wrong")])
    assert (replicas.run(), replicas.status) == (b"wrong", 400)


def test_a_call_that_no_replica_answers_gets_an_error() -> None:
    replicas = Replicas(*([GONE] for _ in range(MAX_TRIES)))
    error = json.loads(replicas.run())["error"]
    assert (replicas.status, error["code"]) == (503, "replica_died")


def test_half_of_a_plain_answer_breaks_the_connection() -> None:
    replicas = Replicas([head(), body(b"{", True), GONE])
    with pytest.raises(RuntimeError, match="replica a is gone"):
        replicas.run()


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (ROLE, "opening"),
        (text("x"), "text"),
        (event({"choices": [{"index": 0, "text": "", "finish_reason": None}]}), "text"),
        (event({"choices": []}), "text"),
        (b"data: [1]\n\n", "text"),
        (b"data: no json\n\n", "text"),
        (event({"error": {"code": "timeout"}}), "text"),
        (event({"error": {"code": "engine_silent"}}), "lost"),
    ],
)
def test_an_event_is_told_apart_by_what_it_brings(data: bytes, kind: str) -> None:
    assert kind_of(data) == kind


def test_the_routers_span_is_under_the_callers_and_above_the_replicas() -> None:
    span = RouterSpan.begin("00-" + "a" * 32 + "-" + "b" * 16 + "-00", "r")
    version, trace, parent, flags = span.traceparent.split("-")
    assert (version, trace, flags) == ("00", "a" * 32, "00") and parent == f"{span.span_id:016x}"
    alone = RouterSpan.begin("nonsense", "r")
    assert alone.parent is None and alone.traceparent.endswith("-01")
