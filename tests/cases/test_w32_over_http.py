"""W32 over HTTP: a client that goes away takes its request along, with both sequences, streaming or not."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable

import pytest

from nanolens.telemetry.events import RequestArrived, RequestFinished, StatusChanged, StepPlanned
from serve import Server, completion

LONG = completion([7, 8, 9], n=2, max_tokens=500, temperature=0.7, seed=3)


def leave_stream(server: Server, name: str) -> None:
    """Read two chunks, then close the connection."""
    with server.stream("/v1/completions", LONG, {"X-Request-Id": name}) as stream:
        events = stream.events()
        assert '"choices"' in next(events) + next(events)


def leave_plain(server: Server, name: str) -> None:
    """Send a request, and close the connection once it runs."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    headers = {"Content-Type": "application/json", "X-Request-Id": name}
    connection.request("POST", "/v1/completions", json.dumps(LONG), headers)
    server.wait_until(lambda: server.snapshot()["running"], "running")
    connection.close()


@pytest.mark.parametrize("leave", [leave_stream, leave_plain])
def test_both_sequences_end_and_nothing_of_them_is_left(
    tiny_server: Server, leave: Callable[[Server, str], None]
) -> None:
    server, name = tiny_server, f"gone-{leave.__name__}"
    server.wait_idle()
    before = server.snapshot()
    leave(server, name)
    server.wait_idle()
    after = server.snapshot()
    assert after["waiting"] == after["running"] == []
    assert after["totals"]["requests_finished_abort"] == before["totals"]["requests_finished_abort"] + 1
    assert after["totals"]["generated_tokens"] - before["totals"]["generated_tokens"] < 1000
    assert server.snapshot()["totals"]["generated_tokens"] == after["totals"]["generated_tokens"]

    events = server.events()
    (arrived,) = [event for event in events if isinstance(event, RequestArrived) and event.request == name]
    ended = [event for event in events if isinstance(event, StatusChanged) and event.seq in arrived.seqs][-2:]
    assert {event.seq for event in ended} == set(arrived.seqs) and len(arrived.seqs) == 2
    assert [(event.new, event.reason) for event in ended] == [("FINISHED", "aborted")] * 2
    assert ended[0].step == ended[1].step
    (finished,) = [event for event in events if isinstance(event, RequestFinished) and event.request == name]
    assert finished.finish_reason == "abort"
    later = [event for event in events if isinstance(event, StepPlanned) and event.step > ended[1].step]
    assert not {chunk[0] for event in later for chunk in event.chunks} & set(arrived.seqs)


@pytest.mark.parametrize("leave", [leave_stream, leave_plain])
def test_its_name_can_be_used_again(tiny_server: Server, leave: Callable[[Server, str], None]) -> None:
    for _ in range(3):
        leave(tiny_server, "again")
        tiny_server.wait_idle()
    answer = tiny_server.post("/v1/completions", completion([1]), {"X-Request-Id": "again"})
    assert (answer.status, answer.headers["x-request-id"]) == (200, "again")
