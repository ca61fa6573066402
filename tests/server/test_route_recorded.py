"""What the router of a fleet decided on goes with the call into the journal of the replica, and out of it again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nanolens.engine.async_engine import AsyncEngine
from nanolens.inspector.explain_spans import explain_spans, read_spans
from nanolens.inspector.replay.recording import read_recording
from nanolens.inspector.replay.replay import replay
from nanolens.inspector.trace_cli import main
from nanolens.server.app import create_app
from nanolens.server.asgi_calls import answer
from nanolens.server.fleet_messages import HttpCall, Report
from nanolens.server.fleet_view import FleetView
from nanolens.telemetry.events import RequestArrived
from nanolens.telemetry.reader import JournalReader
from served import COMPLETIONS, TINY, serving
from span_checks import roots, spans_of

PROMPT = tuple(bytes([number]) * 8 for number in range(1, 6))
BODY = json.dumps({"model": "tiny", "prompt": "hello", "max_tokens": 3, "ignore_eos": True}).encode()
SENT = {"replica": "b", "reason": "prefix", "matched_blocks": 4, "best_matched_blocks": 4, "prompt_blocks": 5,
        "load": 1, "least_load": 0, "replicas": 2, "attempt": 1, "known_ms": 120}  # fmt: skip
AGAIN = SENT | {"replica": "a", "reason": "only", "matched_blocks": 0, "best_matched_blocks": 0, "load": 0,
                "replicas": 1, "attempt": 2, "left": "b"}  # fmt: skip
Output = pytest.CaptureFixture[str]


def routed(call: HttpCall, *names: str) -> HttpCall:
    """A call as the router of two replicas leaves it, of which b caches four blocks of PROMPT and runs a request."""
    now = [10.0]
    view = FleetView(4, clock=lambda: now[0])
    view.update(("a", "b"))
    assert {view.ask(name).version for name in ("a", "b")} == {0}
    view.take(Report("a", version=1, is_whole=True))
    view.take(Report("b", version=1, is_whole=True, added=b"".join(PROMPT[:4]), running=1))
    now[0] += 0.12  # since they were asked
    call.route = view.choose(names or ("a", "b"), call)
    return call


def call(name: str, **fields: Any) -> HttpCall:
    headers = [(b"content-type", b"application/json"), (b"x-request-id", name.encode())]
    return HttpCall("POST", COMPLETIONS, headers=headers, body=BODY, hashes=PROMPT, generates=True, **fields)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of a replica that got one call as first choice, one at the second try, and one that came without a router."""
    path = tmp_path_factory.mktemp("replica")
    with serving(AsyncEngine(TINY, num_blocks=64, block_size=4, device="cpu", journal=str(path))) as found:
        app = create_app(found.state)

        async def ask(one: HttpCall, replica: str) -> None:
            one.route.taken_by(replica)
            async for _ in answer(app, one):
                pass

        found.run(ask(routed(call("first")), "b"))
        found.run(ask(routed(call("second").again(frozenset("b"), 2)), "a"))
        forged = {name: json.dumps(SENT) for name in ("nanolens.route", "x-nanolens-route", "route", "state")}
        found.post(COMPLETIONS, {"x-request-id": "alone"} | forged, prompt="hello", max_tokens=3)
    yield path


def events(journal: Path) -> list[Any]:
    return [event for frame in JournalReader(journal).frames() for event in frame.events]


def test_the_journal_has_the_routers_decision_and_no_clients(journal: Path) -> None:
    arrived = {event.request: event.route for event in events(journal) if isinstance(event, RequestArrived)}
    assert arrived == {"first": SENT, "second": AGAIN, "alone": None}


def test_the_spans_of_the_replica_have_it_too(journal: Path) -> None:
    found = roots(spans_of(events(journal)))
    for name, route in (("first", SENT), ("second", AGAIN)):
        told = {key: value for key, value in found[name].attributes.items() if key.startswith("nanolens.route.")}
        assert told == {f"nanolens.route.{key}": value for key, value in route.items() if key != "replica"}
        assert found[name].attributes["nanolens.replica"] == route["replica"]
    assert not any("route" in key or "replica" in key for key in found["alone"].attributes)


def test_explain_says_why_the_replica_was_chosen(journal: Path, capsys: Output) -> None:
    said = {}
    for name in ("first", "second", "alone"):
        assert main(["explain", str(journal), name]) == 0
        said[name] = " ".join(capsys.readouterr().out.split())
    assert (
        "The router chose replica b (prefix): it was believed to cache 4 of the prompt's 5 blocks (as of 120 ms before"
        "), the most of all, but none of these 4 were found there; it held 1 request, the least loaded 0."
    ) in said["first"]
    assert "replica a (only): there was no other to choose that had not failed it before" in said["second"]
    assert "this was attempt 2, after b." in said["second"]
    assert "router" not in said["alone"]
    assert main(["explain", str(journal), "--slowest", "9", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["requests"]
    assert {one["request"]: one["route"] for one in found} == {
        "first": SENT | {"found_blocks": 0}, "second": AGAIN, "alone": None
    }  # fmt: skip


def test_spans_in_a_file_tell_it_as_the_journal_does(journal: Path, tmp_path: Path) -> None:
    file = tmp_path / "spans.json"
    assert main(["export", str(journal), "--file", str(file)]) == 0
    found = {one.request: one.route for one in explain_spans(read_spans(str(file)), "e2e")}
    assert found == {"first": SENT, "second": AGAIN, "alone": None}


def test_it_is_an_input_and_a_replay_comes_out_the_same(journal: Path) -> None:
    recording = read_recording(journal)
    result = replay(recording)
    assert result.divergence is None and result.decisions == len(recording.events) > 0


def test_who_takes_a_call_that_was_meant_for_another_took_it_as_that_was_full() -> None:
    one = routed(call("x"))
    one.route.taken_by("a")
    assert one.route_record() == SENT | {"replica": "a", "reason": "full", "matched_blocks": 0, "load": 0}


def test_a_call_for_one_replica_says_so_however_it_is_placed() -> None:
    one = routed(call("x", pinned="b"))
    one.route.taken_by("b")
    assert one.route_record() == SENT | {"reason": "pinned"}
