"""Steering a server's engine from the inspector: each action does what it says, and stands in the journal first."""

from __future__ import annotations

import getpass
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from nanolens.errors import InspectError
from nanolens.inspector.sources.control import HttpControl, origin
from nanolens.inspector.sources.http_stream import ServerLink
from nanolens.telemetry.events import BreakpointHit, EngineContinued, EnginePaused, Mark
from otlp_receivers import free_port
from serve import Server


@pytest.fixture
def control(tiny_server: Server) -> Iterator[HttpControl]:
    link = ServerLink(tiny_server.url)
    yield HttpControl(link)
    link.close()
    tiny_server.post("/debug/engine/resume", {})
    tiny_server.abort_all()
    tiny_server.wait_idle()


@pytest.fixture
def held(tiny_server: Server, control: HttpControl) -> Iterator[dict[str, Any]]:
    """A sequence that is running, on an engine that is paused; what it gave in the end is in the dict then."""
    given: dict[str, Any] = {}
    thread = threading.Thread(target=lambda: given.update(tiny_server.complete([7, 8, 9], max_tokens=30)))
    control.pause_engine()
    thread.start()
    tiny_server.wait_until(lambda: tiny_server.snapshot()["sequences"], "arrived")
    control.step_engine(3)
    given["seq"] = tiny_server.snapshot()["sequences"][0]["seq"]
    yield given
    tiny_server.post(f"/debug/sequences/{given['seq']}/resume", {})
    tiny_server.post("/debug/engine/resume", {})
    thread.join(30)
    assert not thread.is_alive()


def test_the_origin_names_user_and_host() -> None:
    assert origin() == f"nano-inspect {getpass.getuser()}@{socket.gethostname()}"


def test_an_engine_pauses_and_goes_on(tiny_server: Server, control: HttpControl) -> None:
    control.pause_engine()
    assert tiny_server.snapshot()["engine_paused"] == "operator"
    control.continue_engine()
    assert not tiny_server.snapshot()["engine_paused"]


def test_steps_are_exactly_as_many_as_asked_for(
    tiny_server: Server, control: HttpControl, held: dict[str, Any]
) -> None:
    at = tiny_server.snapshot()["step"]
    control.step_engine(1)
    assert tiny_server.snapshot()["step"] == at + 1
    control.step_engine(10)
    assert tiny_server.snapshot()["step"] == at + 11
    assert tiny_server.snapshot()["engine_paused"]


def test_steps_that_are_not_done_are_told(control: HttpControl) -> None:
    control.pause_engine()
    with pytest.raises(InspectError, match="5 steps: not all done"):
        control.step_engine(5)


def test_each_action_stands_in_the_journal_before_what_it_did(
    tiny_server: Server, control: HttpControl
) -> None:
    begin = len(tiny_server.events())
    control.pause_engine()
    control.continue_engine()
    tiny_server.wait_until(
        lambda: any(isinstance(each, EngineContinued) for each in tiny_server.events()[begin:]), "written"
    )
    kinds = (Mark, EnginePaused, EngineContinued)
    found = [each for each in tiny_server.events()[begin:] if isinstance(each, kinds)]
    assert [type(each) for each in found] == [Mark, EnginePaused, Mark, EngineContinued]
    marks = [(each.text, each.origin) for each in found if isinstance(each, Mark)]
    assert marks == [("pause the engine", origin()), ("continue the engine", origin())]


def test_breakpoints_are_set_listed_hit_and_removed(tiny_server: Server, control: HttpControl) -> None:
    number = control.add_breakpoint("on=request.arrived")
    assert "request.arrived" in control.breakpoints()[number]
    thread = threading.Thread(target=tiny_server.complete, args=([4, 5, 6],))
    thread.start()
    tiny_server.wait_until(lambda: tiny_server.snapshot()["engine_paused"], "stopped by the breakpoint")
    assert any(isinstance(each, BreakpointHit) for each in tiny_server.events())
    control.remove_breakpoint(number)
    assert number not in control.breakpoints()
    control.continue_engine()
    thread.join(30)
    assert not thread.is_alive()


def test_a_sequence_is_paused_and_resumed(tiny_server: Server, control: HttpControl, held: dict[str, Any]) -> None:
    def status() -> str:
        found: str = tiny_server.snapshot()["sequences"][0]["status"]
        return found

    control.pause_sequence(held["seq"])
    tiny_server.wait_until(lambda: status() == "PAUSED", "paused")
    control.resume_sequence(held["seq"])
    tiny_server.wait_until(lambda: status() != "PAUSED", "resumed")


def test_a_sequence_gets_a_priority(tiny_server: Server, control: HttpControl, held: dict[str, Any]) -> None:
    control.set_priority(held["seq"], -5)
    assert tiny_server.snapshot()["sequences"][0]["priority"] == -5


def test_a_sequence_is_aborted(tiny_server: Server, control: HttpControl, held: dict[str, Any]) -> None:
    control.abort_sequence(held["seq"])
    control.continue_engine()
    tiny_server.wait_idle()


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda c: c.abort_sequence(10**9), "no live sequence"),
        (lambda c: c.pause_sequence(10**9), "no live sequence"),
        (lambda c: c.set_priority(10**9, 1), "no live sequence"),
        (lambda c: c.add_breakpoint("on=nothing"), "nothing"),
        (lambda c: c.remove_breakpoint(10**6), "no breakpoint 1000000"),
        (lambda c: c.step_engine(0), "steps"),
    ],
)
def test_what_can_not_be_done_is_said_in_words(control: HttpControl, act: Any, words: str) -> None:
    with pytest.raises(InspectError, match=words):
        act(control)


def test_a_server_that_is_gone_is_said_in_words() -> None:
    link = ServerLink(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(InspectError, match="no connection"):
        HttpControl(link).pause_engine()
    link.close()
