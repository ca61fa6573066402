"""Replicas that give no sign of life: when one counts as silent, who is told, whose wait for it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import Message

from nanolens.server.errors import ApiError
from nanolens.server.fleet_messages import HttpCall, Report, Route
from nanolens.server.fleet_metrics import RouterMetrics
from nanolens.server.fleet_relay import Attempt, Elsewhere, Relay, Silent
from nanolens.server.fleet_silence import SILENT_S, Silence, health
from nanolens.server.fleet_spans import RouterSpan
from nanolens.server.fleet_view import FleetView


def fleet(*names: str) -> tuple[FleetView, Silence]:
    view = FleetView()
    view.update(names)
    return view, Silence(view)


def of(replica: str) -> HttpCall:
    return HttpCall("POST", "/v1/completions", route=Route(replica=replica))


def chosen(view: FleetView) -> tuple[str, ...]:
    return view.choose(view.replicas, HttpCall("POST", "/v1/completions")).order


async def look(silence: Silence, seconds: float, *heard: str) -> None:
    for name in heard:
        silence.hear(name)
    silence.look(seconds)


def test_a_replica_without_a_sign_of_life_gets_no_calls_until_it_gives_one() -> None:
    view, silence = fleet("a", "b")
    for _ in range(4):
        asyncio.run(look(silence, SILENT_S / 4, "b"))
    assert chosen(view) == ("b",)
    assert [report.trouble for report, _, _ in view.reports()] == ["no sign of life for 8 s", ""]
    with pytest.raises(ApiError, match="replica a gives no sign of life"):
        silence.check("a")
    asyncio.run(look(silence, 0.25, "a", "b"))
    silence.check("a")
    assert set(chosen(view)) == {"a", "b"} and not any(report.trouble for report, _, _ in view.reports())


def test_what_comes_of_a_call_is_a_sign_of_life() -> None:
    _, silence = fleet("a")

    async def pieces() -> AsyncIterator[int]:
        for each in range(8):
            silence.look(SILENT_S / 2)
            yield each

    async def read() -> list[int]:
        return [each async for each in silence.read(of("a"), pieces())]

    assert asyncio.run(read()) == list(range(8))


def test_only_who_waits_for_a_silent_replica_is_let_go() -> None:
    _, silence = fleet("a", "b")

    async def never() -> AsyncIterator[int]:
        await asyncio.Event().wait()
        yield 0

    async def read(call: HttpCall) -> list[int]:
        return [each async for each in silence.read(call, never())]

    async def play() -> list[Any]:
        on_its_way = HttpCall("POST", "/v1/completions", route=Route(order=("a", "b")))
        tasks = [asyncio.create_task(read(call)) for call in (of("a"), on_its_way, of("b"))]
        await asyncio.sleep(0)
        await look(silence, SILENT_S, "b")
        done, (left,) = await asyncio.wait(tasks, timeout=0.05)
        left.cancel()
        return [tasks[2] is left, *(type(task.exception()) for task in done)]

    assert asyncio.run(play()) == [True, Silent, Silent]


def test_who_waits_for_a_silent_replica_that_has_left_the_list_is_let_go() -> None:
    view, silence = fleet("a", "b")

    async def never() -> AsyncIterator[int]:
        await asyncio.Event().wait()
        yield 0

    async def play() -> BaseException | None:
        async def read() -> list[int]:
            return [each async for each in silence.read(of("a"), never())]

        task = asyncio.create_task(read())
        await asyncio.sleep(0)
        await look(silence, 0.25, "a", "b")
        view.update(["b"])
        await look(silence, SILENT_S / 2, "a", "b")
        assert silence.left == ["a"] and not view.silent
        await look(silence, SILENT_S, "b")
        await asyncio.wait([task], timeout=30)
        return task.exception()

    assert isinstance(asyncio.run(play()), Silent)
    assert silence.seconds["a"] == SILENT_S and chosen(view) == ("b",)
    silence.forget("a")
    asyncio.run(look(silence, 0.25, "b"))
    assert not silence.left and not view.silent


def relayed(*names: str, error: Elsewhere) -> tuple[list[HttpCall], dict[str, Any]]:
    """A call, each try of which fails so: the tries, and the error that the client gets."""
    view, _ = fleet(*names)
    asked: list[HttpCall] = []
    sent = b""

    def ask(call: HttpCall) -> Attempt:
        asked.append(call)
        call.route.replica = next((name for name in names if name not in call.avoid), names[0])

        async def messages() -> AsyncIterator[list[dict[str, Any]]]:
            raise error
            yield []

        return Attempt(messages(), lambda: None)

    async def send(message: Message) -> None:
        nonlocal sent
        sent += message.get("body", b"")

    relay = Relay(ask, send, lambda tried: bool(set(names) - tried), RouterMetrics(view), RouterSpan.begin(None, "r"))
    asyncio.run(relay.run(HttpCall("POST", "/v1/completions", generates=True)))
    return asked, json.loads(sent)["error"]


def test_a_call_is_not_sent_to_a_silent_replica_again() -> None:
    asked, error = relayed("a", error=Silent("no sign of life"))
    assert (len(asked), error["code"]) == (1, "replica_silent")
    asked, error = relayed("a", "b", error=Silent("no sign of life"))
    assert [call.route.replica for call in asked] == ["a", "b"] and error["code"] == "replica_silent"


@pytest.mark.parametrize("is_ready", [True, False])
def test_health_says_who_gives_no_answers_and_fails_where_nobody_does(is_ready: bool) -> None:
    well, ill = Report("a"), Report("b", trouble="no sign of life")
    good = "ready" if is_ready else "ok"
    for reports, status, words in (
        ([well], 200, {"status": good, "replicas": 1}),
        ([well, ill], 200, {"status": good, "replicas": 2, "trouble": {"b": "no sign of life"}}),
        ([ill], 503, {"reason": "no replica gives answers", "replicas": 1, "trouble": {"b": "no sign of life"}}),
        ([], 503, {"reason": "no replica runs", "replicas": 0}),
    ):
        answer = health(reports, "", is_ready)
        found = json.loads(bytes(answer.body))
        assert answer.status_code == status and {**found, **words} == found
    assert health([well], "the fleet is stopping", is_ready).status_code == 503
