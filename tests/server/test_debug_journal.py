"""The journal over HTTP: its frames as a stream, raw or as lines, from any place on and while it grows; and marks."""

from __future__ import annotations

import http.client
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from nanolens.telemetry.events import Mark
from nanolens.telemetry.frames import FRAME_HEAD, decode_payload, parse_header
from serve import Server


def test_a_mark_stands_in_the_journal(tiny_server: Server) -> None:
    assert tiny_server.post("/debug/journal/mark", {"text": "load test begins", "origin": "ci"}).status == 200
    marks = [(event.text, event.origin) for event in tiny_server.events() if isinstance(event, Mark)]
    assert ("load test begins", "ci") in marks


def lines(answer_body: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answer_body.splitlines()]


def test_raw_frames_are_those_of_the_file_byte_for_byte(tiny_server: Server) -> None:
    tiny_server.complete("journal", max_tokens=3)
    answer = tiny_server.get("/debug/journal?from=start&follow=false")
    assert answer.headers["content-type"] == "application/vnd.nanolens.journal"
    (segment,) = tiny_server.journal.glob("*.journal")
    data = segment.read_bytes()
    header = parse_header(data, "test")
    assert header is not None and answer.headers["x-nanolens-run"] == header.run_id
    assert len(answer.body) > 100 and data[header.size :].startswith(answer.body)
    at = 0
    while at < len(answer.body):
        length, _ = FRAME_HEAD.unpack_from(answer.body, at)
        at += FRAME_HEAD.size + length
        assert decode_payload(answer.body[at - length : at], "test")
    assert at == len(answer.body)


def test_lines_have_names_and_places_and_any_place_can_be_gone_on_from(tiny_server: Server) -> None:
    answer = tiny_server.get("/debug/journal?from=start&follow=false&format=json")
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    whole = lines(answer.body)
    assert whole[0]["events"][0]["event"] == "engine.started"
    third = whole[2]
    assert third["offset"] == whole[1]["offset"] + whole[1]["num_bytes"]
    place = f"{third['segment']}:{third['offset']}"
    again = tiny_server.get(f"/debug/journal?from={place}&follow=false&format=json")
    assert again.headers["x-nanolens-position"] == place
    assert lines(again.body)[: len(whole) - 2] == whole[2:]


def test_a_stream_begins_at_the_newest_keyframe_if_not_told_otherwise(tiny_server: Server) -> None:
    first = lines(tiny_server.get("/debug/journal?follow=false&format=json").body)[0]["events"]
    assert {event["event"] for event in first[:2]} & {"engine.started", "keyframe"}


@pytest.mark.parametrize("place", ["middle", "1", "1:7", "0:0", "99:0", "-1:0", "1:999999999999999"])
def test_a_place_where_no_frame_begins_is_refused(tiny_server: Server, place: str) -> None:
    answer = tiny_server.get(f"/debug/journal?from={place}")
    assert (answer.status, answer.error["param"]) == (400, "from")


def follow(server: Server) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """A stream of the journal that goes on."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", "/debug/journal?format=json")
    return connection, connection.getresponse()


def test_a_place_in_a_segment_that_is_gone_goes_on_at_the_next_one_and_says_so(tmp_path: Path) -> None:
    with Server(tmp_path, journal_cap="64KiB") as server:  # segments of 8 KiB
        server.complete("journal", max_tokens=600)
        assert not list(server.journal.glob("*-000001.journal"))
        first = lines(server.get("/debug/journal?from=1:1000&follow=false&format=json").body)[0]
        assert first["segment"] > 1 and "were deleted before they were read" in first["gap"]


def test_a_stream_goes_on_with_what_happens(tiny_server: Server) -> None:
    connection, answer = follow(tiny_server)
    try:
        tiny_server.post("/debug/journal/mark", {"text": "seen live"})
        while "seen live" not in answer.readline().decode():
            pass
    finally:
        connection.close()


def test_there_are_so_many_streams_and_no_more_and_those_left_are_forgotten(tiny_server: Server) -> None:
    opened = [follow(tiny_server) for _ in range(16)]
    try:
        assert all(answer.readline() for _, answer in opened)
        refused = tiny_server.get("/debug/journal")
        assert (refused.status, refused.headers["retry-after"]) == (429, "5")
    finally:
        for connection, answer in opened:
            answer.close()
            connection.close()
    tiny_server.wait_until(lambda: tiny_server.get("/debug/journal?follow=false").status == 200, "forgotten")


def test_a_stream_ends_with_the_engine_and_what_it_held_is_whole(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        connection, answer = follow(server)
        server.complete("last words", max_tokens=4)
        os.kill(server.engine_pid, signal.SIGKILL)
        events = [event["event"] for line in lines(answer.read()) for event in line["events"]]
        connection.close()
        assert "request.finished" in events
        for method, path in (("GET", "/debug/snapshot"), ("POST", "/debug/engine/pause")):
            dead = server.request(method, path)
            assert (dead.status, dead.error["code"]) == (503, "engine_dead")
        assert server.get("/health").status == 503
        assert server.process.poll() is None


def test_a_server_without_a_journal_says_how_to_have_one(tmp_path: Path) -> None:
    with Server(tmp_path, journal="none", no_metrics=True) as server:
        answer = server.get("/debug/journal")
        assert answer.status == 404 and "--journal" in answer.error["message"]
