"""Debug and control over HTTP: snapshots, stopping time, steering sequences."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from nanolens.telemetry.totals import TOTAL_NAMES
from serve import Server, completion
from sse_wire import WireStream, ends

SECRET = "the eagle lands at midnight"


@contextmanager
def paused(server: Server) -> Iterator[None]:
    """The engine's time stands still; at the end it goes on until nothing lives."""
    server.wait_idle()
    assert server.post("/debug/engine/pause", {"cause": "a test"}).status == 200
    try:
        yield
    finally:
        server.post("/debug/engine/resume", {})
        server.wait_idle()


@contextmanager
def streaming(server: Server, name: str, prompt: object = "abc", **fields: Any) -> Iterator[WireStream]:
    """A stream under a request id of its own, in the engine."""
    body = completion(prompt, **({"max_tokens": 8} | fields))
    with server.stream("/v1/completions", body, {"X-Request-Id": name}) as stream:
        yield stream


def only(server: Server, name: str) -> dict[str, Any]:
    """The sequence of a request that has one."""
    (found,) = [seq for seq in server.snapshot()["sequences"] if seq["request"] == name]
    return found


def test_a_snapshot_of_a_server_holds_its_state_and_nothing_of_a_prompt(tiny_server: Server) -> None:
    with paused(tiny_server), streaming(tiny_server, "snap-1", SECRET):
        answer = tiny_server.get("/debug/snapshot")
        found, seq = answer.json, only(tiny_server, "snap-1")
    assert found["engine_paused"] == "a test" and found["waiting"] == [seq["seq"]]
    assert (seq["status"], seq["phase"], seq["wait_reason"]) == ("WAITING", "prefill", "engine_paused")
    assert seq["num_prompt_tokens"] == len(SECRET) and seq["age_s"] >= 0
    assert found["totals"].keys() == set(TOTAL_NAMES) and found["totals"]["requests_arrived"] > 0
    assert SECRET.split()[1] not in answer.body.decode()


def test_a_snapshot_is_as_large_as_asked_for(tiny_server: Server) -> None:
    found = tiny_server.get("/debug/snapshot?max_sequences=0&max_blocks=5").json
    assert len(found["blocks"]["references"]) == 5 and found["omitted"]["blocks"] == 251
    assert tiny_server.get("/debug/snapshot?max_blocks=-1").error["param"] == "max_blocks"


def test_steps_are_done_one_by_one_while_the_engine_is_paused(tiny_server: Server) -> None:
    with paused(tiny_server), streaming(tiny_server, "step-1", max_tokens=6):
        before = tiny_server.snapshot()["step"]
        for count, done in ((1, 1), (3, 4)):
            answer = tiny_server.post("/debug/engine/step", {"steps": count}).json
            assert (answer["step"], answer["done"]) == (before + done, True) and answer["engine_paused"]
            assert tiny_server.snapshot()["step"] == before + done
        assert only(tiny_server, "step-1")["num_output_tokens"] == 4


def test_steps_that_there_is_no_work_for_are_not_done(tiny_server: Server) -> None:
    with paused(tiny_server):
        assert tiny_server.post("/debug/engine/step", {"steps": 3}).json["done"] is False


def test_a_body_is_not_needed(tiny_server: Server) -> None:
    for command in ("pause", "step", "resume"):
        assert tiny_server.request("POST", f"/debug/engine/{command}").status == 200


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("engine/step", {"steps": 0}, "steps"),
        ("engine/step", {"steps": True}, "steps"),
        ("engine/pause", {"why": "so"}, "why"),
        ("breakpoints", {}, "predicate"),
        ("breakpoints", {"predicate": "on=nothing"}, "predicate"),
        ("breakpoints", {"predicate": "on=preempted", "action": "world"}, "action"),
        ("sequences/1/priority", {"priority": "high"}, "priority"),
        ("sequences/1/priority", {"priority": 1 << 40}, "priority"),
        ("sequences/1/pause", {"reason": "tired"}, "reason"),
        ("sequences/1/resume", {"max_tokens": 0}, "max_tokens"),
        ("journal/mark", {"text": ""}, "text"),
        ("journal/mark", {"text": "x" * 2001}, "text"),
    ],
)
def test_what_is_wrong_in_a_body_is_named(tiny_server: Server, path: str, body: object, field: str) -> None:
    answer = tiny_server.post(f"/debug/{path}", body)
    assert (answer.status, answer.error["param"]) == (400, field)


@pytest.mark.parametrize("name", ["999999999", "9" * 40, "nobody", "caf%C3%A9"])
@pytest.mark.parametrize("command", ["pause", "resume", "abort", "priority"])
def test_a_sequence_that_does_not_live_is_not_found(tiny_server: Server, name: str, command: str) -> None:
    body = {"priority": 1} if command == "priority" else {}
    answer = tiny_server.post(f"/debug/sequences/{name}/{command}", body)
    assert (answer.status, answer.error["param"]) == (404, "name")


def test_a_breakpoint_stops_the_engine_until_it_is_forgotten(tiny_server: Server) -> None:
    added = tiny_server.post("/debug/breakpoints", {"predicate": "on=status to=RUNNING"})
    number = added.json["number"]
    assert added.status == 201
    try:
        listed = tiny_server.get("/debug/breakpoints").json["breakpoints"]
        assert [each["number"] for each in listed] == [number] and "RUNNING" in listed[0]["text"]
        with streaming(tiny_server, "break-1") as stream:
            tiny_server.wait_until(lambda: tiny_server.snapshot()["engine_paused"], "stopped")
            assert tiny_server.snapshot()["engine_paused"] == f"breakpoint {number}"
            tiny_server.post("/debug/engine/resume", {})
            assert ends(stream.chunks()) == {0: "length"}
    finally:
        assert tiny_server.request("DELETE", f"/debug/breakpoints/{number}").status == 200
        tiny_server.post("/debug/engine/resume", {})
    assert tiny_server.request("DELETE", f"/debug/breakpoints/{number}").status == 404
    assert tiny_server.get("/debug/breakpoints").json == {"breakpoints": []}


@pytest.mark.parametrize("by_number", [True, False])
def test_a_stream_whose_sequence_is_paused_goes_on_when_it_is_resumed(tiny_server: Server, by_number: bool) -> None:
    whole = tiny_server.complete("xyz", max_tokens=600)["choices"][0]["text"]
    name = f"hold-{by_number}"
    with streaming(tiny_server, name, "xyz", max_tokens=600) as stream:
        events = stream.events()
        read = [next(events)]
        path = f"/debug/sequences/{only(tiny_server, name)['seq'] if by_number else name}"
        assert tiny_server.post(f"{path}/pause", {}).json == {"request": name, "paused": True}
        assert only(tiny_server, name)["status"] == "PAUSED"
        assert tiny_server.post(f"{path}/resume", {}).status == 200
        read += events
    assert "".join(json.loads(each)["choices"][0]["text"] for each in read[:-1]) == whole
    assert tiny_server.post(f"{path}/resume", {}).status == 404


def test_one_of_two_sequences_can_be_paused_by_its_number(tiny_server: Server) -> None:
    with paused(tiny_server), streaming(tiny_server, "pair-1", n=2) as stream:
        first, second = (seq for seq in tiny_server.snapshot()["sequences"] if seq["request"] == "pair-1")
        assert tiny_server.post(f"/debug/sequences/{second['seq']}/pause", {}).status == 200
        states = {seq["seq"]: seq["status"] for seq in tiny_server.snapshot()["sequences"]}
        assert states == {first["seq"]: "WAITING", second["seq"]: "PAUSED"}
        assert tiny_server.post(f"/debug/sequences/{first['seq']}/resume", {}).status == 409
        assert tiny_server.post(f"/debug/sequences/{second['seq']}/resume", {}).status == 200
        tiny_server.post("/debug/engine/resume", {})
        assert ends(stream.chunks()) == {0: "length", 1: "length"}


def test_a_priority_changes_while_a_request_lives(tiny_server: Server) -> None:
    with paused(tiny_server), streaming(tiny_server, "urgent-1"):
        assert only(tiny_server, "urgent-1")["priority"] == 0
        assert tiny_server.post("/debug/sequences/urgent-1/priority", {"priority": -5}).status == 200
        assert only(tiny_server, "urgent-1")["priority"] == -5


def test_an_abort_ends_the_stream_of_the_request(tiny_server: Server) -> None:
    with paused(tiny_server), streaming(tiny_server, "abort-2", n=2) as stream:
        seq = tiny_server.snapshot()["sequences"][0]["seq"]
        assert tiny_server.post(f"/debug/sequences/{seq}/abort", {}).json == {"request": "abort-2", "aborted": True}
        assert ends(stream.chunks()) == {0: "abort", 1: "abort"}


def test_steps_asked_for_at_once_are_done_one_after_the_other(tiny_server: Server) -> None:
    with paused(tiny_server), streaming(tiny_server, "step-2", max_tokens=40):
        before = tiny_server.snapshot()["step"]
        with ThreadPoolExecutor(8) as pool:
            counts = [1, 2, 1, 3, 1, 1, 2, 1]
            answers = list(pool.map(lambda n: tiny_server.post("/debug/engine/step", {"steps": n}).json, counts))
        assert all(answer["done"] for answer in answers)
        assert tiny_server.snapshot()["step"] == before + sum(counts)
        ends_at = sorted((answer["step"], count) for answer, count in zip(answers, counts, strict=True))
        assert [step - count for step, count in ends_at] == [before, *(step for step, _ in ends_at[:-1])]


def test_pausing_ends_steps_that_are_being_done(tiny_server: Server) -> None:
    with paused(tiny_server), streaming(tiny_server, "step-3", max_tokens=4000), ThreadPoolExecutor(2) as pool:
        first = pool.submit(tiny_server.post, "/debug/engine/step", {"steps": 1_000_000})
        before = tiny_server.snapshot()["step"]
        tiny_server.wait_until(lambda: tiny_server.snapshot()["step"] > before + 5, "steps are being done")
        second = pool.submit(tiny_server.post, "/debug/engine/step", {"steps": 1})
        tiny_server.post("/debug/engine/pause", {})
        assert first.result().json["done"] is False
        assert second.result().json["done"] is True


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/debug/snapshot"),
        ("POST", "/debug/engine/pause"),
        ("POST", "/debug/engine/step"),
        ("GET", "/debug/breakpoints"),
        ("POST", "/debug/sequences/1/abort"),
        ("GET", "/debug/journal"),
    ],
)
def test_what_is_meant_for_another_run_is_refused(tiny_server: Server, method: str, path: str) -> None:
    answer = tiny_server.request(method, path, headers={"X-Nanolens-Run": "run-of-yesterday"})
    run = tiny_server.get("/version").json["run"]
    assert (answer.status, answer.error["code"]) == (409, "other_run")
    assert answer.error["message"] == f"run run-of-yesterday is over: this server's run is {run}"
    assert not tiny_server.snapshot()["engine_paused"]


def test_what_is_meant_for_this_run_is_done(tiny_server: Server) -> None:
    run = tiny_server.get("/version").json["run"]
    assert tiny_server.get("/debug/snapshot", {"X-Nanolens-Run": run}).status == 200
