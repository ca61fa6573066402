"""A fleet that grows as requests wait, behind an API key; and what it takes from a client that goes away."""

from __future__ import annotations

import importlib.util
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

import pytest

from fleets import FleetServer
from nanolens.server.fleet_lifecycle import ONE_S
from nanolens.telemetry.events import EngineStopped
from nanolens.telemetry.reader import JournalReader
from serve import completion

KEY = "a-key-for-tests"
HEADERS = {"Authorization": f"Bearer {KEY}"}
LONG = {"max_tokens": 900, "ignore_eos": True}


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, lacks: Callable[[str], NoReturn]
) -> Iterator[FleetServer]:
    """One replica that runs one sequence at a time, and may become two."""
    if importlib.util.find_spec("ray") is None:
        lacks("ray (pip install 'nanolens[ray]')")
    folder = tmp_path_factory.mktemp("scaling")
    (folder / "keys").write_text(KEY + "\n")
    with FleetServer(
        folder, replicas=1, max_replicas=2, scale_queue_s=0.2, max_num_seqs=1, api_key_file=folder / "keys",
        drain_seconds=600,
    ) as server:  # fmt: skip
        server.wait_for(1)
        yield server


def test_it_starts_without_a_warning(fleet: FleetServer) -> None:
    assert "arning" not in fleet.said


def test_without_a_key_nobody_gets_in(fleet: FleetServer) -> None:
    assert fleet.post("/v1/completions", completion("x")).status == 401
    assert fleet.post("/v1/completions", completion("x"), {"Authorization": "Bearer another-key"}).status == 401
    assert fleet.post("/v1/completions", completion("x"), HEADERS).status == 200
    (name,) = fleet.replicas()
    for path in ("/debug/fleet", f"/replicas/{name}/debug/snapshot"):
        assert fleet.get(path).status == 200
        assert fleet.get(path, {"X-Forwarded-For": "192.0.2.1"}).status == 401
    assert fleet.post(f"/replicas/{name}/v1/completions", completion("x")).status == 401


def test_a_body_that_is_too_large_is_refused_by_the_front(fleet: FleetServer) -> None:
    answer = fleet.post("/v1/completions", completion("x" * (5 << 20)), HEADERS)
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")


def test_a_client_that_goes_away_ends_its_request(fleet: FleetServer) -> None:
    (name,) = fleet.replicas()
    with fleet.stream("/v1/completions", completion("x", **LONG), HEADERS) as wire:
        next(wire.events())
    path = f"/replicas/{name}/debug/snapshot"
    fleet.wait_until(lambda: fleet.get(path).json["sequences"] == [], "idle")
    fleet.wait_until(lambda: fleet.replicas()[name]["in_flight"] == 0, "without a call in flight")
    assert fleet.fleet()["choices"][-1]["error"] == "the client is gone"


@pytest.mark.timeout(300)
def test_requests_that_wait_too_long_bring_another_replica(fleet: FleetServer) -> None:
    enough = threading.Event()

    def ask() -> None:
        while not enough.is_set():
            assert fleet.post("/v1/completions", completion("x", **LONG), HEADERS).status == 200

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    try:
        fleet.wait_for(2)
    finally:
        enough.set()
        for thread in threads:
            thread.join()


@pytest.mark.timeout(300)
def test_a_signal_to_the_group_and_a_second_one_end_it_as_they_end_one_server(fleet: FleetServer) -> None:
    """The last one: it ends the fleet."""
    journals = [each["journal"] for each in fleet.replicas().values()]
    with fleet.stream("/v1/completions", completion("x", **LONG | {"n": 8}), HEADERS) as wire:
        next(wire.events())
        paused = fleet.post("/v1/completions", completion("x", max_tokens=1, on_stop="pause"), HEADERS).json["id"]
        os.killpg(fleet.process.pid, signal.SIGTERM)
        fleet.wait_until(lambda: fleet.get("/ready").status == 503, "draining")
        for path, body in (("/v1/completions", completion("x")), (f"/v1/requests/{paused}/resume", {"max_tokens": 3})):
            refused = fleet.post(path, body, HEADERS)
            assert (refused.status, refused.error["code"]) == (503, "stopping")
        assert fleet.get("/health").status == 200  # a restart would not help
        time.sleep(2 * ONE_S)  # or it counts as the same one
        fleet.process.send_signal(signal.SIGINT)
        ends = [choice["finish_reason"] for chunk in wire.chunks() for choice in chunk["choices"]]
        assert "abort" in ends
    assert fleet.wait_gone() == 0
    assert fleet.said.endswith("nano-serve: ended\n")
    for journal in journals:
        events = [event for frame in JournalReader(journal).frames() for event in frame.events]
        assert isinstance(events[-1], EngineStopped)
