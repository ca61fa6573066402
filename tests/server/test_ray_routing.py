"""What the front of two replicas on Ray Serve keeps right: ids, whose text a stream is, what a choice went by."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest

from fleets import FleetServer
from serve import completion
from sse_wire import DONE

PATH, LOOK_S = "/v1/completions", 0.25
REQUEST = "nanolens.request"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, lacks: Callable[[str], NoReturn]) -> Iterator[FleetServer]:
    if importlib.util.find_spec("ray") is None:
        lacks("ray (pip install 'nanolens[ray]')")
    with FleetServer(tmp_path_factory.mktemp("fleet"), num_blocks=370, max_num_seqs=8) as server:
        server.wait_for(2)
        yield server


def at(replica: str, name: str) -> tuple[str, dict[str, str]]:
    """Path and headers of a request with this id that names its replica."""
    return f"/replicas/{replica}{PATH}", {"X-Request-Id": name}


def choice(fleet: FleetServer, name: str) -> dict[str, Any]:
    (found,) = [each for each in fleet.fleet()["choices"] if each[REQUEST] == name]
    return dict(found)


def test_the_requests_of_a_batch_get_no_id_that_lives_at_another_replica(fleet: FleetServer) -> None:
    one, other = sorted(fleet.replicas())
    path, headers = at(one, "w-1")
    with fleet.stream(path, completion("x", max_tokens=400, ignore_eos=True), headers) as running:
        next(running.events())
        path, headers = at(other, "w")
        batch = fleet.post(path, completion(["y", "z"], max_tokens=2), headers)
        assert batch.json["id"].startswith("cmpl-") and batch.headers["x-nanolens-request-id"] == batch.json["id"]
        assert fleet.post(*_resume("w-1")).status == 409  # it is known where it runs
    names = [each[REQUEST] for each in fleet.fleet()["choices"]]
    assert batch.json["id"] in names and "w" not in names


def test_a_request_of_a_batch_that_has_paused_keeps_its_id_wherever_that_is_asked_for(fleet: FleetServer) -> None:
    one, other = sorted(fleet.replicas())
    path, headers = at(one, "y")
    paused = fleet.post(path, completion(["aa", "bb"], max_tokens=4, ignore_eos=True, on_stop="pause"), headers)
    assert (paused.json["id"], paused.headers["x-nanolens-request-id"]) == ("y", "y")
    for path, headers in (at(other, "y-1"), (PATH, {"X-Request-Id": "y-1"})):
        single = fleet.post(path, completion("other", max_tokens=2), headers)
        assert single.json["id"].startswith("cmpl-") and single.headers["x-nanolens-request-id"] == single.json["id"]
        assert choice(fleet, single.json["id"])["nanolens.replica"] == single.headers["x-nanolens-replica"]
    for name in ("y-0", "y-1"):
        again = fleet.post(*_resume(name))
        assert (again.status, again.headers["x-nanolens-replica"]) == (200, one)
        assert again.headers["x-nanolens-request-id"] == again.json["id"] == name
        assert fleet.post(f"/v1/requests/{name}/finish", {}).status == 200
    path, headers = at(other, "y-1")
    assert fleet.post(path, completion("other", max_tokens=2), headers).json["id"] == "y-1"  # it is free again


@pytest.mark.timeout(300)
def test_the_head_of_a_stream_names_the_replica_that_gave_its_text(fleet: FleetServer) -> None:
    """The last one: it leaves a replica less."""
    prompt = "the replica that caches this is the one that the next request goes to"
    first = fleet.post(PATH, completion(prompt, max_tokens=2))
    victim = first.headers["x-nanolens-replica"]
    (other,) = fleet.replicas().keys() - {victim}
    time.sleep(2 * LOOK_S)
    assert fleet.post(f"/replicas/{victim}/debug/engine/pause", {}).status == 200
    found: list[tuple[str, str]] = []

    def ask() -> None:
        with fleet.stream(PATH, completion(prompt, max_tokens=4, ignore_eos=True)) as wire:
            events = list(wire.events())
            assert events[-1] == DONE and json.loads(events[-2])["choices"][0]["finish_reason"] == "length"
            found.append((wire.headers["x-nanolens-replica"], wire.headers["x-nanolens-request-id"]))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        fleet.wait_until(lambda: fleet.replicas()[victim]["in_flight"] == 1, "no request at the victim")
        time.sleep(2 * LOOK_S)  # its head is on its way
    finally:
        os.kill(fleet.replicas()[victim]["pid"], signal.SIGKILL)
        asking.join()
    ((replica, name),) = found
    assert replica == other == choice(fleet, name)["nanolens.replica"]


def _resume(name: str) -> tuple[str, dict[str, Any]]:
    return f"/v1/requests/{name}/resume", {"max_tokens": 2}
